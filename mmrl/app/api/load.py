"""`mmrl.load_data` and `mmrl.load_reward`: shipped plug-ins, and your own, as Python objects."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mmrl.app.config.plug_ins import read_data, reward_of
from mmrl.app.config.run import DataConfig
from mmrl.app.run.build import load_prompts
from mmrl.app.toml.tables import Table
from mmrl.core.samples import Prompt


def load_data(use: str, **settings: object) -> Sequence[Prompt] | Iterable[Prompt]:
    """The prompts of a data set, checked for rows that cannot be trained on: `mmrl.load_data("prompts", path="a.txt")`.

    Args:
        use: a name from `mmrl ls datasets`, or `./mine.py[:function]`.
        settings: arguments of its `load`; `mmrl show NAME` lists them.

    Raises:
        FileNotFoundError: no such plug-in file, or no data.
        ValueError: a setting that it does not know, or prompts that cannot be trained on, listed by file and row.
    """
    table = Table.of({"data": {"use": use, **settings}}, "mmrl.load_data")
    return load_prompts(read_data(DataConfig(use, settings), ("data",), table), use)


def load_reward(use: str, **settings: object) -> Callable[..., Any]:
    """A reward as a function from a group to one score per sample: `mmrl.load_reward("iou", threshold=0.5)`.

    A reward that reads boxes and has no `space` set gets it from the policy, in `mmrl.fit` and `mmrl.evaluate` only.

    Args:
        use: a name from `mmrl ls rewards`, `./mine.py[:Callable]`, or the address of a served reward.
        settings: its own settings; `mmrl show NAME` lists them.

    Raises:
        FileNotFoundError: no such plug-in file.
        ValueError: no such reward, or a setting that it does not know.
    """
    table = Table.of({"reward": {"use": use, **settings}}, "mmrl.load_reward")
    return reward_of(use, settings, ("reward",), table)()
