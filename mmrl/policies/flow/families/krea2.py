"""Krea 2: a stack of Qwen3-VL's layers as text, one stream of blocks over text and picture, Qwen-Image's autoencoder."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmrl.flow.sigmas import DynamicShift, Spacing
from mmrl.policies.flow.families.base import Condition, Conditions, Distillable, Times, grid_places, token_count
from mmrl.policies.flow.families.qwen.image import QwenParts

LAYERS = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_gate", "attn.to_out.0", "ff.gate", "ff.up", "ff.down")


@dataclass(frozen=True)
class Krea2(Distillable, QwenParts):
    """Guidance 5.5 is the pipeline's 4.5, which adds 4.5 times the difference; the distilled Turbo has none.

    Adapters that were trained on Raw also work on Turbo, as its makers say. A prompt of 512 tokens has 12 layers of features.
    """

    usual_guidance = 5.5
    usual_prompt_tokens = 512
    lora_targets = LAYERS
    guided_by = "guidance_scale"
    guided_from = 1.0
    called = ("Krea 2", "Krea 2 Raw")

    def spacing(self) -> Spacing:
        """The distilled model has one shift for all sizes."""
        return DynamicShift(1.15, 1.15) if self.is_distilled else super().spacing()

    def encode(self, text: str, device: torch.device) -> Condition:
        """Its tokens alone, (tokens, layers, width): the transformer gives them no places, so padding between them is cut."""
        embeds, mask = self.pipeline.encode_prompt(text, device=device, max_sequence_length=self.prompt_tokens)
        return {"embeds": embeds[0][mask[0]].cpu()}

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        shape = max(1, self.prompt_tokens), self.config.num_text_layers, self.config.text_hidden_dim
        return {"embeds": torch.zeros(shape, dtype=dtype)}

    def count_tokens(self, text: str) -> tuple[int, int]:
        """With the end of the template around the prompt, which counts too."""
        pipeline = self.pipeline
        whole = token_count(pipeline.tokenizer, pipeline.prompt_template_encode_prefix + text)
        around = pipeline.prompt_template_encode_num_suffix_tokens - pipeline.prompt_template_encode_start_idx
        return whole + around, self.prompt_tokens

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        return transformer(
            hidden_states=x,
            encoder_hidden_states=prompts["embeds"],
            timestep=timesteps / 1000,
            position_ids=self._places(prompts["embeds"].shape[1], x),
            encoder_attention_mask=prompts.get("mask"),
            return_dict=False,
        )[0]

    def _places(self, words: int, x: Tensor) -> Float[Tensor, "tokens 3"]:
        """Row and column of every token, behind a 0; words are all at the origin."""
        *_, h, w = self.latent_shape
        return torch.cat([x.new_zeros(words, 3), grid_places(0.0, h // 2, w // 2, x)])
