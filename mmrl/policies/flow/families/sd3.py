"""Stable Diffusion 3 and 3.5: two CLIP encoders, perhaps T5, and latents that the transformer cuts into patches itself."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from mmrl.flow.sigmas import Spacing
from mmrl.policies.flow.families.base import ATTENTION, ONE_PASS, Condition, Conditions, FlowFamily, Times, token_count
from mmrl.policies.flow.sizes import Grid


@dataclass(frozen=True)
class StableDiffusion3(FlowFamily):
    """arXiv:2403.03206. Guidance 4.5 as in Flow-GRPO. Not supported: skipping layers for guidance, image prompts."""

    usual_guidance = 4.5
    usual_prompt_tokens = 256
    lora_targets = ATTENTION
    guided_by = "guidance_scale"
    sums_alike = True
    lists_steps = False
    packed = False
    reads = ("embeds", "", "pooled")
    read_with = MappingProxyType({"prompt_2": None, "prompt_3": None, **ONE_PASS})

    @property
    def grid(self) -> Grid:
        """The largest picture that its positions reach."""
        return Grid(self.scale * self.patch, self.config.pos_embed_max_size * self.patch * self.scale)

    @property
    def patch(self) -> int:
        return self.config.patch_size

    def spacing(self) -> Spacing:
        """Raises ValueError for a scheduler that shifts by picture size: the pipeline then uses a grid of its own."""
        if self.pipeline.scheduler.config.use_dynamic_shifting:
            raise ValueError(
                "this Stable Diffusion 3 spaces its steps by picture size, which is not known here: set schedule.spacing"
            )
        return super().spacing()

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        """With the tokens of CLIP before those of T5."""
        plain = super().blank_condition(dtype)
        tokens = self.pipeline.encoder_configs["text_encoder"].max_position_embeddings + len(plain["embeds"])
        return {**plain, "embeds": torch.zeros(tokens, plain["embeds"].shape[1], dtype=dtype)}

    def count_tokens(self, text: str) -> tuple[int, int]:
        """T5's, or CLIP's where there is none."""
        if self.pipeline.text_encoder_3 is not None:
            return token_count(self.pipeline.tokenizer_3, text), self.prompt_tokens
        return token_count(self.pipeline.tokenizer, text), self.pipeline.tokenizer_max_length

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        return transformer(
            hidden_states=x,
            timestep=timesteps,
            encoder_hidden_states=prompts["embeds"],
            pooled_projections=prompts["pooled"],
            return_dict=False,
        )[0]
