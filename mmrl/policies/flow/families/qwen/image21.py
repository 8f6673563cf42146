"""Qwen-Image-2.1: one stream of tokens that sees words and sources as they are at time 0, pictures with an alpha channel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mmrl.flow.path import Sigmas
from mmrl.flow.sigmas import DynamicShift, Spacing
from mmrl.policies.flow.families.base import EULER, SOURCE, Condition, Conditions, PipelineCall, Times, token_count
from mmrl.policies.flow.families.qwen.image import QwenParts
from mmrl.policies.flow.families.sources import tokens_of
from mmrl.policies.flow.sizes import Grid


@dataclass(frozen=True)
class OwnTable(DynamicShift):
    """A dynamic shift in the float32 of diffusers' scheduler, bit for bit; the formula in float64 differs from it by 1e-7."""

    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The scheduler's config."""
    listed: tuple[float, ...] = ()
    """Sigmas before the shift that its makers give for this many steps; (): none."""

    @classmethod
    def of(cls, shift: DynamicShift, settings: Mapping[str, Any], listed: Sequence[float] = ()) -> "OwnTable":
        """The table of a scheduler whose shift this is."""
        return cls(**{own.name: getattr(shift, own.name) for own in fields(shift)}, settings=settings, listed=tuple(listed))

    def grid(self, num_steps: int) -> Sigmas:
        """The listed sigmas for as many steps, an even grid for others."""
        found = self.listed if len(self.listed) == num_steps else np.linspace(1.0, 1 / num_steps, num_steps)
        return torch.tensor([*found, 0.0], dtype=torch.float64)

    def sigmas(self, grid: Sigmas, image_tokens: int | None = None, num_steps: int | None = None) -> Sigmas:
        """Raises ValueError where DynamicShift does."""
        if image_tokens is None or len(grid) < 3:
            return super().sigmas(grid, image_tokens, num_steps)
        scheduler = getattr(import_module("diffusers"), EULER).from_config(dict(self.settings))
        scheduler.set_timesteps(sigmas=grid[:-1].tolist(), mu=self.mu(image_tokens))
        return scheduler.sigmas


SLOTS = "slots"
"""Which tokens of a text stand for pictures, each for 2 x 2 latents: (tokens), bool."""
MARKS = ("<|image_pad|>", "<|video_pad|>")
LAYERS = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "img_mlp.proj", "img_mlp.gate_layer", "img_mlp.out")


@dataclass(frozen=True)
class QwenImage21(QwenParts):
    """A 7B model that draws, and edits a prompt's pictures, without guidance; above 1 it leads away from a prompt of one space.

    Nothing of a prompt is cut. Pictures are laid on white, as its makers do for its text encoder. A plan of as many steps as the
    model's own list (sample_sigmas in model_index.json) follows that list, others are even.
    """

    sources = (0, 10)
    source_step = 32
    guided_by = "true_cfg_scale"
    one_length = True
    usual_guidance = 1.0
    usual_prompt_tokens = 512
    lora_targets = LAYERS
    empty_prompt = " "
    side_of_token = 1
    own_negatives = True

    @property
    def grid(self) -> Grid:
        """A picture's tokens come in squares of four."""
        return Grid(self.scale * 2)

    def spacing(self) -> Spacing:
        """By the scheduler's own numbers: this network makes 1e-4 of a difference of 1e-7."""
        found = super().spacing()
        if not isinstance(found, DynamicShift):
            return found
        listed = tuple(getattr(self.pipeline.config, "sample_sigmas", None) or ())
        return OwnTable.of(found, self.pipeline.scheduler.config, listed)

    def pipeline_call(self, guidance: float) -> PipelineCall | None:
        """Without a length. Its pictures keep their alpha channel."""
        call = super().pipeline_call(guidance)
        return call if call is None else PipelineCall({k: v for k, v in call.arguments.items() if k != "max_sequence_length"})

    def encode(self, text: str, device: torch.device) -> Condition:
        return self._read(text, None, device)

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        seen = [picture.convert("RGBA") for picture in pictures]
        pixels = [self.pipeline.image_processor.preprocess(picture)[:, :, None] for picture in seen]
        return {**self._read(text, seen, device), SOURCE: tokens_of(self, pixels)}

    def _read(self, text: str, pictures: list[Image.Image] | None, device: torch.device) -> Condition:
        """The last layer before its norm, as the pipeline has it, of the prompt and of one space beside the same pictures.

        Raises ValueError for a text with the mark of a picture, and pictures of which the text encoder makes other tokens.
        """
        for mark in MARKS:
            if mark in text:
                raise ValueError(f"the prompt {text[:40]!r} holds {mark}, which stands for a picture: leave it out")
        found: dict[str, Tensor] = {}
        for name, words in (("", text), ("empty_", self.empty_prompt)):
            embeds, _, slots = self.pipeline.encode_prompt(words, image=pictures, device=device)
            read, wanted = 4 * int(slots.sum()), len(pictures or ()) * self.source_tokens
            if read != wanted:
                raise ValueError(
                    f"the text encoder of {self.settings.model!r} makes {read} tokens of the pictures of {text[:40]!r}, where "
                    f"the transformer has {wanted}, since its processor takes another size: change policy.source_pixels"
                )
            found |= {f"{name}embeds": embeds[0].cpu(), f"{name}{SLOTS}": slots[0].cpu()}
        return found

    def negative(self, condition: Condition) -> Condition:
        return {**condition, "embeds": condition["empty_embeds"], SLOTS: condition[f"empty_{SLOTS}"]}

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        return self._blank(0, dtype)

    def blank_sources(self, count: int) -> Condition:
        """With their places before the words."""
        tokens = torch.zeros(count * self.source_tokens, self.config.in_channels)
        return {**self._blank(len(tokens) // 4, getattr(torch, self.settings.dtype)), SOURCE: tokens}

    def _blank(self, places: int, dtype: torch.dtype) -> Condition:
        embeds = torch.zeros(places + max(1, self.prompt_tokens), self.config.context_in_dim, dtype=dtype)
        slots = torch.arange(len(embeds)) < places
        return {"embeds": embeds, SLOTS: slots, "empty_embeds": embeds, f"empty_{SLOTS}": slots}

    def count_tokens(self, text: str) -> tuple[int, int]:
        """Nothing is cut; the tokens of pictures are not counted."""
        whole = token_count(self.pipeline.processor.tokenizer, self.pipeline.prompt_template_t2i.format(text or " "))
        count = whole - self.pipeline._drop_idx
        return count, count

    def collate(self, conditions: Sequence[Condition], full: bool) -> dict[str, Tensor]:
        """One batch, of prompts of one length, whose pictures have the same places: padding would move them."""
        taken = ("embeds", SLOTS, *([SOURCE] if SOURCE in conditions[0] else []))
        return {name: torch.stack([condition[name] for condition in conditions]) for name in taken}

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        _, h, w = self.latent_shape
        shapes, seen = [(1, h, w)], x
        if SOURCE in prompts:
            width, height = (side // self.scale for side in self.source_size)
            seen = torch.cat([prompts[SOURCE].to(x.dtype), x], 1)
            shapes = [(1, height, width)] * (prompts[SOURCE].shape[1] // self.source_tokens) + shapes
        slots = prompts[SLOTS]
        return transformer(
            hidden_states=seen,
            timestep=timesteps / 1000,
            encoder_hidden_states=prompts["embeds"],
            img_shapes=[shapes] * len(x),
            img_mask=torch.cat([slots, slots.new_ones(len(x), h * w // 4)], 1),
            return_dict=False,
        )[0][:, -x.shape[1] :]

    def decode(self, latents: Float[Tensor, "n ..."]) -> Float[Tensor, "n 3 ..."]:
        """Laid on white."""
        pixels = self.pixels(latents)
        alpha = (pixels[:, 3:] / 2 + 0.5).clamp(0, 1)
        return pixels[:, :3].clamp(-1, 1) * alpha + (1 - alpha)
