"""Gemma 3: a fixed number of tokens per picture; Gemma 4: one that follows its shape, places of patches, timed frames, sounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrl.policies.text.families.base import Core, Family, Media
from mmrl.policies.text.families.generic import COUNTS, Generic


@dataclass(frozen=True)
class Gemma3(Family):
    """pixel_values holds one row per picture (or per crop, where pan and scan is on). Clips come as pictures in a row."""

    sees: tuple[str, ...] = ("image", "video")
    frames_are_pictures: bool = True
    clips_differ: bool = True
    looks_both_ways: bool = True

    def num_features(self, media: Media) -> int:
        return len(media["pixel_values"]) * self.config.mm_tokens_per_image if media else 0


VIDEO_KEYS = frozenset({"pixel_values_videos", "video_position_ids", "num_frames_per_video", COUNTS["video"]})
AUDIO_KEYS = frozenset({"input_features", "input_features_mask", COUNTS["audio"]})


@dataclass(frozen=True)
class Gemma4(Generic):
    """The rule, clips, and sounds where the model has ears (E2B, E4B), 25 tokens a second.

    A frame's time is written as mm:ss before it: of frames within one second a model cannot tell which was first by their times.
    """

    own_keys: tuple[tuple[str, frozenset[str]], ...] = (("video", VIDEO_KEYS), ("audio", AUDIO_KEYS))
    sees: tuple[str, ...] = ("image", "video", "audio")
    clips_differ: bool = True
    vision: tuple[str, ...] = ("vision_tower", "audio_tower")
    projector: tuple[str, ...] = ("embed_vision", "embed_audio")
    longest_sound: float | None = 30.0

    def look(self, core: Core, kind: str, media: Sequence[Media]) -> Any:
        output = super().look(core, kind, media)
        if kind != "audio":
            return output
        heard = zip(output.pooler_output, output.attention_mask, strict=True)
        return type(output)(pooler_output=tuple(features[mask.bool()] for features, mask in heard))


def gemma4(config: Any) -> Gemma4:
    """The family of a config: without an audio tower it takes no sounds."""
    family = Gemma4(config)
    return family if config.audio_config is not None else replace(family, sees=("image", "video"))
