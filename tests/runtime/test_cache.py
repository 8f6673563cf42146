"""What mmrl keeps is listed, cleared and bounded, and nothing else is touched; the names of models that are taught once."""

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from mmrl.app.commands import kept as command
from mmrl.data.drawn.digit_text import Prints
from mmrl.data.drawn.gliding import Glides
from mmrl.data.drawn.shapes import Sketches
from mmrl.data.files.mp4 import clip_folder
from mmrl.lab.tiny import teaching
from mmrl.lab.tiny.flow import clip_generator, editor, generator, sound_generator
from mmrl.lab.tiny.taught import BOXES, LOOKS, SPANS, WORDS, Pupil
from mmrl.runtime import cache
from mmrl.runtime.cache import keep

DAY = 24 * 3600


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with three entries of 1000, 2000 and 3000 bytes, used 3, 2 and 1 days ago, and a stranger's folder."""
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    monkeypatch.delenv("MMRL_CACHE_GB", raising=False)
    for name, kilobytes, days in (
        ("random-0.1.0", 1, 3),
        ("moving-digits-0123456789ab", 2, 2),
        ("tiny-clips-0123456789ab", 3, 1.5),
    ):
        inner = tmp_path / name / "inner"
        inner.mkdir(parents=True)
        (inner / "file").write_bytes(b"x" * 1000 * kilobytes)
        used = time.time() - days * DAY
        os.utime(tmp_path / name, (used, used))
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday/photo.png").write_bytes(b"x")
    (tmp_path / "moving-digits-ba9876543210").symlink_to(tmp_path / "holiday")
    return tmp_path


def names() -> list[str]:
    return [entry.path.name for entry in cache.entries()]


def run(*words: str):
    return CliRunner().invoke(command.cache, words, catch_exceptions=False)


def test_it_is_listed_with_sizes_and_cleared_by_name_or_as_a_whole(folder: Path):
    out = run("ls").output
    assert out.splitlines()[0] == str(folder)
    assert [line.split()[:3] for line in out.splitlines()[1:4]] == [
        ["tiny-clips-0123456789ab", "3.0", "kB"],
        ["moving-digits-0123456789ab", "2.0", "kB"],
        ["random-0.1.0", "1.0", "kB"],
    ]
    assert "3 entries, 6.0 kB, at most 5.0 GB (MMRL_CACHE_GB)" in out
    assert "holiday" not in out and "ba9876543210" not in out
    assert run("clear", "random-0.1.0").output == "removed 1 entries, 1.0 kB\n"
    assert names() == ["moving-digits-0123456789ab", "tiny-clips-0123456789ab"]
    assert run("clear").output == "removed 2 entries, 5.0 kB\n"
    assert sorted(path.name for path in folder.iterdir()) == ["holiday", "moving-digits-ba9876543210"]
    assert (folder / "holiday/photo.png").exists()
    assert "0 entries, 0 bytes" in run("ls").output


@pytest.mark.parametrize("name", ["holiday", "../holiday", "tiny-clip-0123456789ab", ""])
def test_a_name_that_is_not_there_removes_nothing(folder: Path, name: str):
    with pytest.raises(ValueError, match=f"holds no '{name}': "):
        run("clear", "random-0.1.0", name)
    assert len(names()) == 3


def test_it_stays_within_its_bound(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_CACHE_GB", "5.5e-6")
    cache.note_use(folder / "random-0.1.0" / "inner")
    assert names()[-1] == "random-0.1.0", "whatever lies in an entry was used"
    fresh = folder / "tiny-grounding-0123456789ab"
    fresh.mkdir()
    (fresh / "file").write_bytes(b"x" * 3000)
    assert cache.note_new(fresh) == fresh
    assert names() == ["random-0.1.0", "tiny-grounding-0123456789ab"], "the longest unused went, until the rest fitted"
    monkeypatch.setenv("MMRL_CACHE_GB", "1e-9")
    cache.note_new(fresh)
    assert len(names()) == 2, "whatever was used today may be in use"
    os.utime(fresh, (1, 1))
    monkeypatch.setenv("MMRL_CACHE_GB", "0")
    cache.note_new(folder / "random-0.1.0")
    assert len(names()) == 2 and "without a bound" in run("ls").output


def test_folders_outside_the_cache_are_not_marked(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    other = tmp_path_factory.mktemp("other")
    os.utime(other, (1, 1))
    assert cache.note_use(other) == other and other.stat().st_mtime == 1
    assert cache.note_use(folder / "nothing-0123456789ab").name == "nothing-0123456789ab"


@pytest.mark.parametrize("bound", ["much", "-1", "nan", "inf"])
def test_a_bound_is_a_number(monkeypatch: pytest.MonkeyPatch, bound: str):
    monkeypatch.setenv("MMRL_CACHE_GB", bound)
    with pytest.raises(ValueError, match=f"MMRL_CACHE_GB is '{bound}': it is a number of gigabytes"):
        cache.bound()


USES = """
import sys
from pathlib import Path
from mmrl.runtime.cache import note_use
note_use(Path(sys.argv[1]))
print(1, flush=True)
input()
"""


def test_what_a_running_program_uses_is_left(folder: Path):
    held = folder / "tiny-clips-0123456789ab"
    program = subprocess.Popen(
        [sys.executable, "-c", USES, str(held / "inner")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None and program.stdout.readline() == "1\n"
    said = run("clear").output
    assert said == "removed 2 entries, 3.0 kB; left tiny-clips-0123456789ab: a running program uses what is in there\n"
    assert (held / "inner/file").stat().st_size == 3000
    program.communicate("\n")
    assert run("clear").output == "removed 1 entries, 3.0 kB\n"


def test_a_run_holds_the_models_and_clips_it_was_given(folder: Path):
    made = keep(None, "tiny-model-0123456789ab", "config.json", lambda out: (out / "config.json").write_text("{}"))
    clips = clip_folder("clips", {}, ())
    said = run("clear").output
    assert said.startswith("removed 3 entries") and made.name in said and clips.name in said
    assert made.is_dir() and clips.is_dir()


COMMON = {"mmrl.runtime.cache", "mmrl.lab.tiny.byte_tokens"}
"""Where models are kept, and names of types."""


@dataclass(frozen=True)
class Settings:
    seed: int = 0


def modules_of(module: ModuleType) -> set[str]:
    """Modules of tiny models and of drawn data that a module takes functions and classes from."""
    found = {thing.__module__ for thing in vars(module).values() if inspect.isfunction(thing) or inspect.isclass(thing)}
    return {name for name in found if name.startswith(("mmrl.lab.tiny.", "mmrl.data."))}


@pytest.mark.parametrize(
    "module, settings",
    [
        (generator, generator.WarmStart(Sketches())),
        (generator, generator.WarmStart(Prints())),
        (clip_generator, clip_generator.ClipStart(Glides())),
        (editor, editor.EditorStart()),
        (sound_generator, sound_generator.SoundStart()),
    ],
)
def test_all_code_of_a_taught_model_is_in_its_name(module: ModuleType, settings: Any, monkeypatch: pytest.MonkeyPatch):
    counted: set[str] = set()

    def note(settings: Any, code: Sequence[ModuleType | type], packages: Sequence[str]) -> str:
        counted.update(part.__module__ if isinstance(part, type) else part.__name__ for part in code)
        return "noted"

    monkeypatch.setattr(inspect.getmodule(module.KIND.fingerprint), "hash_of", note)
    module.KIND.fingerprint(settings)
    used = modules_of(module)
    if hasattr(settings, "data"):
        used |= modules_of(sys.modules[type(settings.data).__module__])
    assert used <= counted | COMMON


@pytest.mark.parametrize("pupil", [BOXES, SPANS, LOOKS, WORDS])
def test_all_code_of_a_model_that_stages_teach_is_in_its_name(pupil: Pupil):
    counted = {module.__name__ for module in pupil.code}
    builds = {"mmrl.lab.tiny.text.student", "mmrl.training.optim", "mmrl.lab.tiny.teaching"}
    assert modules_of(pupil.code[0]) | modules_of(pupil.code[2]) <= counted | COMMON | builds


def test_a_name_depends_on_settings_code_and_versions():
    names = {
        cache.hash_of(Settings(), (cache,), ("torch",)),
        cache.hash_of(Settings(1), (cache,), ("torch",)),
        cache.hash_of(Settings(), (cache, teaching), ("torch",)),
        cache.hash_of(Settings(), (cache,), ("torch", "numpy")),
    }
    assert len(names) == 4 and all(len(name) == 12 for name in names)
    assert cache.hash_of(Settings(), (cache,), ("torch",)) in names
