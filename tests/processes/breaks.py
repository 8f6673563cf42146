"""A data set and a reward that break on process 1 alone, in ways that the environment variable BREAKS names."""

import os

from mmrl import Group, Prompt
from mmrl.runtime.blame import RewardUnavailableError

__all__ = ["Reward", "load"]


def broken(how: str) -> bool:
    return os.environ.get("RANK") == "1" and os.environ.get("BREAKS") == how


def load() -> list[Prompt]:
    if broken("data"):
        raise KeyError("the column of process 1")
    return [Prompt(str(i), "hi") for i in range(8)]


class Reward:
    """The length, or a reward that is gone for good."""

    def __call__(self, group: Group) -> list[float]:
        if broken("reward"):
            raise RewardUnavailableError("the judge of process 1 is gone")
        return [float(len(sample.text or "")) for sample in group.samples]
