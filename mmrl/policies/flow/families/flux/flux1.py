"""FLUX.1: T5 tokens, CLIP's summary, packed latents, (dev) guidance as an input; Kontext, whose prompts hold pictures; Chroma."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mmrl.policies.flow.families.base import (
    ATTENTION,
    ONE_PASS,
    SOURCE,
    Condition,
    Conditions,
    FlowFamily,
    Times,
    grid_places,
    token_count,
)
from mmrl.policies.flow.families.sources import tokens_of
from mmrl.policies.shared.holding import holding

FEED_FORWARD = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")


@dataclass(frozen=True)
class Flux(FlowFamily):
    """Guidance 3.5, embedded in dev. Models without that input (schnell) have none, unless a second pass is asked for."""

    usual_guidance = 3.5
    usual_prompt_tokens = 512
    guided_by = "true_cfg_scale"
    sums_alike = True
    reads = ("embeds", "pooled")
    lora_targets = ATTENTION + FEED_FORWARD

    @property
    def default_guidance(self) -> float:
        return self.usual_guidance if self.embeds_guidance else 1.0

    @property
    def is_distilled(self) -> bool:
        """By its name: a model without that input need not be schnell."""
        return not self.embeds_guidance and "schnell" in str(self.pipeline.config._name_or_path).lower()

    @property
    def embeds_guidance(self) -> bool:
        return self.config.guidance_embeds

    def count_tokens(self, text: str) -> tuple[int, int]:
        return token_count(self.pipeline.tokenizer_2, text), self.prompt_tokens

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        return transformer(
            hidden_states=x,
            timestep=timesteps / 1000,
            guidance=x.new_full((len(x),), guidance) if self.embeds_guidance else None,
            encoder_hidden_states=prompts["embeds"],
            pooled_projections=prompts["pooled"],
            txt_ids=x.new_zeros(prompts["embeds"].shape[1], 3),
            img_ids=self._places(x),
            return_dict=False,
        )[0]

    def _places(self, x: Tensor) -> Float[Tensor, "tokens 3"]:
        """Row and column of every token; the first number is 0 in text-to-image."""
        *_, h, w = self.latent_shape
        return grid_places(0.0, h // 2, w // 2, x)


@dataclass(frozen=True)
class Chroma(Flux):
    """A FLUX.1-schnell without CLIP's summary and with guidance by a second pass: 3, as its makers draw; Flash has none.

    Not supported: Chroma1-Base's own scheduler, whose sigmas follow a beta distribution.
    """

    usual_guidance = 3.0
    guided_by = "guidance_scale"
    sums_alike = False
    reads = ("embeds", "", "mask")
    read_with = ONE_PASS

    @property
    def default_guidance(self) -> float:
        return 1.0 if self.is_distilled else self.usual_guidance

    @property
    def is_distilled(self) -> bool:
        """Known by its name."""
        return "flash" in str(self.pipeline.config._name_or_path).lower()

    @property
    def embeds_guidance(self) -> bool:
        return False

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        blank = super().blank_condition(dtype)
        return {**blank, "mask": torch.ones(len(blank["embeds"]), dtype=dtype)}

    def count_tokens(self, text: str) -> tuple[int, int]:
        return FlowFamily.count_tokens(self, text)

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        # It holds numbers, which diffusers adds to the scores: padding is seen a little, and cannot be cut.
        mask = torch.cat([prompts["mask"], prompts["mask"].new_ones(x.shape[:2])], 1)
        with mask_kept(transformer, mask):
            return transformer(
                hidden_states=x,
                timestep=timesteps / 1000,
                encoder_hidden_states=prompts["embeds"],
                txt_ids=x.new_zeros(prompts["mask"].shape[1], 3),
                img_ids=self._places(x),
                attention_mask=mask,
                return_dict=False,
            )[0]


def mask_kept(transformer: Any, mask: Tensor) -> AbstractContextManager[None]:
    """Give the mask to blocks over all tokens, which diffusers 0.42 calls without it where gradients are checkpointed."""
    if not transformer.gradient_checkpointing:
        return nullcontext()
    plain = transformer._gradient_checkpointing_func

    def call(block: nn.Module, *inputs: Tensor) -> Any:
        return plain(partial(block, attention_mask=mask) if len(inputs) == 3 else block, *inputs)

    return holding([transformer], "_gradient_checkpointing_func", call)


@dataclass(frozen=True)
class Kontext(Flux):
    """arXiv:2506.15742. One picture per prompt, guidance 2.5. Steps are spaced by the drawn picture's tokens alone.

    Its pipeline brings pictures to one of 17 sizes of a megapixel by itself (`_auto_resize`); here they have `source_size`.
    """

    usual_guidance = 2.5
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
