"""Models that cut pictures into tiles of one size: SmolVLM and Idefics3, InternVL (transformers' classes), LLaVA-OneVision."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmrl.policies.text.families.base import Core, Family, Media

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


@dataclass(frozen=True)
class InternVL(Family):
    """pixel_values holds one row per tile; every tile gives `image_seq_length` features. A frame of a clip is one tile.

    Frames are numbered and not timed: such a model cannot tell seconds.
    """

    sees: tuple[str, ...] = ("image", "video")

    box_space: str | None = "norm1000"

    def num_features(self, media: Media) -> int:
        return len(media["pixel_values"]) * self.config.image_seq_length if media else 0


@dataclass(frozen=True)
class LlavaOnevision(Family):
    """pixel_values is (pictures, tiles, 3, h, w); prompts with fewer tiles are padded, and `image_sizes` tells which are real.

    `batch_num_images` must go along: without it the model tiles every picture. Clips are (clips, frames, 3, h, w): a quarter of
    the features of each frame, and one newline after the last.
    """

    media_keys: frozenset[str] = frozenset({"pixel_values", "image_sizes", "batch_num_images", "pixel_values_videos"})
    pictures_alone: bool = False
    own_keys: tuple[tuple[str, frozenset[str]], ...] = (("video", frozenset({"pixel_values_videos"})),)
    sees: tuple[str, ...] = ("image", "video")
    projector: tuple[str, ...] = ("multi_modal_projector", "image_newline")

    def placeholders(self, media: Media) -> dict[str, int | None]:
        kinds = self.kinds(media)
        return {"image": self.num_features(kinds.get("image", {})), "video": self.entries(kinds.get("video", {}), "video")}

    def entries(self, media: Media, kind: str = "image") -> int:
        """Clips have an entry per feature, so that those of different lengths stand side by side."""
        if kind == "image":
            return len(media["pixel_values"]) if "pixel_values" in media else 0
        if "pixel_values_videos" not in media:
            return 0
        clips, frames = media["pixel_values_videos"].shape[:2]
        side = self.config.vision_config.image_size // self.config.vision_config.patch_size
        return clips * (frames * math.ceil(side / 2) ** 2 + 1)

    def look(self, core: Core, kind: str, media: Sequence[Media]) -> Any:
        """All frames of all clips as one long clip, whose features are dealt out again, each clip's with its newline."""
        if kind == "image":
            return super().look(core, kind, media)
        clips = [clip for one in media if one for clip in one["pixel_values_videos"]]
        output = core.get_video_features(pixel_values_videos=torch.cat(clips)[None], return_dict=True)
        frames, newline = output.pooler_output[0, :-1], output.pooler_output[0, -1:]
        each = len(frames) // sum(map(len, clips))
        dealt = frames.split([each * len(clip) for clip in clips])
        output.pooler_output = torch.cat([torch.cat([features, newline]) for features in dealt])[:, None]
        return output

    def num_features(self, media: Media) -> int:
        """A lone picture: its whole view, then the tiles without their padding and one newline per row of features."""
        if not media:
            return 0
        side = self.config.vision_config.image_size // self.config.vision_config.patch_size
        if len(media["image_sizes"]) > 1:
            return len(media["image_sizes"]) * (side**2 + 1)
        height, width = media["image_sizes"][0].tolist()
        rows, columns = self._size_without_padding(height, width, side)
        return side**2 + rows * (columns + 1)

    def _size_without_padding(self, height: int, width: int, side: int) -> tuple[int, int]:
        """Rows and columns of features of the tiled view, after cropping the padding and shrinking to the tile limit."""
        from transformers.models.llava_onevision.modeling_llava_onevision import get_anyres_image_grid_shape

        tile = self.config.vision_config.image_size
        rows, columns = (n * side for n in get_anyres_image_grid_shape((height, width), self.config.image_grid_pinpoints, tile))
        if width / height > columns / rows:
            rows -= (rows - int(round(height * columns / width, 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * rows / height, 7))) // 2 * 2
        most = int(self.config.vision_aspect_ratio.removeprefix("anyres_max_"))
        ratio = math.sqrt(rows * columns / (most * side**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else (rows, columns)
