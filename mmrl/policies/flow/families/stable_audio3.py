"""Stable Audio 3: sounds of a given length, T5Gemma and the length as text, steps even in the logarithm of signal to noise."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmrl.core.types import Prompt
from mmrl.flow.sigmas import LogSnr, Spacing
from mmrl.policies.flow.families.base import Condition, Conditions, FlowFamily, Index, Times, token_count
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.sizes import Grid, Size

TEXT_TOKENS = 256
"""Of every prompt, as the pipeline has it, unless the tokenizer takes fewer; padding has an embedding of its own."""


@dataclass(frozen=True)
class StableAudio3(FlowFamily):
    """Latents are (channels, time), decoded to waves (channels, samples). The length is a token beside the text and shifts
    every block; guidance takes away the words, not the length.

    Not supported: the distilled model, whose scheduler draws noise at every step; continuing and changing given sounds.
    """

    usual_guidance = 7.0
    usual_prompt_tokens = TEXT_TOKENS
    lora_targets = ("to_qkv", "to_q", "to_kv", "to_out")
    idle_modules = ("to_local_embed",)
    told_by = ("duration_embedder",)
    draws_sound = True
    packed = False

    @classmethod
    def refuse(cls, index: Index, settings: FlowPolicyConfig) -> None:
        super().refuse(index, settings)
        if settings.max_prompt_tokens is not None:
            raise ValueError(
                f"policy.max_prompt_tokens is {settings.max_prompt_tokens}, but Stable Audio 3 always reads {TEXT_TOKENS} "
                "tokens: leave it out"
            )

    @classmethod
    def refuse_scheduler(cls, name: str, config: Mapping[str, object]) -> None:
        if config.get("stochastic_sampling"):
            raise ValueError(
                "the model's scheduler draws noise at every step (stochastic_sampling), as that of the distilled Stable Audio 3 "
                "does: take the base model, such as stabilityai/stable-audio-3-medium-base"
            )
        if config.get("use_dynamic_shifting") or config.get("shift", 1.0) != 1.0:
            raise ValueError(
                "the model's scheduler shifts its steps, and those of Stable Audio 3 are even in log-SNR: set shift = 1.0 and "
                "use_dynamic_shifting = false in its scheduler_config.json"
            )
        super().refuse_scheduler(name, config)

    def __post_init__(self) -> None:
        super().__post_init__()
        most, seconds = self.most_seconds, self.seconds
        if int(seconds * self.rate) < 1 or (most is not None and seconds > most):
            raise ValueError(
                f"policy.seconds is {seconds:g}, but this model draws 1 / {self.rate} to {most or math.inf:g} seconds: change it"
            )

    @property
    def most_seconds(self) -> float | None:
        """The longest sound whose length the model can read; None: only the weights' own folder says it."""
        embedder = getattr(self.pipeline, "duration_embedder", None)
        return None if embedder is None else float(embedder.config.max_val)

    @property
    def grid(self) -> Grid:
        """Any size: pictures have one, sounds do not."""
        return Grid(1)

    def size_of(self, prompt: Prompt) -> Size:
        return self.width, self.height

    @property
    def scale(self) -> int:
        """Samples per latent."""
        config = self.pipeline.vae.config
        return int(config.patch_size) * math.prod(config.encoder_strides)

    @property
    def rate(self) -> int:
        return int(self.pipeline.vae.config.sampling_rate)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return int(self.pipeline.vae.config.latent_dim), math.ceil(self.seconds * self.rate / self.scale)

    @property
    def image_tokens(self) -> int:
        return self.latent_shape[1]

    def spacing(self) -> Spacing:
        return LogSnr()

    def encode(self, text: str, device: torch.device) -> Condition:
        """Its tokens and the length's with their mask, and the length alone."""
        pipeline = self.pipeline
        embeds, mask = pipeline.encode_prompt(text, device, 1)
        length = pipeline.encode_duration(self.seconds, device, 1, 1)
        embeds, mask = pipeline.prepare_cross_attention(embeds, mask, length)
        return {"embeds": embeds[0].cpu(), "mask": mask[0].cpu(), "length": length[0].cpu()}

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        tokens, width = self.prompt_tokens + 1, self.config.cond_token_dim
        embeds, length = torch.zeros(tokens, width, dtype=dtype), torch.zeros(self.config.global_cond_dim, dtype=dtype)
        return {"embeds": embeds, "mask": torch.ones(tokens, dtype=torch.long), "length": length}

    def count_tokens(self, text: str) -> tuple[int, int]:
        tokenizer = self.pipeline.tokenizer
        return token_count(tokenizer, text), min(self.prompt_tokens, tokenizer.model_max_length)

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        return transformer(
            x,
            timesteps / 1000,
            encoder_hidden_states=prompts["embeds"],
            global_hidden_states=prompts["length"],
            encoder_attention_mask=prompts["mask"],
            return_dict=False,
        )[0]

    def normalize(self, latents: Float[Tensor, "n c l"]) -> Float[Tensor, "n c l"]:
        return latents

    def decode(self, latents: Float[Tensor, "n c l"]) -> Float[Tensor, "n channels samples"]:
        """Waves, mostly in [-1, 1], cut to the length that was asked for."""
        return self.pipeline.vae.decode(latents).sample[:, :, : int(self.seconds * self.rate)]
