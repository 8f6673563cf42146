"""Attacks on a run's folder: files torn, removed, exchanged; the folder resumed, reported, compared, exported and evaluated."""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.attacks.attack import Attack, expect_done, once, refused, run_mmrl

SMALL = ["steps=1", "evaluation.num_prompts=2", "data.size=8", "audit_steps=1"]


@once
def trained() -> Path:
    """A run of one step that every attack copies."""
    folder = Path(tempfile.mkdtemp(prefix="mmrl-attacked-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    expect_done(run_mmrl(["train", "tiny/image", *SMALL, "--output", "run"], folder, limit_s=300), "report")
    return folder / "run"


def prepare(folder: Path) -> Path:
    return shutil.copytree(trained(), folder / "run")


def damaged(damage: Callable[[Path], object], folder: Path) -> None:
    damage(prepare(folder))


def borne(damage: Callable[[Path], object], command: list[str], words: tuple[str, ...], folder: Path) -> str:
    damage(prepare(folder))
    return expect_done(run_mmrl(command, folder), *words)


def nothing(run: Path) -> None:
    """Leave the run as it is."""


def step(run: Path) -> Path:
    return run / "checkpoints" / "step-1"


def cut(name: str, run: Path) -> None:
    file = run / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def append(name: str, text: str, run: Path) -> None:
    with (run / name).open("a") as stream:
        stream.write(text)


def cut_all(run: Path) -> None:
    for file in step(run).iterdir():
        file.write_bytes(file.read_bytes()[:7])


def empty_checkpoint(run: Path) -> None:
    shutil.rmtree(step(run))
    step(run).mkdir()


def flip(run: Path) -> None:
    file = max(step(run).iterdir(), key=lambda one: one.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(bytes(data))


def left_alone(folder: Path) -> str:
    """--resume with another --output writes nowhere."""
    run = prepare(folder)
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    told = refused([*RESUME, "--output", "other"], ["--output", "other"], folder)
    assert not (folder / "other").exists() and {file: file.stat().st_mtime_ns for file in run.rglob("*")} == before, (
        "a refused resumption changed files"
    )
    return told


def trained_over(folder: Path) -> str:
    run = prepare(folder)
    before = (run / "metrics.jsonl").read_bytes()
    told = refused(["train", "tiny/image", *SMALL, "--output", "run"], ["already holds a run", "--resume"], folder)
    assert (run / "metrics.jsonl").read_bytes() == before, "the run was written over"
    return told


def from_elsewhere(folder: Path) -> str:
    """A run that is resumed from a folder that it was not started in."""
    start, other = folder / "start", folder / "other"
    start.mkdir()
    other.mkdir()
    run = prepare(start)
    (run / "started_in.txt").write_text(f"{start}\n")
    ended = run_mmrl(["train", "--resume", os.path.relpath(run, other)], other)
    told = expect_done(ended, "finished", "relative paths are those of")
    assert not list(other.iterdir()), f"files in the other folder: {list(other.iterdir())}"
    return told


CHANGES = [
    ("another optimizer", "optimizer.kind=sgd", "optimizer"),
    ("an adapter where there was none", "policy.lora.rank=4", "policy.lora"),
    ("another model", "policy.model=tiny:smolvlm", "policy.model"),
    ("another frozen part", 'policy.freeze=["vision"]', "policy.freeze"),
    ("another sampler", "sampler.kind=Streamed", "sampler.kind"),
]
HUGE = {"step": 2, "loss": 5e-324, "reward/total": "Infinity", "policy/kl": 1e308, "policy/entropy": -1e-310}
EVIL = {"step": 1, "level": "error", "text": "\x1b[2J\x07 <script>alert(1)</script>"}
RESUME, REPORT = ["train", "--resume", "run", "steps=2"], ["report", "run"]
REFUSED: list[tuple[str, Callable[[Path], object], list[str], tuple[str, ...]]] = [
    *((f"resumed with {name}", nothing, [*RESUME, word], (key, "was trained with")) for name, word, key in CHANGES),
    ("resumed with a config cut in half", partial(cut, "config.toml"), RESUME, ("config.toml",)),
    ("resumed without a config", lambda run: (run / "config.toml").unlink(), RESUME, ("config.toml",)),
    ("resumed with all checkpoint files torn", cut_all, RESUME, ("checkpoint",)),
    ("resumed with one bit of a checkpoint turned", flip, RESUME, ("checkpoint",)),
    ("resumed with an empty checkpoint", empty_checkpoint, RESUME, ("checkpoint",)),
    (
        "a report of a line that is not JSON",
        lambda run: (run / "metrics.jsonl").write_text("{]\n{}\n"),
        REPORT,
        ("metrics.jsonl", "line 1"),
    ),
    (
        "a report of a config that is not TOML",
        lambda run: (run / "config.toml").write_text("= ="),
        REPORT,
        ("config.toml", "TOML"),
    ),
    ("a report of no run", nothing, ["report", "."], ("neither config.toml nor metrics.jsonl",)),
    ("compared with a run that is not there", nothing, ["compare", "run", "gone"], ("gone",)),
    ("evaluated at a step that was never saved", nothing, ["eval", "run", "--step", "7"], ("step-7",)),
    ("exported from a step that was never saved", nothing, ["export", "run", "out", "--step", "7"], ("step-7",)),
]
BORNE: list[tuple[str, Callable[[Path], object], list[str], tuple[str, ...]]] = [
    ("a report of a torn last line", partial(append, "metrics.jsonl", '{"step": 2, "lo'), REPORT, ()),
    ("a report of numbers at both ends of float64", partial(append, "metrics.jsonl", json.dumps(HUGE) + "\n"), REPORT, ()),
    ("a report of control characters and scripts", partial(append, "warnings.jsonl", json.dumps(EVIL) + "\n"), REPORT, ()),
    ("a report without samples", lambda run: shutil.rmtree(run / "samples"), REPORT, ()),
    ("a report without versions", lambda run: (run / "versions.json").unlink(), REPORT, ()),
    ("a report of torn changes", partial(append, "changes.jsonl", '{"step": 1, "ke'), REPORT, ()),
    ("compared with itself", nothing, ["compare", "run", "run"], ("settings are the same",)),
    ("a finished run resumed", nothing, ["train", "--resume", "run"], ("is finished", "steps=")),
]
ATTACKS = [
    *(
        Attack("run folder", name, partial(refused, command, words, files=partial(damaged, damage)))
        for name, damage, command, words in REFUSED
    ),
    *(Attack("run folder", name, partial(borne, damage, command, words)) for name, damage, command, words in BORNE),
    Attack("run folder", "resumed into another folder", left_alone),
    Attack("run folder", "a new run in a used folder", trained_over),
    Attack("run folder", "resumed from another folder", from_elsewhere),
]
