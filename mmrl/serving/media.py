"""Pictures, frames and sounds of samples, for rewards and, as text, for servers that read JSON. Imports no torch."""

import base64
import io
import itertools
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.core.samples import Group, Prompt, Sample
from mmrl.runtime.pictures import Fit, open_upright, picture_at, upright_rgb
from mmrl.runtime.ranges import is_finite, is_number

PictureFormat = Literal["png", "jpeg"]


def pictures_of(group: Group) -> list[Image.Image]:
    """The group's pictures in RGB, in order; ValueError where a sample has none."""
    found = [sample.image for sample in group.samples]
    if any(not hasattr(picture, "convert") for picture in found):
        raise ValueError(f"a sample of prompt {group.prompt.id!r} has no picture: this reward is for policies that draw")
    return [upright_rgb(picture) for picture in found]


def sources_of(prompt: Prompt, size: tuple[int, int] | None = None, fit: Fit = "resize") -> list[Image.Image]:
    """The pictures that a prompt asks to edit, in RGB, in order.

    Args:
        prompt: whose pictures are paths or PIL images.
        size: (width, height) in pixels to bring them to, such as the edited picture's; None: as they are.
        fit: how, for pictures of another shape; as `policy.source_fit`.

    Raises:
        FileNotFoundError: a picture's file is not there.
        ValueError: the prompt has no pictures, or something else than pictures.
    """
    found = [_at_size(media, prompt, "a picture", size, fit) for media in prompt.media]
    if not found:
        raise ValueError(f"prompt {prompt.id!r} has no picture: this reward is for prompts with a column image")
    return found


def target_of(prompt: Prompt, size: tuple[int, int] | None = None, fit: Fit = "resize") -> Image.Image:
    """The picture in the prompt's column `target`, in RGB; size, fit and errors are those of `sources_of`."""
    if prompt.columns.get("target") is None:
        raise ValueError(f"prompt {prompt.id!r} has no column 'target': this reward is for edits whose result is known")
    return _at_size(prompt.columns["target"], prompt, "column target", size, fit)


def mask_of(prompt: Prompt, size: tuple[int, int] | None = None, fit: Fit = "resize") -> Image.Image | None:
    """The greys of the prompt's column `mask`, white where the first picture may change; None where there is none.

    Raises FileNotFoundError without its file, ValueError for no picture, or one of another size than the prompt's first.
    """
    media = prompt.columns.get("mask")
    if media is None:
        return None
    plain, source = _at_size(media, prompt, "column mask", None, fit), sources_of(prompt)[0]
    if plain.size != source.size:
        raise ValueError(
            f"the mask of prompt {prompt.id!r} is {plain.width} x {plain.height} pixels, but its picture has {source.width} x "
            f"{source.height}: cut them alike"
        )
    return picture_at(plain, size or plain.size, fit).convert("L")


def _at_size(media: object, prompt: Prompt, what: str, size: tuple[int, int] | None, fit: Fit) -> Image.Image:
    picture = open_upright(media, f"prompt {prompt.id!r}: {what}: ")
    return picture_at(picture, size or picture.size, fit)


def clip_of(sample: Sample, prompt_id: str) -> NDArray[np.uint8]:
    """All frames of a sample's clip as bytes (frames, height, width, 3); ValueError without one."""
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

    Raises ValueError where the sample has no video, or not pictures or an array of bytes (frames, height, width, 3).
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
            if str(getattr(array, "dtype", "")) != "uint8" or array.ndim != 3 or array.shape[-1] not in (3, 4):
                raise ValueError(
                    f"the video of a sample of prompt {prompt_id!r} is neither pictures nor bytes (frames, height, width, 3)"
                )
            frame = Image.fromarray(array)
        frames.append(upright_rgb(frame))
    return frames


def data_url(picture: Image.Image, max_side: int = 0, picture_format: PictureFormat = "png", quality: int = 95) -> str:
    """The picture as `data:image/png;base64,...`, its longer side shrunk to at most `max_side` pixels (0 = as it is)."""
    small = upright_rgb(picture, lent=True)
    if max_side and max(small.size) > max_side:
        share = max_side / max(small.size)
        width, height = (max(1, round(side * share)) for side in small.size)
        small = small.resize((width, height), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    small.save(file, picture_format.upper(), **({"quality": quality} if picture_format == "jpeg" else {}))
    return f"data:image/{picture_format};base64,{base64.b64encode(file.getvalue()).decode()}"


Wave = NDArray[np.float32]
"""(samples,) in [-1, 1]."""
FRAME = 0.01
"""Seconds of a frame."""
QUIET = 1e-3
"""A sound whose loudest frame is below counts as silent: 60 dB under full scale."""


def sound_of(sample: Sample, prompt_id: str) -> tuple[Wave, int]:
    """The mean of the channels of a sample's sound (samples,), and its rate.

    ValueError without a sound, or for one that is empty or not finite.
    """
    sound, who = sample.sound, f"the sound of a sample of prompt {prompt_id!r}"
    if sound is None:
        raise ValueError(f"a sample of prompt {prompt_id!r} has no sound: this reward is for policies that make sounds")
    if not isinstance(sound, np.ndarray) or sound.dtype != np.float32 or sound.ndim != 2 or 0 in sound.shape:
        raise ValueError(f"{who} is no array of float32 (channels, samples) with samples in it")
    if not np.isfinite(sound).all():
        raise ValueError(f"{who} holds samples that are no finite numbers: look for latents that grew")
    if not isinstance(sample.rate, int) or sample.rate < 1:
        raise ValueError(f"{who} has the rate {sample.rate!r}: it needs samples per second")
    return sound.mean(0, dtype=np.float32), sample.rate


def loudness(wave: Wave, rate: int) -> NDArray[np.float64]:
    """The root mean square of every frame (frames,); what is left at the end is a shorter one."""
    size = max(1, round(FRAME * rate))
    frames = np.split(wave.astype(np.float64), range(size, len(wave), size))
    return np.array([np.sqrt(np.mean(frame**2)) for frame in frames])


def pair_of(prompt: Prompt, column: str, what: str) -> tuple[float, float]:
    """Two rising numbers in a prompt's column; ValueError where they are none."""
    found = prompt.columns.get(column)
    if found is None:
        raise ValueError(f"prompt {prompt.id!r} has no column {column!r}: give it {what}, or set it in the reward")
    if not isinstance(found, list | tuple) or len(found) != 2 or not all(is_number(one) and is_finite(one) for one in found):
        raise ValueError(f"the column {column} of prompt {prompt.id!r} is {str(found)[:40]!r}: give it {what}")
    low, high = map(float, found)
    if not 0 <= low < high:
        raise ValueError(f"the column {column} of prompt {prompt.id!r} is {low:g} to {high:g}: give it {what}, the smaller first")
    return low, high
