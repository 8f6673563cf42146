"""GLM-4.1V: Qwen's patch rows and positions, but clips are pictures in a row to the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mmrl.policies.text.families.base import Core, Media
from mmrl.policies.text.families.qwen_vl import QwenVL, mrope_positions
from mmrl.policies.video.decode import Frames


@dataclass(frozen=True)
class Glm4v(QwenVL):
    """Two frames of a clip become one picture, with the whole second of the first written after it.

    Clips have the placeholder of pictures, so they are kept as pictures; one prompt holds one of both kinds.
    """

    media_keys: frozenset[str] = frozenset({"pixel_values", "image_grid_thw"})
    own_keys: tuple[tuple[str, frozenset[str]], ...] = ()
    mixes_kinds: bool = False
    projector: tuple[str, ...] = ("visual.merger", "visual.downsample")
    box_space: str | None = "norm1000"

    def tidy(self, media: Media) -> Media:
        if "video_grid_thw" in media:
            grids = torch.as_tensor(media["video_grid_thw"])
            frames = grids.repeat_interleave(grids[:, 0], dim=0)
            frames[:, 0] = 1
            media = {"pixel_values": media["pixel_values_videos"], "image_grid_thw": frames}
        return super().tidy(media)

    def placeholders(self, media: Media) -> dict[str, int | None]:
        return {"image": self.num_features(media)}

    @property
    def video_options(self) -> dict[str, Any]:
        """Frames come in their size."""
        return {"do_resize": False}

    def positions(
        self, core: Core, token_ids: Int[Tensor, " p"], type_ids: Tensor | None, media: Media, clips: Sequence[Frames] = ()
    ) -> Int[Tensor, "3 p"]:
        if type_ids is None:
            raise ValueError(f"{self.config.model_type}: the processor gave no mm_token_type_ids, which M-RoPE positions need")
        return mrope_positions(core, token_ids, type_ids.clamp(max=1), media.get("image_grid_thw"))
