"""What runs use so that processes get unequal work: prompts, a reward, an environment; and what breaks on process 1 alone.

Which of these breaks the environment variable BREAKS says.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mmrl import Group, Observation, Prompt, Sample, Turn
from mmrl.core.types import Video
from mmrl.runtime.blame import RewardUnavailableError
from tests.support.text_policies import picture
from tests.support.videos import write_video

__all__ = ["Breaking", "Reward", "answer", "breaking", "prompts", "sizes"]
KINDS = ("clip", "text", "both", "picture", "text", "clip", "picture", "text")
SIZES = ((16, 16), (32, 16), (16, 32))


def prompts(folder: str, kinds: Sequence[str] = KINDS, dead: int = 1) -> list[Prompt]:
    """With a clip, a picture or nothing to look at; every second one from the one at `dead` on is dead: equal rewards."""
    clip = Path(folder) / "clip.mp4"
    clip.parent.mkdir(parents=True, exist_ok=True)
    if not clip.exists():
        write_video(clip, [i / 8 for i in range(8)], size=(64, 32))
    media = {"clip": (Video(str(clip)),), "picture": (picture(0),), "both": (picture(1), Video(str(clip))), "text": ()}
    return [
        Prompt(f"{kind}-{i}", "what is it?", media[kind], columns={"dead": i >= dead and (i - dead) % 2 == 0})
        for i, kind in enumerate(kinds)
    ]


def sizes() -> list[Prompt]:
    """For pictures of three sizes: two prompts of the run's own size, and two of each other one."""
    texts = ("a red fox", "two large dogs", "a blue door", "a green hill", "the old mill", "a bowl of rice")
    own: list[dict[str, object]] = [{} if i % 3 == 0 else {"width": SIZES[i % 3][0], "height": SIZES[i % 3][1]} for i in range(6)]
    return [Prompt(str(i), text, columns=columns) for i, (text, columns) in enumerate(zip(texts, own, strict=True))]


class Reward:
    """In [0, 1]; 0 for dead prompts."""

    def __call__(self, group: Group) -> list[float]:
        return [0.0 if group.prompt.columns.get("dead") else score(sample) for sample in group.samples]


def score(sample: Sample) -> float:
    """Of text the share of odd tokens; of pictures and clips the brightness, coarse enough to bear rounding."""
    if sample.image is not None:
        return round(float(np.asarray(sample.image).mean()) / 255, 2)
    if (made := sample.video if sample.video is not None else sample.sound) is not None:
        return round(float(np.abs(np.asarray(made, dtype=float)).mean()) % 1, 2)
    return sum(token % 2 for token in sample.token_ids or ()) / 16


def answer(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """Shows parts of the picture, and ends some samples early; depends on the seed and the number of turns alone."""
    if (seed + len(turns)) % 5 == 0:
        return None
    side = 20 + 10 * (seed % 3)
    return Observation("Look." * (1 + seed % 4), (prompt.media[0].crop((0, 0, side, side)),) if seed % 2 else ())


def breaks(how: str) -> bool:
    return os.environ.get("RANK") == "1" and os.environ.get("BREAKS") == how


def breaking() -> list[Prompt]:
    if breaks("data"):
        raise KeyError("the column of process 1")
    return [Prompt(str(i), "hi") for i in range(8)]


class Breaking:
    """The length, or a reward that is gone for good."""

    def __call__(self, group: Group) -> list[float]:
        if breaks("reward"):
            raise RewardUnavailableError("the judge of process 1 is gone")
        return [float(len(sample.text or "")) for sample in group.samples]
