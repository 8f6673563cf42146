"""Qwen-Image and its editors (2509, 2511): a vision-language model reads, prompts differ in length, guidance keeps the norm."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import torch
from jaxtyping import Float
from PIL import Image
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
from mmrl.policies.flow.families.sources import tokens_of

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


READ_PIXELS = 384 * 384
"""Area at which the text encoder reads a picture, unless the transformer's is smaller."""


@dataclass(frozen=True)
class QwenImageEdit(QwenImage):
    """arXiv:2508.02324. One to three pictures per prompt; guidance 4 against a prompt of one space that sees them too.

    Its pipeline brings pictures to a megapixel by itself; here they have `source_size`. Not supported: QwenImageEditPipeline, the
    first of its kind, whose encoder was prompted differently.
    """

    sources = (1, 3)
    usual_prompt_tokens = 1024
    source_step = 32
    own_negatives = True

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        processor = self.pipeline.image_processor
        width, height = self.source_size
        read = import_module(type(self.pipeline).__module__).calculate_dimensions(
            min(READ_PIXELS, width * height), width / height
        )
        seen = [processor.resize(picture, read[1], read[0]) for picture in pictures]
        with_text, without = (
            self.pipeline.encode_prompt(words, image=seen, device=device)[0][0].cpu() for words in (text, self.empty_prompt)
        )
        pixels = [processor.preprocess(picture)[:, :, None] for picture in pictures]
        return {"embeds": with_text, "empty": without, SOURCE: tokens_of(self, pixels)}

    def negative(self, condition: Condition) -> Condition:
        return {**condition, "embeds": condition["empty"]}

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        blank = super().blank_condition(dtype)
        return {**blank, "empty": blank["embeds"]}

    def collate(self, conditions: Sequence[Condition], full: bool) -> dict[str, Tensor]:
        """Raises ValueError where all prompts are to have one length and one is longer."""
        longest = max(len(condition["embeds"]) for condition in conditions)
        if full and longest > self.prompt_tokens:
            raise ValueError(
                f"a prompt has {longest} tokens with its pictures, but policy.max_prompt_tokens is {self.prompt_tokens}: raise "
                "it, or set policy.equal_forwards = false"
            )
        found = super().collate(conditions, full)
        return found | {SOURCE: torch.stack([condition[SOURCE] for condition in conditions])}

    def count_tokens(self, text: str) -> tuple[int, int]:
        """Nothing is cut; the tokens of pictures are not counted."""
        count, _ = super().count_tokens(text)
        return count, count
