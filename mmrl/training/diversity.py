"""How different the pictures of one prompt are: what reward hacking and collapse take away first."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.core.types import Group

SIDE = 32
"""Pictures are compared at this many pixels a side: what differs is then what is drawn, not its grain."""


def diversity(groups: Sequence[Group]) -> list[float]:
    """Of every group with two or more pictures: the mean over pairs of the root mean square difference of colours in [0, 1].

    Outputs without a picture's interface (arrays of a policy of one's own) are not compared.
    """
    drawn = [[sample.image for sample in group.samples if hasattr(sample.image, "convert")] for group in groups]
    return [mean_distance(torch.stack([thumbnail(image) for image in images])) for images in drawn if len(images) > 1]


def thumbnail(image: Any) -> Float[Tensor, " d"]:
    """A PIL image (or anything with its interface) as small colours."""
    import numpy as np

    small = image.convert("RGB").resize((min(SIDE, image.width), min(SIDE, image.height)))
    return torch.from_numpy(np.asarray(small, dtype=np.float32).reshape(-1) / 255)


def mean_distance(x: Float[Tensor, "n d"]) -> float:
    """Mean over pairs of rows of sqrt(mean (a - b)^2)."""
    n = len(x)
    distances = torch.cdist(x.double(), x.double()) / x.shape[1] ** 0.5
    return float(distances.sum()) / (n * (n - 1))
