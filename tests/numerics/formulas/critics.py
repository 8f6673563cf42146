"""The choice of a method whose value model picks prompts, which nothing runs yet: it stands here with its check."""

from jaxtyping import Float
from torch import Tensor


def nearest_to(values: Float[Tensor, " n"], target: float, count: int) -> list[int]:
    """The places of the `count` values nearest to the target, in their own order; of ties the first (PCL, arXiv:2510.01135).

    There values are what a model expects a group's mean reward to be, and the target is 0.5.
    """
    ranked = sorted(range(len(values)), key=lambda i: (abs(float(values[i]) - target), i))
    return sorted(ranked[:count])
