"""What a part asks of those beside it: a planner that samples what it credits, a group that can be divided."""

from typing import Protocol

from mmrl.core.protocols import Planner


class Parts(Protocol):
    """What a part may ask of the algorithm that it is in."""

    @property
    def planner(self) -> Planner: ...
    @property
    def group_size(self) -> int: ...


class Beside:
    """A part that does not go with every other one. Asked before a model is loaded."""

    def check_beside(self, algorithm: Parts) -> None:
        """Look at the algorithm that it is part of.

        Raises:
            ValueError: they do not go together; names the setting and the remedy.
        """
