"""Pictures of the data in place of drawn ones: encoded by the model's own autoencoder, and noised again to train on."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.answers.sources import picture_at
from mmrl.core.types import Request
from mmrl.flow.integrate import Trajectory
from mmrl.flow.layout import generator_of, lay_out
from mmrl.policies.flow.families.base import FlowFamily
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.trace import SigmaTable, trace_of_noised
from mmrl.policies.flow.write.generate import Sampled
from mmrl.policies.shared.pictures import open_picture
from mmrl.runtime.spans import in_span

Pictures = Callable[[FlowFamily, Sequence[Request]], tuple[Float[Tensor, "n ..."], Sequence[object]]]
"""The latents of the pictures that requests give, and the pictures as they are shown."""


def refuse_given(request: Request, forward: bool, frames: int, is_sound: bool = False) -> None:
    """Raise ValueError for a request of role `injected` that names no picture, or in a plan that does not noise samples again."""
    name = f"a request for prompt {request.prompt.id!r}"
    if not forward:
        raise ValueError(
            f'{name} gives a picture of the data, which has no noisy steps to train on: set algorithm.schedule.kind = "Forward"'
        )
    if is_sound:
        raise ValueError(
            f"{name} gives a picture of the data, and the policy draws sounds: take a planner without taught pictures"
        )
    if frames != 1:
        raise ValueError(f"{name} gives a picture, but the policy draws clips of {frames} frames: set policy.frames = 1")
    if not isinstance(request.written, str) or request.written not in request.prompt.columns:
        raise ValueError(
            f"{name} gives {str(request.written)[:40]!r}, which is none of its columns: generators are taught pictures, so take "
            "the planner TaughtPictures or TaughtPairs"
        )


@in_span("encode")
@torch.no_grad()
def encode_given(family: FlowFamily, requests: Sequence[Request]) -> tuple[Tensor, list[object]]:
    """Pictures at the family's size, their middle where the shape differs, one by one; their latents are drawn by request.

    As in diffusers' training scripts a latent is drawn from the autoencoder's distribution, where it has one.

    Raises:
        ValueError: a column holds no picture.
    """
    vae, found, shown = family.pipeline.vae, list[Tensor](), list[object]()
    frames = (1,) if family.draws_clips or "Qwen" in type(vae).__name__ else ()
    for request in requests:
        picture = open_picture(request.prompt.columns[str(request.written)], request.prompt.id)
        picture = picture_at(picture, (family.width, family.height), "crop")
        shown.append(picture)
        pixels: Tensor = family.pipeline.image_processor.preprocess(picture)
        made = vae.encode(pixels.unflatten(1, (3, *frames)).to(vae.device, vae.dtype))
        if hasattr(made, "latent_dist"):
            mean, deviation = made.latent_dist.mean, made.latent_dist.std
            noise = torch.randn(mean.shape, generator=generator_of(request.seed, str(request.written), "encoded"))
            found.append((mean + deviation * noise.to(mean)).float())
        else:
            found.append((made.latent if hasattr(made, "latent") else made.latents).float())
    return family.normalize(torch.cat(found)), shown


def picture_samples(
    host: FlowHost, requests: Sequence[Request], sigma_table: SigmaTable, pictures: Pictures = encode_given
) -> Sampled:
    """The pictures of requests as finished samples, one each, noised again as the plan says."""
    family, plan = host.family.at(sigma_table.size), sigma_table.plan
    counts, seeds = [1] * len(requests), [request.seed for request in requests]
    keys = [(seed, 0) for seed in seeds]
    latents, shown = pictures(family, requests)
    conditions = host.encoder([request.prompt for request in requests], host.net.device)
    trace = trace_of_noised(family.pack(latents).cpu(), keys, sigma_table, conditions, torch.arange(len(requests)))
    trajectory = Trajectory(lay_out(plan, counts, seeds), (), (), torch.zeros(len(requests), plan.num_steps))
    return Sampled(requests, keys, trajectory, trace, shown, host.weights.num_updates)
