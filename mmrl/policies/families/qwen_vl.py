"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patch rows with a grid per picture, and positions on three axes (M-RoPE)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mmrl.policies.families.base import Family, Media

BOX_SPACES = {"qwen2_vl": "norm1000", "qwen2_5_vl": "resized", "qwen3_vl": "norm1000", "qwen3_vl_moe": "norm1000"}


@dataclass(frozen=True)
class QwenVL(Family):
    """pixel_values holds one row per patch, t * h * w of `image_grid_thw` for each picture."""

    media_keys: frozenset[str] = frozenset({"pixel_values", "image_grid_thw"})
    vision: tuple[str, ...] = ("visual",)
    projector: tuple[str, ...] = ("visual.merger", "visual.deepstack_merger_list")
    language: tuple[str, ...] = ("language_model",)

    def entries(self, media: Media) -> int:
        return len(media["image_grid_thw"]) if media else 0

    def num_features(self, media: Media) -> int:
        if not media:
            return 0
        return int(media["image_grid_thw"].prod(1).sum()) // self.config.vision_config.spatial_merge_size**2

    def check_rows(self, media: Media) -> None:
        if media and (told := int(media["image_grid_thw"].prod(1).sum())) != (rows := len(media["pixel_values"])):
            raise ValueError(f"the grids of its pictures speak of {told} patches, pixel_values holds {rows}")

    def positions(self, core: Any, token_ids: Int[Tensor, " p"], type_ids: Tensor | None, media: Media) -> Int[Tensor, "a p"]:
        """Axes time, height, width by the model's own rule; without the token types it would silently fall back to one axis."""
        if type_ids is None:
            raise ValueError(f"{self.config.model_type}: the processor gave no mm_token_type_ids, which M-RoPE positions need")
        return mrope_positions(core, token_ids, type_ids, media.get("image_grid_thw"))

    def seen_sizes(self, sizes: Sequence[tuple[int, int]], media: Media) -> list[tuple[int, int]]:
        patch = self.config.vision_config.patch_size
        return [(int(w) * patch, int(h) * patch) for _, h, w in media["image_grid_thw"].tolist()] if media else []

    def limit_pixels(self, processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
        size = processor.image_processor.size
        low = min_pixels if min_pixels is not None else size["shortest_edge"]
        high = max_pixels if max_pixels is not None else size["longest_edge"]
        if low > high:
            raise ValueError(f"policy.min_pixels ({low}) is larger than policy.max_pixels ({high}): lower one or raise the other")
        # The names are the library's; for this processor they are areas in pixels.
        processor.image_processor.size = {"shortest_edge": low, "longest_edge": high}


def mrope_positions(
    core: Any,
    token_ids: Int[Tensor, " p"],
    type_ids: Int[Tensor, " p"],
    image_grid_thw: Int[Tensor, "pictures 3"] | None = None,
    **videos: Tensor,
) -> Int[Tensor, "3 p"]:
    """Position ids of one row without padding. `core` is the model under the head; types: 0 text, 1 image, 2 video."""
    positions, _ = core.get_rope_index(token_ids[None], mm_token_type_ids=type_ids[None], image_grid_thw=image_grid_thw, **videos)
    return positions[:, 0]


def split_rows_by_grid(grids: Int[Tensor, "pictures 3"], num_images: Sequence[int]) -> list[list[int]]:
    """Which patch rows of pixel_values belong to each sample: `num_images[i]` pictures of t * h * w rows each, in order.

    Raises:
        ValueError: num_images does not add up to the number of grids.
    """
    if sum(num_images) != len(grids):
        raise ValueError(f"num_images adds up to {sum(num_images)} pictures, but there are {len(grids)} grids")
    ends = torch.cat([torch.zeros(1, dtype=torch.long), grids.prod(1).cumsum(0)]).tolist()
    pictures = torch.tensor([0, *num_images]).cumsum(0).tolist()
    return [list(range(ends[a], ends[b])) for a, b in pairwise(pictures)]
