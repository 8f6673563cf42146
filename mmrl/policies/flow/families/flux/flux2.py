"""FLUX.2: three layers of a language model as text, latents drawn in patches, an autoencoder with normalised latents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mmrl.flow.sigmas import EmpiricalShift, Spacing
from mmrl.policies.flow.families.base import (
    ATTENTION,
    SOURCE,
    Condition,
    Conditions,
    Distillable,
    FlowFamily,
    PipelineCall,
    Times,
    token_count,
)
from mmrl.policies.flow.families.sources import tokens_of

FEED_FORWARD = ("ff.linear_in", "ff.linear_out", "ff_context.linear_in", "ff_context.linear_out")
SINGLE = ("attn.to_qkv_mlp_proj",)
"""Of the blocks over all tokens together. Their `attn.to_out` has a name that lists of other blocks have too: it is left out."""


@dataclass(frozen=True)
class Flux2(FlowFamily):
    """FLUX.2-dev: guidance 4 as an input, Mistral's layers 10, 20 and 30 with a system message, always at full length.

    A prompt may hold up to four pictures; steps are spaced by the drawn picture's tokens alone.
    """

    usual_guidance = 4.0
    sources = (0, 4)
    guided_by = "guidance_scale"
    source_least = 64
    usual_prompt_tokens = 512
    lora_targets = ATTENTION + FEED_FORWARD + SINGLE
    read_with = MappingProxyType({"text_encoder_out_layers": (10, 20, 30)})
    side_of_token = 1

    @property
    def scale(self) -> int:
        return self.pipeline.vae_scale_factor * 2

    @property
    def embeds_guidance(self) -> bool:
        return bool(self.config.guidance_embeds)

    def spacing(self) -> Spacing:
        return EmpiricalShift()

    def pipeline_call(self, guidance: float) -> PipelineCall | None:
        call = super().pipeline_call(guidance)
        return None if call is None else PipelineCall({**call.arguments, **self.read_with})

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        width, height = self.source_size
        pixels = [self.pipeline.image_processor.preprocess(picture, height, width) for picture in pictures]
        return {**self.encode(text, device), SOURCE: tokens_of(self, pixels)}

    def count_tokens(self, text: str) -> tuple[int, int]:
        """With the system message and the template around the prompt."""
        turns = [("system", self.pipeline.system_message), ("user", text.replace("[IMG]", ""))]
        messages = [{"role": role, "content": [{"type": "text", "text": words}]} for role, words in turns]
        return self._count(messages, add_generation_prompt=False), self.prompt_tokens

    def _count(self, messages: Sequence[Mapping[str, object]], **settings: object) -> int:
        tokenizer = self.pipeline.tokenizer
        return token_count(tokenizer, tokenizer.apply_chat_template(messages, tokenize=False, **settings))

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        *_, rows, columns = self.latent_shape
        img_ids, seen = places(len(x), 0, rows, columns, 1, x.device), x
        if SOURCE in prompts:
            seen = torch.cat([x, prompts[SOURCE].to(x.dtype)], 1)
            width, height = (side // self.scale for side in self.source_size)
            count = prompts[SOURCE].shape[1] // self.source_tokens
            img_ids = torch.cat([img_ids, *(places(len(x), 10 + 10 * k, height, width, 1, x.device) for k in range(count))], 1)
        return transformer(
            hidden_states=seen,
            timestep=timesteps / 1000,
            guidance=x.new_full((len(x),), guidance) if self.embeds_guidance else None,
            encoder_hidden_states=prompts["embeds"],
            txt_ids=places(len(x), 0, 1, 1, prompts["embeds"].shape[1], x.device),
            img_ids=img_ids,
            return_dict=False,
        )[0][:, : x.shape[1]]

    def normalize(self, latents: Float[Tensor, "n c h w"]) -> Float[Tensor, "n ..."]:
        """In patches of 2 x 2."""
        n, c, h, w = latents.shape
        patches = latents.view(n, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(n, c * 4, h // 2, w // 2)
        mean, deviation = self._norm(patches)
        return (patches - mean) / deviation

    def decode(self, latents: Float[Tensor, "n ..."]) -> Float[Tensor, "n 3 ..."]:
        """The running mean and deviation of the autoencoder's norm take the place of its scale."""
        vae = self.pipeline.vae
        mean, deviation = self._norm(latents)
        scaled = latents * deviation + mean
        n, c, h, w = scaled.shape
        pixels = scaled.view(n, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // 4, 2 * h, 2 * w)
        return vae.decode(pixels, return_dict=False)[0]

    def _norm(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the autoencoder's latents in patches: running statistics of its training."""
        vae = self.pipeline.vae
        mean, variance = (value.view(1, -1, 1, 1).to(latents) for value in (vae.bn.running_mean, vae.bn.running_var))
        return mean, (variance + vae.config.batch_norm_eps).sqrt()


def places(n: int, time: int, rows: int, columns: int, words: int, device: torch.device) -> Tensor:
    """(n, tokens, 4): time, row, column and word of every token."""
    axes = (torch.tensor([time], device=device), *(torch.arange(count, device=device) for count in (rows, columns, words)))
    return torch.cartesian_prod(*axes)[None].expand(n, -1, -1)


@dataclass(frozen=True)
class Flux2Klein(Distillable, Flux2):
    """FLUX.2-klein: Qwen3's layers 9, 18 and 27; base has guidance 4 by a second forward, the distilled one has none."""

    read_with = MappingProxyType({"text_encoder_out_layers": (9, 18, 27)})
    called = ("FLUX.2-klein", "a klein-base model")

    def count_tokens(self, text: str) -> tuple[int, int]:
        """With the chat template around the prompt."""
        messages = [{"role": "user", "content": text}]
        return self._count(messages, add_generation_prompt=True, enable_thinking=False), self.prompt_tokens
