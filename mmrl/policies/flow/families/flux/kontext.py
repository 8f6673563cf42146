"""FLUX.1-Kontext: FLUX.1 whose prompts hold a picture; its tokens follow those of the noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mmrl.policies.flow.families.base import SOURCE, Condition, Conditions, Times, grid_places
from mmrl.policies.flow.families.flux.flux1 import Flux
from mmrl.policies.flow.families.sources import tokens_of


@dataclass(frozen=True)
class Kontext(Flux):
    """arXiv:2506.15742. One picture per prompt, guidance 2.5. Steps are spaced by the drawn picture's tokens alone.

    Its pipeline brings pictures to one of 17 sizes of a megapixel by itself (`_auto_resize`); here they have `source_size`.
    """

    usual_guidance = 2.5
    tasks = ("edits of one picture",)
    licence = "dev: FLUX.1 dev Non-Commercial"
    licence_read = "makers"
    sources = (1, 1)

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        pixels = map(self.pipeline.image_processor.preprocess, pictures)
        return {**self.encode(text, device), SOURCE: tokens_of(self, pixels)}

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        both = torch.cat([x, prompts[SOURCE].to(x.dtype)], 1)
        return super().velocity(transformer, both, timesteps, prompts, guidance)[:, : x.shape[1]]

    def _places(self, x: Tensor) -> Float[Tensor, "tokens 3"]:
        """Row and column of every token; the first number is 1 for those of the source."""
        width, height = (side // self.scale // 2 for side in self.source_size)
        return torch.cat([super()._places(x), grid_places(1.0, height, width, x)])
