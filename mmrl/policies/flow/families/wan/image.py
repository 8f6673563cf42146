"""Wan 2.1 and 2.2 from a first frame, which the network sees as further channels, or as the first of the latents."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from mmrl.policies.flow.families.base import SOURCE, Condition, Conditions, Times
from mmrl.policies.flow.families.clips import SEEN, FirstLatent, FromFrame
from mmrl.policies.flow.families.wan.text import Wan

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

    tasks = Wan.tasks
    sources = (0, 1)
    usual_fps = 24.0
