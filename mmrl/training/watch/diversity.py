"""How different samples are, of one prompt and across prompts: what reward hacking and collapse take away first."""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.core.types import Group, Sample

SIDE = 32
"""Pictures are compared at this many pixels a side: what differs is then what is drawn, not its grain."""


def diversity(groups: Sequence[Group]) -> list[float]:
    """The mean over pairs of pictures of the root mean square difference of colours in [0, 1], of every group with two or more.

    Clips are compared by their middle frames. Other outputs without a picture's interface are not compared.
    """
    drawn = [[small for sample in group.samples if (small := look_of(sample)) is not None] for group in groups]
    return [mean_distance(torch.stack(looks)) for looks in drawn if len(looks) > 1]


def first_pictures(groups: Sequence[Group]) -> list[tuple[str, Tensor]]:
    """Prompt id and small colours of every group's first picture, for `apart`."""
    found = [(group.prompt.id, look_of(group.samples[0])) for group in groups if group.samples]
    return [(prompt, look) for prompt, look in found if look is not None]


def prompt_distance(pictures: Sequence[tuple[str, Tensor]]) -> float | None:
    """Mean distance of pictures of different prompts; None where there are not two, or not of one size.

    It falls towards 0 when every prompt is answered by the same picture.
    """
    kept = dict(pictures)
    if len(kept) < 2 or len({len(picture) for picture in kept.values()}) > 1:
        return None
    return mean_distance(torch.stack(list(kept.values())))


def distinct(groups: Sequence[Group]) -> list[float]:
    """The share of a group's texts that differ from each other (1 = all do), of every group with two or more."""
    texts = [[sample.text for sample in group.samples if sample.text is not None] for group in groups]
    return [len(set(some)) / len(some) for some in texts if len(some) > 1]


def fingerprints(groups: Sequence[Group]) -> list[tuple[str, bytes]]:
    """Prompt id and digest of every text, for `sameness`: light enough to gather from all ranks."""
    return [
        (group.prompt.id, blake2b(sample.text.encode(), digest_size=8).digest())
        for group in groups
        for sample in group.samples
        if sample.text is not None
    ]


def sameness(texts: Sequence[tuple[str, bytes]]) -> float | None:
    """How probable it is that texts drawn for two different prompts are the same; None without two prompts.

    1 when every prompt gets the same answer; a half for a balanced yes or no.
    """
    pairs, alike = len(texts) ** 2, sum(count**2 for count in Counter(text for _, text in texts).values())
    pairs -= sum(count**2 for count in Counter(prompt for prompt, _ in texts).values())
    alike -= sum(count**2 for count in Counter(texts).values())
    return alike / pairs if pairs else None


def look_of(sample: Sample) -> Float[Tensor, " d"] | None:
    """The picture of a sample, or the middle frame of its clip, as small colours; None for other outputs."""
    if hasattr(sample.image, "convert"):
        return thumbnail(sample.image)
    if getattr(sample.video, "ndim", 0) != 4 or not len(sample.video):
        return None
    frame = torch.as_tensor(sample.video[len(sample.video) // 2]).float().permute(2, 0, 1) / 255
    height, width = (min(SIDE, side) for side in frame.shape[1:])
    small = torch.nn.functional.adaptive_avg_pool2d(frame, (height, width))
    return small.permute(1, 2, 0).flatten()


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
