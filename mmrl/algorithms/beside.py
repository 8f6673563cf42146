"""Parts that look at those beside them: for a planner that samples what they credit, a group that can be divided."""

from typing import Protocol

from mmrl.core.protocols import Planner


class Parts(Protocol):
    """The facts of an algorithm that a part in it may ask for."""

    @property
    def planner(self) -> Planner: ...
    @property
    def group_size(self) -> int: ...


def refuse_other_planner(part: object, algorithm: Parts, kind: str, does: str) -> None:
    """Raise ValueError unless the planner is of the kind that the part needs; `does`: what the part does, in a few words."""
    if type(algorithm.planner).__name__ != kind:
        raise ValueError(
            f"{type(part).__name__} {does}, and algorithm.planner is {type(algorithm.planner).__name__}: set "
            f"algorithm.planner.kind = '{kind}'"
        )


class Beside:
    """A part that does not go with every other one. Asked before a model is loaded."""

    def check_beside(self, algorithm: Parts) -> None:
        """Look at the algorithm that it is part of.

        Raises:
            ValueError: they do not go together; names the setting and the remedy.
        """
