"""Families of clips: latents have a dimension of time, and the first one is a single frame."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mmrl.policies.flow.families.base import FlowFamily


@dataclass(frozen=True)
class ClipFamily(FlowFamily):
    """Latents are (n, c, f, h, w), f = (frames - 1) / frames_per_latent + 1. Raises ValueError for other numbers of frames."""

    draws_clips = True
    packed = False

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
    def frames_per_latent(self) -> int:
        """Frames per latent, but for the first latent, which is one frame."""
        raise NotImplementedError

    @property
    def channels(self) -> int:
        """Channels of the autoencoder's latents."""
        raise NotImplementedError

    @property
    def latent_shape(self) -> tuple[int, ...]:
        latents = (self.settings.frames - 1) // self.frames_per_latent + 1
        return (self.channels, latents, self.height // self.scale, self.width // self.scale)

    @property
    def image_tokens(self) -> int:
        return self.latent_shape[1] * super().image_tokens


def ratio(vae: Mapping[str, Any], name: Literal["spatial", "temporal"]) -> int:
    """Pixels or frames per latent of an LTX-2 autoencoder, as it works them out of this config."""
    found, halves = vae[f"{name}_compression_ratio"], vae["spatio_temporal_scaling"]
    if found is not None:
        return int(found)
    times = halves * (len(vae["layers_per_block"]) - 1) if isinstance(halves, bool) else sum(halves)
    return vae["patch_size" if name == "spatial" else "patch_size_t"] * 2**times
