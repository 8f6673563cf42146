"""Prompts with a clip, a picture or nothing to look at, so that processes get unequal work."""

from collections.abc import Sequence
from pathlib import Path

from mmrl.core.types import Prompt, Video
from tests.support.text_policies import picture
from tests.support.videos import write_video

KINDS = ("clip", "text", "both", "picture", "text", "clip", "picture", "text")


def load(folder: str, kinds: Sequence[str] = KINDS, dead: int = 1) -> list[Prompt]:
    """Kinds in a row, and every second prompt from the one at `dead` on is dead: its reward is the same for all samples."""
    clip = Path(folder) / "clip.mp4"
    clip.parent.mkdir(parents=True, exist_ok=True)
    if not clip.exists():
        write_video(clip, [i / 8 for i in range(8)], size=(64, 32))
    media = {"clip": (Video(str(clip)),), "picture": (picture(0),), "both": (picture(1), Video(str(clip))), "text": ()}
    return [
        Prompt(f"{kind}-{i}", "what is it?", media[kind], columns={"dead": i >= dead and (i - dead) % 2 == 0})
        for i, kind in enumerate(kinds)
    ]
