"""FLUX.1-Kontext: FLUX.1 whose prompts hold a picture; its tokens follow those of the noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mmrl.policies.flow.families.base import Condition
from mmrl.policies.flow.families.flux import Flux
from mmrl.policies.flow.families.sources import SOURCE, latents_of, negative_of, with_empty


@dataclass(frozen=True)
class Kontext(Flux):
    """arXiv:2506.15742. One picture per prompt, guidance 2.5. Steps are spaced by the drawn picture's tokens alone.

    Its pipeline brings pictures to one of 17 sizes of a megapixel by itself (`_auto_resize`); here they have `source_size`.
    """

    usual_guidance = 2.5
    own_negatives = True
    sources = (1, 1)

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        vae = self.pipeline.vae
        found = [latents_of(vae, self.pipeline.image_processor.preprocess(picture)) for picture in pictures]
        latents = (torch.cat(found) - (vae.config.shift_factor or 0.0)) * vae.config.scaling_factor
        condition = {**self.encode(text, device), SOURCE: self.pack(latents).flatten(0, 1).cpu()}
        return condition if self.embeds_guidance else condition | with_empty(self.encode(self.empty_prompt, device))

    def negative(self, condition: Condition) -> Condition:
        """The empty prompt beside the same picture; a model that takes the guidance as an input needs none."""
        return negative_of(condition)

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        blank = super().blank_condition(dtype)
        return blank if self.embeds_guidance else {**blank, **with_empty(blank)}

    def velocity(
        self, transformer: nn.Module, x: Tensor, timesteps: Float[Tensor, " n"], prompts: Mapping[str, Tensor], guidance: float
    ) -> Tensor:
        both = torch.cat([x, prompts[SOURCE].to(x.dtype)], 1)
        return super().velocity(transformer, both, timesteps, prompts, guidance)[:, : x.shape[1]]

    def _places(self, x: Tensor) -> Float[Tensor, "tokens 3"]:
        """Row and column of every token; the first number is 1 for those of the source."""
        width, height = self.source_size
        there = [range(side // self.scale // 2) for side in (height, width)]
        sides = (torch.tensor([1.0]), *(torch.tensor(list(side), dtype=torch.float32) for side in there))
        return torch.cat([super()._places(x), torch.cartesian_prod(*sides).view(-1, 3).to(x)])
