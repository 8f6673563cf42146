"""Gemma 3: a fixed number of tokens per picture, which see each other in both directions."""

from dataclasses import dataclass

from mmrl.policies.text.families.base import Family, Media


@dataclass(frozen=True)
class Gemma3(Family):
    """pixel_values holds one row per picture (or per crop, where pan and scan is on). Clips come as pictures in a row."""

    sees: tuple[str, ...] = ("image", "video")
    frames_are_pictures: bool = True
    clips_differ: bool = True
    looks_both_ways: bool = True

    def num_features(self, media: Media) -> int:
        return len(media["pixel_values"]) * self.config.mm_tokens_per_image if media else 0
