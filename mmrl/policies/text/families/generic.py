"""Models without a family of their own: batched by the tensors' names, refused when a name is unknown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from mmrl.policies.text.families.base import Family, Media
from mmrl.policies.text.families.qwen_vl import mrope_positions
from mmrl.policies.video.decode import Frames


@dataclass(frozen=True)
class Generic(Family):
    """One row of pixel_values per picture or patch. Boxes: declare policy.box_space.

    How many features a picture gives is unknown: the model checks that itself, and the vision tower runs once per row.
    """

    media_keys: frozenset[str] = frozenset({"pixel_values", "image_grid_thw", "image_sizes"})
    looks_both_ways: bool = True

    def entries(self, media: Media, kind: str = "image") -> None:
        return None

    def num_features(self, media: Media) -> int | None:
        return None if media else 0

    def positions(
        self, core: Any, token_ids: Int[Tensor, " p"], type_ids: Tensor | None, media: Media, clips: Sequence[Frames] = ()
    ) -> Int[Tensor, "a p"]:
        if hasattr(core, "get_rope_index") and type_ids is not None:
            return mrope_positions(core, token_ids, type_ids, media.get("image_grid_thw"))
        return super().positions(core, token_ids, type_ids, media)
