"""SmolVLM and Idefics3: tiles of one size, each with a mask of its real pixels, and one view of the whole picture."""

from dataclasses import dataclass

from mmrl.policies.text.families.base import Family, Media

NOT_PADDING = 1e-8


@dataclass(frozen=True)
class Idefics(Family):
    """The processor's (1, tiles, 3, h, w), of clips (clips, frames, 3, h, w), becomes (tiles, 1, 3, h, w): prompts then
    concatenate without padding tiles.

    SmolVLM sees the frames of a clip as pictures, each after its time; Idefics3 takes no clips.
    """

    media_keys: frozenset[str] = frozenset({"pixel_values", "pixel_attention_mask"})
    mixes_kinds: bool = False

    def tidy(self, media: Media) -> Media:
        media = {key: value.flatten(0, 1)[:, None] for key, value in super().tidy(media).items()}
        if media:
            # The model takes a tile of zeros for padding and drops it; a real picture of that grey must stay.
            grey = (media["pixel_values"] == 0).flatten(1).all(1)
            media["pixel_values"] = media["pixel_values"].clone()
            media["pixel_values"][grey, 0, 0, 0, 0] = NOT_PADDING
        return media

    def num_features(self, media: Media) -> int:
        if not media:
            return 0
        vision = self.config.vision_config
        per_tile = (vision.image_size // vision.patch_size) ** 2 // self.config.scale_factor**2
        return len(media["pixel_values"]) * per_tile


@dataclass(frozen=True)
class SmolVLM(Idefics):
    """Sees clips."""

    sees: tuple[str, ...] = ("image", "video")
