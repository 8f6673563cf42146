"""Pictures and frames of samples, for rewards and, as text, for servers that read JSON. Imports no torch."""

import base64
import io
import itertools
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.core.samples import Group, Sample

PictureFormat = Literal["png", "jpeg"]


def pictures_of(group: Group) -> list[Image.Image]:
    """The group's pictures in RGB, in order.

    Raises:
        ValueError: a sample has none.
    """
    found = [sample.image for sample in group.samples]
    if any(not hasattr(picture, "convert") for picture in found):
        raise ValueError(f"a sample of prompt {group.prompt.id!r} has no picture: this reward is for policies that draw")
    return [picture.convert("RGB") for picture in found]


def clip_of(sample: Sample, prompt_id: str) -> NDArray[np.uint8]:
    """All frames of a sample's clip as bytes (frames, height, width, 3).

    Raises:
        ValueError: the sample has no clip, or one that is neither pictures nor an array of bytes.
    """
    if isinstance(sample.video, np.ndarray) and sample.video.dtype == np.uint8 and sample.video.shape[3:] == (3,):
        return sample.video
    frames = frames_of(sample, len(sample.video) if hasattr(sample.video, "__len__") else 1, prompt_id)
    return np.stack([np.asarray(frame) for frame in frames])


def change_of(clip: NDArray[np.uint8]) -> float:
    """The mean difference of neighbouring frames, as a share of a pixel's range; 0 for a still clip or a single frame."""
    if len(clip) < 2:
        return 0.0
    steps = [np.abs(after.astype(np.int16) - before).mean() for before, after in itertools.pairwise(clip)]
    return float(np.mean(steps)) / 255


def frames_of(sample: Sample, count: int, prompt_id: str) -> list[Image.Image]:
    """At most `count` frames, evenly spread from the first to the last, as pictures in RGB.

    Raises:
        ValueError: the sample has no video, or not pictures or an array of bytes (frames, height, width, 3).
    """
    video = sample.video
    if video is None or not hasattr(video, "__len__") or len(video) == 0:
        raise ValueError(f"a sample of prompt {prompt_id!r} has no video: this reward is for policies that make videos")
    last = len(video) - 1
    places = range(len(video)) if len(video) <= count else [round(i * last / max(count - 1, 1)) for i in range(count)]
    frames: list[Image.Image] = []
    for place in places:
        frame = video[place]
        if not hasattr(frame, "convert"):
            array = frame.numpy() if hasattr(frame, "numpy") else frame
            if str(getattr(array, "dtype", "")) != "uint8" or array.ndim != 3 or array.shape[-1] != 3:
                raise ValueError(
                    f"the video of a sample of prompt {prompt_id!r} is neither pictures nor bytes (frames, height, width, 3)"
                )
            frame = Image.fromarray(array)
        frames.append(frame.convert("RGB"))
    return frames


def data_url(picture: Image.Image, max_side: int = 0, picture_format: PictureFormat = "png") -> str:
    """The picture as `data:image/png;base64,...`, its longer side shrunk to at most `max_side` pixels (0 = as it is)."""
    small = picture.convert("RGB")
    if max_side and max(small.size) > max_side:
        share = max_side / max(small.size)
        width, height = (max(1, round(side * share)) for side in small.size)
        small = small.resize((width, height), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    small.save(file, picture_format.upper(), **({"quality": 95} if picture_format == "jpeg" else {}))
    return f"data:image/{picture_format};base64,{base64.b64encode(file.getvalue()).decode()}"
