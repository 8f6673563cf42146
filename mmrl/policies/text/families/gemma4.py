"""Gemma 4: patches with their places, as many tokens as a picture's shape allows, and clips whose frames follow their times."""

from dataclasses import dataclass

from mmrl.policies.text.families.generic import COUNTS, Generic

VIDEO_KEYS = frozenset({"pixel_values_videos", "video_position_ids", "num_frames_per_video", COUNTS["video"]})


@dataclass(frozen=True)
class Gemma4(Generic):
    """The rule, and clips. A frame's time is written as mm:ss before it: of frames within one second a model cannot tell which
    was first by their times."""

    own_keys: tuple[tuple[str, frozenset[str]], ...] = (("video", VIDEO_KEYS),)
    sees: tuple[str, ...] = ("image", "video")
    clips_differ: bool = True
