"""Attacks by disks: no room for a file, a kill before every file operation of a save, and files of a run torn or exchanged.

The kernel's limit on the length of files stands for a disk that is full.
"""

import atexit
import builtins
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from mmrl.core.ranks import Ranks
from mmrl.training.checkpoints import save as files
from mmrl.training.checkpoints.save import Checkpoints
from tests.attacks.attack import Attack, expect_done, once, refused, run_mmrl

FULL = "bytes are free there): make room there, then "
LIMIT = 3000
REWARD = """
import resource
CALLS = []
def fills(group):
    CALLS.append(1)
    if len(CALLS) > {calls}:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return [float(len(sample.text or "")) for sample in group.samples]
"""
RUN = ("train", "tiny/image", "output=run", "evaluation={}", "evaluate_every=0", "save_every=1", "samples_every=1", "steps=3")
ALONE = 'reward=[{use = "./mine.py:fills"}]'


def no_halves(folder: Path) -> None:
    """Expect no file that is half written under another name."""
    left = [file.name for file in folder.rglob("*") if file.suffix in (".new", ".tmp", ".partial", ".gone")]
    assert not left, f"it left {left}"


def while_training(calls: int, words: tuple[str, ...], folder: Path) -> str:
    """The disk is full after some rewards: a sentence that names the file, and the run goes on once there is room."""
    said = ("could not be written", "bytes are free there", "mmrl train --resume", *words)
    told = refused([*RUN, ALONE], said, folder, {"mine.py": REWARD.format(calls=calls, limit=LIMIT)}, limit_s=240)
    no_halves(folder)
    (folder / "mine.py").write_text(REWARD.format(calls=10**9, limit=LIMIT))
    expect_done(run_mmrl(["train", "--resume", "run"], folder, limit_s=240))
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "reward/total" in line]
    assert steps == [1, 2, 3], f"afterwards the run holds the steps {steps}"
    return f"{told}, and resumed"


def written(option: str, file: str, folder: Path) -> str:
    """A command that writes a file for which there is no room; the old file stays."""
    rows = [{"prompt": f"a fox, {i}", "completion": "x" * 500} for i in range(20)]
    files = {"rows.jsonl": "".join(json.dumps(row) + "\n" for row in rows), "out.jsonl": "old"}
    command = ["reward", "score", "length", "rows.jsonl", option, file]
    told = refused(command, ["out", FULL], folder, files, limit_s=120, before=limit_files)
    no_halves(folder)
    assert (folder / "out.jsonl").read_text() == "old", "the file that was there is gone"
    return told


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


OPERATIONS: dict[Any, tuple[str, ...]] = {
    os: ("fsync", "rename", "mkdir", "rmdir", "unlink", "open", "scandir"),
    builtins: ("open",),
    files.Hashed: ("write", "finish"),
}
KILLED = 9
MOST = 500


def state(value: int) -> dict[str, Any]:
    weights = torch.full((1000,), float(value))
    return {"index": value, "policy": {"w": weights}, "optimizer": {"m": -weights}}


def die_at(number: int, operations: Mapping[Any, Sequence[str]]) -> None:
    """Let this process end, as SIGKILL would end it, before its file operation of this number."""
    left = count(1)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            if next(left) == number:
                os._exit(KILLED)
            return function(*given, **named)

        return run

    for holder, names in operations.items():
        for name in names:
            setattr(holder, name, counted(getattr(holder, name)))


def save_and_die(folder: Path, number: int, step: int, operations: Mapping[Any, Sequence[str]]) -> int:
    """Save a checkpoint of this step in a process that dies before an operation: its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_at(number, operations)
            Checkpoints(folder, keep=1).save(step, state(10 + step), Ranks())
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at_every_operation(again: bool, folder: Path, operations: Mapping[Any, Sequence[str]] = OPERATIONS) -> str:
    """Whatever the operation: a whole checkpoint is there, the old one or the new one, and nothing half-written beside it."""
    first, step = folder / "first", 1 if again else 2
    Checkpoints(first, keep=1).save(1, state(1), Ranks())
    for number in range(1, MOST):
        place = Path(shutil.copytree(first, folder / f"at-{number}"))
        code = save_and_die(place, number, step, operations)
        assert code in (0, KILLED), f"the save ended with {code} at operation {number}"
        found = Checkpoints(place, keep=1).recover()
        loaded = Checkpoints(place, keep=1).load()
        value = loaded["index"]
        is_whole = torch.equal(loaded["policy"]["w"], state(value)["policy"]["w"])
        assert is_whole and (found, value) in ((1, 1), (step, 10 + step)), f"killed at operation {number}, {value} is at {found}"
        assert code or value == 10 + step, "what was saved is not there"
        lying = [path.name for path in place.iterdir() if path.suffix]
        assert not lying, f"killed at operation {number}, {lying} is left"
        Checkpoints(place, keep=1).save(3, state(3), Ranks())
        left = sorted(path.name for path in place.iterdir())
        assert left == ["step-3"], f"killed at operation {number}, {left} is left after the next save"
        shutil.rmtree(place)
        if code == 0:
            return f"{number - 1} operations"
    raise AssertionError(f"a save takes more than {MOST} operations")


def attack(again: bool, folder: Path) -> str:
    """The same in a process without threads, which may be forked."""
    words = [sys.executable, "-m", "tests.attacks.disks", str(folder), *(["again"] if again else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert not done.returncode, (done.stderr.strip().splitlines() or ["it failed"])[-1][-300:]
    return done.stdout.strip()


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
    Attack("disks", "no room for samples in the first step", partial(while_training, 0, ("samples",))),
    Attack("disks", "no room after a checkpoint", partial(while_training, 5, ("run",))),
    Attack("disks", "no room for scores", partial(written, "--out", "out.jsonl")),
    Attack("disks", "no room for a page", partial(written, "--html", "out.html")),
    Attack("checkpoints", "killed before every file operation of a save", partial(attack, False)),
    Attack("checkpoints", "killed before every file operation of a save over the same step", partial(attack, True)),
    *(
        Attack("run folder", name, partial(refused, command, words, files=partial(damaged, damage)))
        for name, damage, command, words in REFUSED
    ),
    *(Attack("run folder", name, partial(borne, damage, command, words)) for name, damage, command, words in BORNE),
    Attack("run folder", "resumed into another folder", left_alone),
    Attack("run folder", "a new run in a used folder", trained_over),
    Attack("run folder", "resumed from another folder", from_elsewhere),
]

if __name__ == "__main__":
    sys.stdout.write(f"whole after a kill before each of {killed_at_every_operation('again' in sys.argv, Path(sys.argv[1]))}")
