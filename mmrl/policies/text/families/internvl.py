"""InternVL (transformers' own classes): square tiles, and a thumbnail where a picture has several."""

from dataclasses import dataclass

from mmrl.policies.text.families.base import Family, Media


@dataclass(frozen=True)
class InternVL(Family):
    """pixel_values holds one row per tile; every tile gives `image_seq_length` features. A frame of a clip is one tile.

    Frames are numbered and not timed: such a model cannot tell seconds.
    """

    sees: tuple[str, ...] = ("image", "video")

    box_space: str | None = "norm1000"

    def num_features(self, media: Media) -> int:
        return len(media["pixel_values"]) * self.config.image_seq_length if media else 0
