"""Qwen-Image: a vision-language model as text encoder, prompts of different length, guidance that keeps the norm."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmrl.policies.flow.families.base import (
    ATTENTION,
    SOURCE,
    Condition,
    Conditions,
    FlowFamily,
    Times,
    moments,
    side_by_side,
    token_count,
)

FEED_FORWARD = ("img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2")


@dataclass(frozen=True)
class QwenParts(FlowFamily):
    """Qwen-Image's texts of different length and its autoencoder, which is a video's; images have one frame."""

    def collate(self, conditions: Sequence[Condition], full: bool) -> dict[str, Tensor]:
        """Padded at the end, with a mask that is True at tokens where that is not everywhere."""
        padded, mask = side_by_side([one["embeds"] for one in conditions], self.prompt_tokens if full else None)
        whole = min(len(one["embeds"]) for one in conditions) == padded.shape[1]
        return {"embeds": padded} if whole else {"embeds": padded, "mask": mask}

    def normalize(self, latents: Float[Tensor, "n c 1 h w"]) -> Float[Tensor, "n c h w"]:
        mean, std = moments(self.pipeline.vae, latents)
        return ((latents - mean) / std)[:, :, 0]

    def decode(self, latents: Float[Tensor, "n ..."]) -> Float[Tensor, "n 3 ..."]:
        return self.pixels(latents)

    def pixels(self, latents: Float[Tensor, "n ..."]) -> Float[Tensor, "n colours y x"]:
        """With all the colours that the autoencoder has."""
        mean, std = moments(self.pipeline.vae, latents)
        return self.pipeline.vae.decode((latents * std + mean)[:, :, None], return_dict=False)[0][:, :, 0]


@dataclass(frozen=True)
class QwenImage(QwenParts):
    """arXiv:2508.02324. Guidance 4 against a prompt of one space. Not supported: variants that embed the guidance."""

    licence = "Apache-2.0"
    licence_read = "makers"
    usual_guidance = 4.0
    usual_prompt_tokens = 512
    lora_targets = ATTENTION + FEED_FORWARD
    guided_by = "true_cfg_scale"
    dead_ends = ("attn.to_add_out", "txt_mlp")
    empty_prompt = " "
    keep_norm = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.config.guidance_embeds:
            raise ValueError(
                "policy.model is a Qwen-Image that takes the guidance as an input, which would get none here: take the "
                "model without guidance_embeds"
            )

    def encode(self, text: str, device: torch.device) -> Condition:
        embeds, _ = self.pipeline.encode_prompt(text, device=device, max_sequence_length=self.prompt_tokens)
        return {"embeds": embeds[0].cpu()}

    def count_tokens(self, text: str) -> tuple[int, int]:
        """With the end of the template around the prompt, which counts too."""
        whole = token_count(self.pipeline.tokenizer, self.pipeline.prompt_template_encode.format(text))
        return whole - self.pipeline.prompt_template_encode_start_idx, self.prompt_tokens

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        """A prompt's pictures follow the noise, and are left out of what is answered."""
        *_, h, w = self.latent_shape
        shapes, seen = [(1, h // 2, w // 2)], x
        if SOURCE in prompts:
            width, height = (side // self.scale // 2 for side in self.source_size)
            shapes += [(1, height, width)] * (prompts[SOURCE].shape[1] // self.source_tokens)
            seen = torch.cat([x, prompts[SOURCE].to(x.dtype)], 1)
        return transformer(
            hidden_states=seen,
            timestep=timesteps / 1000,
            encoder_hidden_states=prompts["embeds"],
            encoder_hidden_states_mask=prompts.get("mask"),
            img_shapes=[shapes] * len(x),
            return_dict=False,
        )[0][:, : x.shape[1]]
