"""FLUX.1-Kontext: FLUX.1 whose prompts hold a picture; its tokens follow those of the noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mmrl.policies.flow.families.base import SOURCE, Condition
from mmrl.policies.flow.families.flux.flux1 import Flux
from mmrl.policies.flow.families.sources import latents_of


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
        vae = self.pipeline.vae
        found = [latents_of(vae, self.pipeline.image_processor.preprocess(picture)) for picture in pictures]
        return {**self.encode(text, device), SOURCE: self.pack(self.normalize(torch.cat(found))).flatten(0, 1).cpu()}

    def velocity(
        self, transformer: nn.Module, x: Tensor, timesteps: Float[Tensor, " n"], prompts: Mapping[str, Tensor], guidance: float
    ) -> Tensor:
        both = torch.cat([x, prompts[SOURCE].to(x.dtype)], 1)
        return super().velocity(transformer, both, timesteps, prompts, guidance)[:, : x.shape[1]]

    def _places(self, x: Tensor) -> Float[Tensor, "tokens 3"]:
        """Row and column of every token; the first number is 1 for those of the source."""
        width, height = self.source_size
        rows, columns = (torch.arange(side // self.scale // 2, device=x.device, dtype=x.dtype) for side in (height, width))
        return torch.cat([super()._places(x), torch.cartesian_prod(x.new_ones(1), rows, columns)])
