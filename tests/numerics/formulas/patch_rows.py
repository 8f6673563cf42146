"""Patch rows of the samples of a batch, as TRL splits them."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor


def split_rows_by_grid(grids: Int[Tensor, "pictures 3"], num_images: Sequence[int]) -> list[list[int]]:
    """Which patch rows of pixel_values belong to each sample: `num_images[i]` pictures of t * h * w rows each, in order.

    Raises:
        ValueError: num_images does not add up to the number of grids.
    """
    if sum(num_images) != len(grids):
        raise ValueError(f"num_images adds up to {sum(num_images)} pictures, but there are {len(grids)} grids")
    ends = torch.cat([torch.zeros(1, dtype=torch.long), grids.prod(1).cumsum(0)]).tolist()
    pictures = torch.tensor([0, *num_images]).cumsum(0).tolist()
    return [list(range(ends[a], ends[b])) for a, b in pairwise(pictures)]
