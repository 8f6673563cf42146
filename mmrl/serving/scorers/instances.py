"""Objects from the queries of Mask2Former (arXiv:2112.01527), as mmdetection reads them."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

INSIDE = 1e-6
"""Added to the number of pixels of an outline."""


class Instance(NamedTuple):
    """One object: `Instance(15, 0.93, (10.0, 20.0, 110.0, 220.0), mask)`."""

    label: int
    """Its class."""
    score: float
    corners: tuple[float, float, float, float]
    """x1, y1, x2, y2 in pixels; the last row and column of the outline lie inside."""
    mask: NDArray[np.bool_]
    """(height, width) of the picture."""


def instances_of(
    class_logits: Float[Tensor, "q c1"],
    mask_logits: Float[Tensor, "q h w"],
    shown: Bool[Tensor, "y x"],
    size: tuple[int, int],
    threshold: float,
) -> list[Instance]:
    """score = p(class | query) * mean over the outline of sigmoid(mask logit), outline = where the logit is above 0.

    A query may stand for several classes: the q best pairs of all are looked at. Outlines are cut from logits brought to the size
    of the picture, so that they are as sharp as it is.

    Args:
        class_logits: of c classes and, last, of no object.
        mask_logits: of the picture that the model saw.
        shown: where the model's input shows the picture; the rest is padding at its right and lower edge.
        size: (height, width) of the picture.
        threshold: a score must be above it.
    """
    probabilities = class_logits.softmax(-1)[:, :-1]
    best, places = probabilities.flatten().topk(min(len(class_logits), probabilities.numel()))
    # a mean of sigmoids is below 1, so what is no surer than the threshold here will not be surer in the end
    best, places = best[best > threshold], places[best > threshold]
    found: list[Instance] = []
    for probability, place in zip(best.tolist(), places.tolist(), strict=True):
        query, label = divmod(place, probabilities.shape[1])
        logits = at_size(mask_logits[query], shown, size)
        outline = logits > 0
        count = float(outline.sum())
        score = probability * float((logits.sigmoid() * outline).sum()) / (count + INSIDE)
        if count and score > threshold:
            found.append(Instance(label, score, box_around(outline), outline.cpu().numpy()))
    return found


def at_size(logits: Float[Tensor, "h w"], shown: Bool[Tensor, "y x"], size: tuple[int, int]) -> Float[Tensor, "height width"]:
    """Logits of the model's input as logits of the picture: enlarged, freed of the padding, brought to its size."""
    rows, columns = int(shown.any(1).sum()), int(shown.any(0).sum())
    whole = torch.nn.functional.interpolate(logits[None, None], shown.shape, mode="bilinear", align_corners=False)
    return torch.nn.functional.interpolate(whole[..., :rows, :columns], size, mode="bilinear", align_corners=False)[0, 0]


def box_around(outline: Bool[Tensor, "y x"]) -> tuple[float, float, float, float]:
    """The smallest box that holds all of it."""
    rows, columns = outline.any(1).nonzero()[:, 0].tolist(), outline.any(0).nonzero()[:, 0].tolist()
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)
