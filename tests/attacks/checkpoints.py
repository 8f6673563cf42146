"""Attacks on checkpoints: the process is killed before every file operation of a save, one after the other."""

import builtins
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mmrl.core.ranks import Ranks
from mmrl.training.checkpoints import save as files
from mmrl.training.checkpoints.save import Checkpoints
from tests.attacks.attack import Attack

OPERATIONS: dict[Any, tuple[str, ...]] = {
    os: ("fsync", "rename", "mkdir", "rmdir", "unlink", "open", "scandir"),
    builtins: ("open",),
    files.Hashed: ("write", "finish"),
}
KILLED = 9
MOST = 500


def state(step: int) -> dict[str, Any]:
    weights = torch.full((1000,), float(step))
    return {"index": step, "policy": {"w": weights}, "optimizer": {"m": -weights}}


def die_at(number: int) -> None:
    """Let this process end, as SIGKILL would end it, before its file operation of this number."""
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os._exit(KILLED)
            return function(*given, **named)

        return run

    for holder, names in OPERATIONS.items():
        for name in names:
            setattr(holder, name, counted(getattr(holder, name)))


def save_and_die(folder: Path, number: int, again: bool) -> int:
    """Save a second checkpoint, or the same once more, in a process that dies before an operation: its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_at(number)
            Checkpoints(folder, keep=1).save(1 if again else 2, state(1 if again else 2), Ranks())
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at_every_operation(again: bool, folder: Path) -> str:
    """Whatever the operation: a whole checkpoint is there, of the old step or the new one, and nothing half-written after it."""
    first = folder / "first"
    Checkpoints(first, keep=1).save(1, state(1), Ranks())
    for number in range(1, MOST):
        place = Path(shutil.copytree(first, folder / f"at-{number}"))
        code = save_and_die(place, number, again)
        assert code in (0, KILLED), f"the save ended with {code} at operation {number}"
        found = Checkpoints(place, keep=1).recover()
        loaded = Checkpoints(place, keep=1).load()
        step = loaded["index"]
        assert step == found and step in (1, 2) and torch.equal(loaded["policy"]["w"], state(step)["policy"]["w"]), (
            f"killed at operation {number}, step {step} was found, or weights of another"
        )
        Checkpoints(place, keep=1).save(3, state(3), Ranks())
        left = sorted(path.name for path in place.iterdir())
        assert left == ["step-3"], f"killed at operation {number}, {left} is left after the next save"
        shutil.rmtree(place)
        if code == 0:
            return f"{number - 1} operations"
    raise AssertionError(f"a save takes more than {MOST} operations")


def attack(again: bool, folder: Path) -> str:
    """The same in a process without threads, which may be forked."""
    words = [sys.executable, "-m", "tests.attacks.checkpoints", str(folder), *(["again"] if again else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert not done.returncode, (done.stderr.strip().splitlines() or ["it failed"])[-1][-300:]
    return done.stdout.strip()


ATTACKS = [
    Attack("checkpoints", "killed before every file operation of a save", partial(attack, False)),
    Attack("checkpoints", "killed before every file operation of a save over the same step", partial(attack, True)),
]

if __name__ == "__main__":
    sys.stdout.write(f"whole after a kill before each of {killed_at_every_operation('again' in sys.argv, Path(sys.argv[1]))}")
