"""Families of clips: latents have a dimension of time, and the first one is a single frame, which a prompt may hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mmrl.policies.flow.families.base import SOURCE, Condition, Conditions, FlowFamily, Index, Times, moments
from mmrl.policies.flow.families.sources import latents_of
from mmrl.policies.flow.settings import FlowPolicyConfig

SEEN = "seen"
"""What an image encoder sees in the first frame, in a Condition."""


@dataclass(frozen=True)
class ClipFamily(FlowFamily):
    """Latents are (n, c, f, h, w), f = (frames - 1) / frames_per_latent + 1. Raises ValueError for other numbers of frames."""

    draws_clips = True
    packed = False
    usual_fps: ClassVar[float] = 16.0
    """Frames per second at which its makers save clips."""

    def __post_init__(self) -> None:
        super().__post_init__()
        frames, per_latent = self.settings.frames, self.frames_per_latent
        if (frames - 1) % per_latent:
            below = (frames - 1) // per_latent * per_latent + 1
            raise ValueError(
                f"policy.frames is {frames}, but this model draws {per_latent}k + 1 frames: set it to {below} or "
                f"{below + per_latent}"
            )

    @property
    def scale(self) -> int:
        return ratio(self.pipeline.vae.config, "spatial")

    @property
    def frames_per_latent(self) -> int:
        """Frames per latent, but for the first latent, which is one frame."""
        return ratio(self.pipeline.vae.config, "temporal")

    @property
    def patch(self) -> int:
        sides = self.config.patch_size
        return int(sides if isinstance(sides, int) else sides[1])

    @property
    def fps(self) -> float:
        return self.settings.fps or self.usual_fps

    @property
    def channels(self) -> int:
        """Channels of the autoencoder's latents."""
        return int(self.config.in_channels)

    @property
    def clip_shape(self) -> tuple[int, ...]:
        """Channels, frames, rows and columns of a clip's latents."""
        latents = (self.settings.frames - 1) // self.frames_per_latent + 1
        return (self.channels, latents, self.height // self.scale, self.width // self.scale)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return self.clip_shape

    @property
    def image_tokens(self) -> int:
        return self.latent_shape[1] * super().image_tokens

    def normalize(self, latents: Float[Tensor, "n c f h w"]) -> Float[Tensor, "n c f h w"]:
        """Mean 0 and deviation 1 by channel."""
        mean, std = moments(self.pipeline.vae, latents)
        return (latents - mean) / std

    def decode(self, latents: Float[Tensor, "n c f h w"]) -> Float[Tensor, "n 3 frames y x"]:
        mean, std = moments(self.pipeline.vae, latents)
        return self.pipeline.vae.decode(latents * std + mean, return_dict=False)[0]


@dataclass(frozen=True)
class FromFrame(ClipFamily):
    """A model whose prompts hold the first frame of their clip, at the clip's size."""

    sources = (1, 1)

    @classmethod
    def refuse(cls, index: Index, settings: FlowPolicyConfig) -> None:
        super().refuse(index, settings)
        if settings.source_pixels is not None:
            raise ValueError(
                "policy.source_pixels is set, but a first frame has the size of its clip: leave it out, and change policy.width "
                "and policy.height instead"
            )
        if settings.frames == 1 and cls.sources[0]:
            raise ValueError("policy.frames is 1, but this model draws what follows a first frame: set it to 5 or more")

    @property
    def text_encoders(self) -> dict[str, nn.Module]:
        """With the encoder that looks at the first frame, where the model has one."""
        eye = getattr(self.pipeline, "image_encoder", None)
        return super().text_encoders | ({} if eye is None else {"image_encoder": eye})

    @property
    def source_size(self) -> tuple[int, int]:
        return self.width, self.height

    @property
    def source_tokens(self) -> int:
        """None: a first frame adds channels, or takes the place of noise."""
        return 0

    @torch.no_grad()
    def latents_of_frame(self, picture: Image.Image, grey: int = 0) -> Float[Tensor, "c f h w"]:
        """The latents of a clip that begins with a picture, which `grey` frames follow."""
        pixels = self.pipeline.video_processor.preprocess(picture)[:, :, None]
        rest = pixels.new_zeros(*pixels.shape[:2], grey, *pixels.shape[3:])
        return self.normalize(latents_of(self.pipeline.vae, torch.cat([pixels, rest], 2)))[0].cpu()


@dataclass(frozen=True)
class FirstLatent(FromFrame):
    """Every token has its own time: a picture's latent is the first one, at time 0.

    The velocity there is (x - latent) / sigma, which leads to the picture and hangs on no weight, so ratios of probabilities see
    the other frames alone.
    """

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        (picture,) = pictures
        if self.settings.guidance_rule != "family":
            raise ValueError(
                f"policy.guidance_rule is {self.settings.guidance_rule!r}, which would change the first frame that a prompt "
                "holds: leave it out"
            )
        return {**self.encode(text, device), SOURCE: self.latents_of_frame(picture)}

    def blank_sources(self, count: int) -> Condition:
        channels, _, *sides = self.clip_shape
        return {SOURCE: torch.zeros(channels, 1, *sides)}

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        if SOURCE not in prompts:
            return self.ask(transformer, x, timesteps[:, None].expand(-1, self.image_tokens), prompts)
        first = prompts[SOURCE].to(x)
        out = self.ask(transformer, torch.cat([first, x[:, :, 1:]], 2), self.times(timesteps), prompts)
        return self.to_first(x, first, out, timesteps)

    def to_first(
        self, x: Float[Tensor, "n c f h w"], first: Float[Tensor, "n c 1 h w"], out: Tensor, timesteps: Float[Tensor, " n"]
    ) -> Float[Tensor, "n c f h w"]:
        """The network's velocity, but for the first latent, which is led to the picture's."""
        there = (x[:, :, :1] - first) * 1000 / timesteps.view(-1, 1, 1, 1, 1)
        return torch.cat([there, out[:, :, 1:].to(there)], 2)

    def times(self, timesteps: Float[Tensor, " n"]) -> Float[Tensor, "n tokens"]:
        """0 for the tokens of a first frame, the latents' time for all others."""
        found = timesteps[:, None].repeat(1, self.image_tokens)
        found[:, : self.image_tokens // self.clip_shape[1]] = 0
        return found


def ratio(vae: Mapping[str, Any], name: Literal["spatial", "temporal"]) -> int:
    """Pixels or frames per latent of an autoencoder with this config; that of LTX-2 works them out where it says none."""
    found = vae.get(f"scale_factor_{name}") or vae.get(f"{name}_compression_ratio")
    if found:
        return int(found)
    halves = vae["spatio_temporal_scaling"]
    times = halves * (len(vae["layers_per_block"]) - 1) if isinstance(halves, bool) else sum(halves)
    return vae["patch_size" if name == "spatial" else "patch_size_t"] * 2**times
