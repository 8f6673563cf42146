"""Wan 2.1 and 2.2: UMT5's tokens, latents with a dimension of time, two networks in one; from words, or from a first frame."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, distributed, nn

from mmrl.policies.flow.families.base import EULER, ONE_PASS, SOURCE, Condition, Conditions, Times
from mmrl.policies.flow.families.clips import SEEN, ClipFamily, FirstLatent, FromFrame


class Experts(nn.Module):
    """v(x, t) = early(x, t) where t >= boundary, else late(x, t), row by row (Wan 2.2 A14B)."""

    def __init__(self, early: nn.Module, late: nn.Module, boundary: float) -> None:
        super().__init__()
        self.early, self.late, self.boundary = early, late, boundary
        # accelerate looks here for the layers it may shard.
        self._no_split_modules = getattr(early, "_no_split_modules", None)

    def forward(
        self,
        hidden_states: Float[Tensor, "n c f h w"],
        timestep: Float[Tensor, " n"],
        encoder_hidden_states: Float[Tensor, "n t d"],
        return_dict: bool = False,
    ) -> tuple[Float[Tensor, "n v f h w"]]:
        """The velocity of every row, by the expert of its time (1000 = noise); channels of a first frame have none."""
        is_early = timestep >= self.boundary
        parts: list[Tensor] = []
        places: list[Tensor] = []
        idle = hidden_states.new_zeros(())
        for network, chosen in ((self.early, is_early), (self.late, ~is_early)):
            rows = chosen.nonzero()[:, 0]
            if len(rows):
                parts.append(network(hidden_states[rows], timestep[rows], encoder_hidden_states[rows], return_dict=False)[0])
                places.append(rows)
            elif distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
                # Processes that share weights or gradients wait for each other in every network, with rows or without.
                one = network(hidden_states[:1], timestep[:1], encoder_hidden_states[:1], return_dict=False)[0]
                idle = idle + 0 * one.sum()
        order = torch.cat(places).argsort()
        return (torch.cat(parts)[order] + idle.to(parts[0].dtype),)


ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
FEED_FORWARD = ("ffn.net.0.proj", "ffn.net.2")


@dataclass(frozen=True)
class Wan(ClipFamily):
    """arXiv:2503.20314. Guidance 5 against the empty prompt. Latents are (n, c, f, h, w), f = (frames - 1) / 4 + 1.

    Wan 2.2 A14B has two networks, each with an adapter: one draws while the time is above `boundary_ratio`, the other one from
    there on; the usual guidance is 4, and policy.guidance_low = 3 below. Not supported: the negative prompt of Wan's own
    demonstration.
    """

    usual_guidance = 5.0
    usual_prompt_tokens = 512
    lora_targets = ATTENTION + FEED_FORWARD
    read_with = ONE_PASS
    text_width = "text_dim"
    lists_steps = False
    networks = ("transformer", "transformer_2")
    schedulers = frozenset({EULER, "UniPCMultistepScheduler"})

    @property
    def network(self) -> nn.Module:
        """The network, or both experts as one module."""
        found = list(self.trained.values())
        return found[0] if self.boundary is None else Experts(found[0], found[1], self.boundary)

    def split(self, network: nn.Module) -> dict[str, nn.Module]:
        return dict(
            zip(self.networks, [network.early, network.late] if isinstance(network, Experts) else [network], strict=False)
        )

    @property
    def boundary(self) -> float | None:
        # repositories of Wan 2.1 are older than both keys, and a dry run has only what their files say
        ratio = getattr(self.pipeline.config, "boundary_ratio", None)
        return None if ratio is None else ratio * self.pipeline.scheduler.config.num_train_timesteps

    @property
    def channels(self) -> int:
        return int(self.pipeline.vae.config.z_dim)

    @property
    def default_guidance(self) -> float:
        return self.usual_guidance if self.boundary is None else 4.0

    def ask(self, transformer: nn.Module, x: Tensor, times: Tensor, prompts: Conditions, **more: Tensor) -> Tensor:
        return transformer(hidden_states=x, timestep=times, encoder_hidden_states=prompts["embeds"], return_dict=False, **more)[0]


CLIP_TOKENS, TEXT_TOKENS = 257, 512
"""Of CLIP ViT-H/14, and the only length of a text beside them: diffusers counts it off to tell both apart."""


@dataclass(frozen=True)
class WanImage(FromFrame, Wan):
    """arXiv:2503.20314. One picture per prompt: its latents and a mask of 4 channels, 1 in the first frame, follow the noise's.

    Wan 2.1 also reads the picture through CLIP, at the clip's size. Not supported: a last frame.
    """

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

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        (picture,) = pictures
        found = {**self.encode(text, device), SOURCE: self._channels(self.latents_of_frame(picture, self.settings.frames - 1))}
        if self.reads_with_clip:
            found[SEEN] = self.pipeline.encode_image(picture, device)[0].cpu()
        return found

    def blank_sources(self, count: int) -> Condition:
        found = {SOURCE: self._channels(torch.zeros(self.latent_shape))}
        if self.reads_with_clip:
            found[SEEN] = torch.zeros(CLIP_TOKENS, self.config.image_dim)
        return found

    def velocity(self, transformer: nn.Module, x: Tensor, timesteps: Times, prompts: Conditions, guidance: float) -> Tensor:
        seen = {"encoder_hidden_states_image": prompts[SEEN]} if SEEN in prompts else {}
        return self.ask(transformer, torch.cat([x, prompts[SOURCE].to(x)], 1), timesteps, prompts, **seen)

    def _channels(self, latents: Float[Tensor, "c f h w"]) -> Float[Tensor, "d f h w"]:
        mask = torch.zeros(self.frames_per_latent, *latents.shape[1:])
        mask[:, 0] = 1
        return torch.cat([mask, latents])


@dataclass(frozen=True)
class WanFirstLatent(FirstLatent, Wan):
    """arXiv:2503.20314, Wan 2.2 5B: a prompt may hold a picture; guidance 5."""

    sources = (0, 1)
    usual_fps = 24.0
