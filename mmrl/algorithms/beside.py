"""What a part asks of those beside it: a planner that samples what it credits, a group that can be divided."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrl.algorithms.algorithm import Algorithm


class Beside:
    """A part that does not go with every other one. Asked before a model is loaded."""

    def check_beside(self, algorithm: "Algorithm") -> None:
        """Look at the algorithm that it is part of.

        Raises:
            ValueError: they do not go together; names the setting and the remedy.
        """
