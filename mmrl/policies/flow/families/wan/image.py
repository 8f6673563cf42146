"""Wan 2.1 and 2.2 from a first frame, which the network sees as further channels, or as the first of the latents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mmrl.policies.flow.families.base import SOURCE, Condition, Index
from mmrl.policies.flow.families.sources import latents_of
from mmrl.policies.flow.families.wan.text import Wan
from mmrl.policies.flow.settings import FlowPolicyConfig

SEEN = "seen"
"""What CLIP sees in the first frame, in the Condition of a Wan 2.1."""
CLIP_TOKENS, TEXT_TOKENS = 257, 512
"""Of CLIP ViT-H/14, and the only length of a text beside them: diffusers counts it off to tell both apart."""


@dataclass(frozen=True)
class FromFrame(Wan):
    """A Wan whose prompts hold the first frame of their clip, at the clip's size."""

    @classmethod
    def refuse(cls, index: Index, settings: FlowPolicyConfig) -> None:
        super().refuse(index, settings)
        if settings.source_pixels is not None:
            raise ValueError(
                "policy.source_pixels is set, but a first frame has the size of its clip: leave it out, and change policy.width "
                "and policy.height instead"
            )

    @property
    def source_size(self) -> tuple[int, int]:
        return self.width, self.height

    @property
    def source_tokens(self) -> int:
        """None: a first frame adds channels, or takes the place of noise."""
        return 0

    @torch.no_grad()
    def latents_of_frame(self, picture: Image.Image, frames: int) -> Float[Tensor, "c f h w"]:
        """The latents of a clip that begins with a picture and is grey from there on."""
        pixels = self.pipeline.video_processor.preprocess(picture)[:, :, None]
        grey = pixels.new_zeros(*pixels.shape[:2], frames - 1, *pixels.shape[3:])
        return self.normalize(latents_of(self.pipeline.vae, torch.cat([pixels, grey], 2)))[0].cpu()


@dataclass(frozen=True)
class WanImage(FromFrame):
    """arXiv:2503.20314. One picture per prompt: its latents and a mask of 4 channels, 1 in the first frame, follow the noise's.

    Wan 2.1 also reads the picture through CLIP, at the clip's size. Not supported: a last frame.
    """

    tasks = ("clips from a first frame",)
    sources = (1, 1)

    @classmethod
    def refuse(cls, index: Index, settings: FlowPolicyConfig) -> None:
        super().refuse(index, settings)
        if settings.frames == 1:
            raise ValueError("policy.frames is 1, but this model draws what follows a first frame: set it to 5 or more")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reads_with_clip and self.prompt_tokens != TEXT_TOKENS:
            raise ValueError(
                f"policy.max_prompt_tokens is {self.prompt_tokens}, but a Wan 2.1 that goes on from a first frame counts on "
                f"{TEXT_TOKENS}: leave it out"
            )

    @property
    def reads_with_clip(self) -> bool:
        """Does the network see the first frame through CLIP too?"""
        return self.config.image_dim is not None

    @property
    def text_encoders(self) -> dict[str, nn.Module]:
        """With CLIP, where the model has one."""
        clip = getattr(self.pipeline, "image_encoder", None)
        return super().text_encoders | ({} if clip is None else {"image_encoder": clip})

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        (picture,) = pictures
        found = {**self.encode(text, device), SOURCE: self._channels(self.latents_of_frame(picture, self.settings.frames))}
        if self.reads_with_clip:
            found[SEEN] = self.pipeline.encode_image(picture, device)[0].cpu()
        return found

    def blank_sources(self, count: int) -> Condition:
        found = {SOURCE: self._channels(torch.zeros(self.latent_shape))}
        if self.reads_with_clip:
            found[SEEN] = torch.zeros(CLIP_TOKENS, self.config.image_dim)
        return found

    def velocity(
        self, transformer: nn.Module, x: Tensor, timesteps: Float[Tensor, " n"], prompts: Mapping[str, Tensor], guidance: float
    ) -> Tensor:
        seen = {"encoder_hidden_states_image": prompts[SEEN]} if SEEN in prompts else {}
        return self.ask(transformer, torch.cat([x, prompts[SOURCE].to(x)], 1), timesteps, prompts, **seen)

    def _channels(self, latents: Float[Tensor, "c f h w"]) -> Float[Tensor, "d f h w"]:
        mask = torch.zeros(self.frames_per_latent, *latents.shape[1:])
        mask[:, 0] = 1
        return torch.cat([mask, latents])


@dataclass(frozen=True)
class WanFirstLatent(FromFrame):
    """arXiv:2503.20314, Wan 2.2 5B: every token has its own time. A prompt may hold a picture, whose latent is the first one at
    time 0; guidance 5.

    The velocity there is (x - latent) / sigma, which leads to the picture and hangs on no weight, so ratios of probabilities see
    the other frames alone.
    """

    sources = (0, 1)

    @property
    def fps(self) -> float:
        """24, as its makers save clips."""
        return self.settings.fps or 24.0

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        (picture,) = pictures
        if self.settings.guidance_rule != "family":
            raise ValueError(
                f"policy.guidance_rule is {self.settings.guidance_rule!r}, which would change the first frame that a prompt "
                "holds: leave it out"
            )
        return {**self.encode(text, device), SOURCE: self.latents_of_frame(picture, frames=1)}

    def blank_sources(self, count: int) -> Condition:
        channels, _, *sides = self.latent_shape
        return {SOURCE: torch.zeros(channels, 1, *sides)}

    def velocity(
        self, transformer: nn.Module, x: Tensor, timesteps: Float[Tensor, " n"], prompts: Mapping[str, Tensor], guidance: float
    ) -> Tensor:
        if SOURCE not in prompts:
            return self.ask(transformer, x, timesteps[:, None].expand(-1, self.image_tokens), prompts)
        first = prompts[SOURCE].to(x)
        out = self.ask(transformer, torch.cat([first, x[:, :, 1:]], 2), self.times(timesteps), prompts)
        there = (x[:, :, :1] - first) * 1000 / timesteps.view(-1, 1, 1, 1, 1)
        return torch.cat([there, out[:, :, 1:].to(there)], 2)

    def times(self, timesteps: Float[Tensor, " n"]) -> Float[Tensor, "n tokens"]:
        """0 for the tokens of a first frame, the latents' time for all others."""
        found = timesteps[:, None].repeat(1, self.image_tokens)
        found[:, : self.image_tokens // self.latent_shape[1]] = 0
        return found
