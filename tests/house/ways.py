"""Print the way of one prompt through a rollout, of text and of pictures: `python -m tests.house.ways [--files]`.

The prompt is in a file while a function there runs that was handed it: as an argument, or inside of one (a request, a row, a
list of them). It is followed as the object that it is, and no more once it is tensors alone. Neither `self` counts, nor what a
wrapper passes on as *args. When the function is done, the prompt is back where the caller stands.

A stay is a file in which it is before it goes on to another file; a return is a stay in a file that it had left already; a room
is a folder. `--files` prints every stay. It is no test: it says where a reader has to go.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from mmrl.app.config import run as configs
from mmrl.app.run.build import build
from mmrl.core.types import Prompt, Request
from mmrl.flow.plan import evaluation_plan

ROOT = Path(__file__).parents[2] / "mmrl"
CONFIGS: dict[str, tuple[str, Any]] = {"a text prompt": ("tiny/image", None), "a flow prompt": ("tiny/flow", evaluation_plan(2))}
"""Whose way -> the config of the run, and what its rollout samples by."""
DEPTH = 6


class Way(NamedTuple):
    """The files that a prompt was in, one after the other."""

    files: tuple[str, ...]

    @property
    def rooms(self) -> int:
        return len({Path(file).parent for file in self.files})

    @property
    def returns(self) -> int:
        return len(self.files) - len(set(self.files))


def holds(value: object, prompt: Prompt, depth: int = DEPTH) -> bool:
    """Is the prompt this value, or inside of it?"""
    if value is prompt:
        return True
    if depth == 0 or isinstance(value, str | bytes | torch.Tensor | torch.nn.Module | type):
        return False
    if isinstance(value, Mapping):
        return any(holds(one, prompt, depth - 1) for one in value.values())
    if isinstance(value, Sequence):
        return any(holds(one, prompt, depth - 1) for one in value)
    return is_dataclass(value) and any(holds(getattr(value, one.name, None), prompt, depth - 1) for one in fields(value))


def way_of(prompt: Prompt, work: Callable[[], object]) -> Way:
    """The way of the prompt while `work` runs in this thread."""
    stays, standing = list[str](), list[FrameType]()

    def arrive() -> None:
        file = Path(standing[-1].f_code.co_filename).relative_to(ROOT).as_posix()
        if stays[-1:] != [file]:
            stays.append(file)

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "return" and standing[-1:] == [frame]:
            standing.pop()
            if standing:
                arrive()
        elif event == "call" and Path(frame.f_code.co_filename).is_relative_to(ROOT):
            code = frame.f_code
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(holds(frame.f_locals.get(name), prompt) for name in names if name != "self"):
                standing.append(frame)
                arrive()

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return Way(tuple(stays))


def main(*options: str) -> None:
    torch.set_num_threads(1)
    for name, (config, sampling) in CONFIGS.items():
        job = build(configs.load(config))
        warm, prompt = job.trainer.sampler.draw(2)
        job.policy.rollout([Request(warm, 1, 0)], sampling)
        way = way_of(prompt, partial(job.policy.rollout, [Request(prompt, 1, 1)], sampling))
        files = len(way.files) - way.returns
        print(f"{name}: {len(way.files)} stays in {files} files, {way.rooms} rooms, {way.returns} returns")  # noqa: T201
        if "--files" in options:
            print(*way.files, sep="\n")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
