"""Pictures and clips of the data in place of drawn ones: encoded by the model's own autoencoder, noised again to train on."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.core.types import Prompt, Request
from mmrl.flow.integrate import Trajectory
from mmrl.flow.layout import generator_of, lay_out
from mmrl.policies.flow.families.base import FlowFamily
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.trace import SigmaTable, trace_of_noised
from mmrl.policies.flow.write.generate import Sampled
from mmrl.policies.shared.pictures import open_picture
from mmrl.policies.video.decode import clip_at, is_clip
from mmrl.runtime.pictures import picture_at
from mmrl.runtime.spans import in_span

Pictures = Callable[[FlowFamily, Sequence[Request]], tuple[Float[Tensor, "n ..."], Sequence[object]]]
"""The latents of the pictures or clips that requests give, and these as they are shown."""


def refuse_given(request: Request, forward: bool, settings: FlowPolicyConfig, with_sound: bool = False) -> None:
    """Raise ValueError for a request of role `injected` whose column shows nothing, or nothing that the policy draws, or in a
    plan that does not noise samples again."""
    name = f"a request for prompt {request.prompt.id!r}"
    if not forward:
        raise ValueError(
            f'{name} gives a picture of the data, which has no noisy steps to train on: set algorithm.schedule.kind = "Forward"'
        )
    if request.text not in request.prompt.columns:
        raise ValueError(
            f"{name} gives {str(request.written)[:40]!r}, which is none of its columns: generators are taught pictures, so take "
            "the planner TaughtPictures or TaughtPairs"
        )
    refuse_other_kind(request.prompt, request.text, settings, with_sound)


def refuse_other_kind(prompt: Prompt, column: str, settings: FlowPolicyConfig, with_sound: bool = False) -> None:
    """Raise ValueError for a picture in this column where the policy draws clips or sounds, or for a clip where it does not.

    `with_sound`: its clips come with their sound, which a file is not read for.
    """
    shows, name = is_clip(prompt.columns[column]), f"prompt {prompt.id!r}"
    what = "a clip" if shows else "a picture"
    if settings.seconds is not None:
        raise ValueError(f"{name} shows {what} in the column {column!r}, and models of sounds cannot be taught: train by rewards")
    if with_sound:
        raise ValueError(
            f"{name} shows {what} in the column {column!r}, and models that draw clips with sound cannot be taught: train "
            "by rewards"
        )
    if shows and settings.frames == 1:
        raise ValueError(
            f"{name} shows a clip in the column {column!r}, but the policy draws pictures: set policy.frames to the frames to "
            "teach, for a model of clips such as Wan, or give pictures"
        )
    if not shows and settings.frames != 1:
        raise ValueError(
            f"{name} shows a picture in the column {column!r}, but the policy draws clips of {settings.frames} frames: give "
            "clips, or set policy.frames = 1"
        )


@in_span("encode")
@torch.no_grad()
def encode_given(family: FlowFamily, requests: Sequence[Request]) -> tuple[Tensor, list[object]]:
    """Pictures and clips at the family's size, their middle where the shape differs, one by one; their latents are drawn by
    request.

    As in diffusers' training scripts a latent is drawn from the autoencoder's distribution, where it has one.

    Raises:
        ValueError: a column holds no picture, or no clip that is long enough.
    """
    vae, found, shown = family.pipeline.vae, list[Tensor](), list[object]()
    frames = (1,) if family.draws_clips or "Qwen" in type(vae).__name__ else ()
    for request in requests:
        source, size = request.prompt.columns[request.text], (family.width, family.height)
        if is_clip(source):
            shown.append(clip := clip_at(source, family.settings.frames, family.fps, size, request.prompt.id))
            pixels = torch.from_numpy(clip).permute(3, 0, 1, 2)[None] / 127.5 - 1
        else:
            shown.append(picture := picture_at(open_picture(source, request.prompt.id), size, "crop"))
            pixels = family.pipeline.image_processor.preprocess(picture).unflatten(1, (3, *frames))
        made = vae.encode(pixels.to(vae.device, vae.dtype))
        if hasattr(made, "latent_dist"):
            mean, deviation = made.latent_dist.mean, made.latent_dist.std
            noise = torch.randn(mean.shape, generator=generator_of(request.seed, request.text, "encoded"))
            found.append((mean + deviation * noise.to(mean)).float())
        else:
            found.append((made.latent if hasattr(made, "latent") else made.latents).float())
    return family.normalize(torch.cat(found)), shown


def picture_samples(
    host: FlowHost, requests: Sequence[Request], sigma_table: SigmaTable, pictures: Pictures = encode_given
) -> Sampled:
    """The pictures or clips of requests as finished samples, one each, noised again as the plan says."""
    family, plan = host.family.at(sigma_table.size), sigma_table.plan
    counts, seeds = [1] * len(requests), [request.seed for request in requests]
    keys = [(seed, 0) for seed in seeds]
    latents, shown = pictures(family, requests)
    conditions = host.encoder([request.prompt for request in requests], host.net.device)
    trace = trace_of_noised(family.pack(latents).cpu(), keys, sigma_table, conditions, torch.arange(len(requests)))
    trajectory = Trajectory(lay_out(plan, counts, seeds), (), (), torch.zeros(len(requests), plan.num_steps))
    return Sampled(requests, keys, trajectory, trace, shown, host.weights.num_updates, family.fps)
