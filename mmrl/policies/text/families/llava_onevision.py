"""LLaVA-OneVision: a lone picture is cut into tiles (anyres), several pictures are seen whole."""

import math
from dataclasses import dataclass

from mmrl.policies.text.families.base import Family, Media


@dataclass(frozen=True)
class LlavaOnevision(Family):
    """pixel_values is (pictures, tiles, 3, h, w); prompts with fewer tiles are padded, and `image_sizes` tells which are real.

    `batch_num_images` must go along: without it the model tiles every picture.
    """

    media_keys: frozenset[str] = frozenset({"pixel_values", "image_sizes", "batch_num_images"})
    vision: tuple[str, ...] = ("vision_tower",)
    projector: tuple[str, ...] = ("multi_modal_projector", "image_newline")
    language: tuple[str, ...] = ("language_model",)

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
