"""Print, as JSON, the files of mmrl/ that the warm second step of each config's run enters: CONFIG..."""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

from mmrl.app.config import run as configs
from mmrl.app.run.build import build

ROOT = Path(__file__).parents[3]


def files_of(work: Callable[[], object]) -> list[str]:
    """The files of mmrl/ in which `work` calls a function, in any thread."""
    entered: set[str] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type] - typeshed has no None here
    return sorted(Path(file).relative_to(ROOT).as_posix() for file in entered if Path(file).is_relative_to(ROOT / "mmrl"))


def main(*names: str) -> None:
    torch.set_num_threads(1)
    found: dict[str, list[str]] = {}
    for name in names:
        trainer = build(configs.load(name)).trainer
        trainer.step()
        found[name] = files_of(trainer.step)
    print(json.dumps(found))  # noqa: T201 - the lists are the program's result


if __name__ == "__main__":
    main(*sys.argv[1:])
