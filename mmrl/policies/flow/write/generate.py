"""Sampling images: noise is integrated along a plan, under the weights as they are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Group, Prompt, Request, Rollouts, Sample
from mmrl.flow.integrate import Trajectory, integrate
from mmrl.flow.layout import Layout, SeededNoise, lay_out, surrogate_steps
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.net import send_home
from mmrl.policies.flow.sizes import Size
from mmrl.policies.flow.trace import FlowTrace, NoisyLatents, SigmaTable, join, trace_of_noised, trace_of_steps
from mmrl.policies.shared.teachers import numbers_of
from mmrl.policies.shared.weights import FollowsWeights
from mmrl.policies.shared.workers.remote import Remote, refuse_mixed
from mmrl.runtime.spans import in_span
from mmrl.runtime.tensors import to_device

Part = tuple[Sequence[Request], SigmaTable]
"""Requests of one size, and what they are drawn along."""


class Generator(FollowsWeights):
    """Draws images."""

    def write(self, parts: Sequence[Part]) -> "list[Sampled]":
        """All samples of every part, drawn at its plan's size under the weights that are swapped in (`weights.active`).

        Raises ValueError for a group size that does not fill the plan's trees, or latents that are no longer finite.
        """
        raise NotImplementedError


Decoder = Callable[[Float[Tensor, "n ..."], Size | None], list[object]]
"""Finished latents of pictures of one size (None: the run's) -> PIL images, clips as bytes (frames, y, x, 3), or sounds as
float32 (channels, samples); clips with sound are a Film."""
GREW = "look for latents that grew"


class Film(NamedTuple):
    """A clip with its sound, by their names in a Sample."""

    video: object
    sound: object


@dataclass(frozen=True)
class LocalGenerator(Generator):
    """Draws with the network that trains, so its log-probabilities are exact and its weights are never out of date."""

    host: FlowHost

    def write(self, parts: Sequence[Part]) -> "list[Sampled]":
        return [self.draw(*part) for part in parts]

    @in_span("generate")
    def draw(self, requests: Sequence[Request], sigma_table: SigmaTable) -> "Sampled":
        """The samples of one part."""
        host, plan, counts = self.host, sigma_table.plan, tuple(request.count for request in requests)
        seeds, family = tuple(request.seed for request in requests), host.family.at(sigma_table.size)
        numbers = [request.numbers for request in requests]
        layout = lay_out(plan, counts, seeds)
        noise, device = SeededNoise(plan, counts, seeds, family.latent_shape, numbers), host.net.device
        conditions, bad = host.encoder([request.prompt for request in requests], device), list[Tensor]()
        prompts = torch.arange(len(requests)).repeat_interleave(torch.tensor(counts))
        first, last = float(sigma_table.sigmas[0]), float(sigma_table.sigmas[-1])

        base = ExitStack()

        def velocity(x: Tensor, step: int, rows: Int[Tensor, " m"]) -> Tensor:
            if step == plan.base_from:
                base.enter_context(host.weights.swapped_in("ref"))
            asked = NoisyLatents(x, sigma_table.timesteps[step].expand(len(x)), prompts[rows], sigma_table.size)
            v = host.velocities(asked, conditions, plan.guidance)
            bad.append(~v.isfinite().flatten(1).all(1))
            return v

        def packed(column: int, rows: Int[Tensor, " m"]) -> Tensor:
            drawn = family.pack(noise(column, rows))
            return to_device(family.start(drawn, first) if column == 0 else drawn, device)

        with base:
            trajectory = integrate(
                plan, sigma_table.sigmas, layout, velocity, packed, keep=send_home, part_sizes=sigma_table.part_sizes
            )
        # From here on the device has done all its work, and what was sent to the host has arrived.
        trajectory = replace(trajectory, logprobs=trajectory.logprobs.cpu())
        refuse_nan(bad, [prompts[layout.owners(step)] for step in range(plan.num_steps)], requests)
        keys = [(request.seed, i) for request in requests for i in request.numbers]
        finished = family.finish(trajectory.samples, last)
        if plan.forward is not None:
            trace = trace_of_noised(finished, keys, sigma_table, conditions, prompts)
        else:
            trace = trace_of_steps(trajectory, sigma_table, conditions, prompts)
        if teachers := host.config.teachers:
            trace = replace(
                trace, teachers=numbers_of([request.prompt for request in requests], [one.name for one in teachers])[prompts]
            )
        if plan.surrogate is not None:
            trace = replace(trace, through=torch.stack([one for _, one in surrogate_steps(plan, counts, seeds)]))
        images, rows = host.decode(finished, sigma_table.size), torch.arange(len(keys))
        columns = range(1, plan.num_steps) if plan.previews else ()
        # What the step behind a latent shows: the latent's own prediction, whose velocity the next step asked for.
        previews = [host.decode(family.finish(trajectory.prediction(i, rows), 0.0), sigma_table.size) for i in columns]
        drawn = list(zip(*previews, strict=True)) if previews else [()] * len(keys)
        return Sampled(requests, keys, trajectory, trace, images, host.weights.num_updates, family.fps, drawn, family.rate)


@dataclass(frozen=True)
class LocalDecoder:
    """Decodes with the pipeline's autoencoder, `decode_rows` at a time, or as many rows as have the same pixels in all."""

    host: FlowHost

    @in_span("decode")
    def __call__(self, latents: Float[Tensor, "n ..."], size: Size | None = None) -> list[object]:
        """PIL images, clips or sounds; raises ValueError where pixels are not finite."""
        own, vae, out = self.host.family, self.host.pipeline.vae, list[object]()
        family, rows = own if size is None else own.at(size), self.host.config.rows_per_decode
        for chunk in latents.split(rows if size is None else own.rows_at(rows, size)):
            finished = family.unpack(chunk).to(vae.device, vae.dtype)
            pixels, waves = family.decode(finished), family.sound_of(finished)
            if own.draws_sound:
                out += sounds_of(pixels)
                continue
            if not bool(pixels.isfinite().all()):
                raise ValueError(f"the autoencoder decoded pixels that are not finite (black ones): {GREW}")
            shown = (
                clips_of(pixels)
                if pixels.ndim == 5
                else self.host.pipeline.image_processor.postprocess(pixels.float(), output_type="pil")
            )
            out += shown if waves is None else map(Film, shown, sounds_of(waves))
        return out


def sounds_of(waves: Float[Tensor, "n channels samples"]) -> list[object]:
    """Waves as float32 in [-1, 1]; ValueError where they are not finite."""
    if not bool(waves.isfinite().all()):
        raise ValueError(f"the autoencoder decoded samples that are not finite: {GREW}")
    return list(waves.float().clamp(-1, 1).cpu().numpy())


def clips_of(pixels: Float[Tensor, "n 3 frames y x"]) -> list[object]:
    """Pixels in [-1, 1] as bytes (frames, y, x, 3), rounded as diffusers does; a clip of one frame is a PIL image."""
    shown = ((pixels.float() / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 4, 1)
    arrays = list(shown.cpu().numpy())
    return [Image.fromarray(clip[0]) for clip in arrays] if pixels.shape[2] == 1 else arrays


@dataclass(frozen=True)
class Sampled:
    """The samples of some requests."""

    requests: Sequence[Request]
    keys: Sequence[tuple[int, int]]
    """(seed, sample) of every row."""
    trajectory: Trajectory
    trace: FlowTrace
    images: Sequence[object]

    weights_version: int = 0
    """The number of updates behind the weights that drew them."""
    fps: float | None = None
    """Frames per second of clips."""
    previews: Sequence[tuple[object, ...]] = ()
    """What every step but the last predicted of every row, where the plan asks for it; (): for none."""
    rate: int | None = None
    """Samples per second of sounds."""


def assemble(sampled: Sequence[Sampled], requests: Sequence[Request]) -> Rollouts:
    """The groups of all requests in order, and the rows of all samples; ValueError where two prompts name one group."""
    samples: dict[int, list[Sample]] = {request.group_id: [] for request in requests}
    prompts: dict[int, Prompt] = {}
    for request in requests:
        if prompts.setdefault(request.group_id, request.prompt).id != request.prompt.id:
            raise ValueError(f"group {request.group_id} holds prompts {prompts[request.group_id].id!r} and {request.prompt.id!r}")
    group_ids: list[int] = []
    sample_ids: list[int] = []
    for part in sampled:
        owners = [request for request in part.requests for _ in range(request.count)]
        previews = part.previews or [()] * len(owners)
        for request, drawn, shown in zip(owners, part.images, previews, strict=True):
            group_ids.append(request.group_id)
            sample_ids.append(len(samples[request.group_id]))
            made = Sample(image=drawn, role=request.role)
            if isinstance(drawn, Film):
                made = Sample(video=drawn.video, sound=drawn.sound, fps=part.fps, rate=part.rate, role=request.role)
            elif isinstance(drawn, np.ndarray):
                made = Sample(sound=drawn, rate=part.rate) if part.rate else Sample(video=drawn, fps=part.fps, role=request.role)
            samples[request.group_id].append(replace(made, previews=shown) if shown else made)
    layouts = [part.trajectory.layout for part in sampled]
    are_shared = any(bool((layout.node_ids != torch.arange(len(layout))[:, None]).any()) for layout in layouts)
    nodes = [node_ids(part.trajectory.layout, part.keys) for part in sampled]
    trace = join([part.trace for part in sampled])
    masks = [torch.ones_like(trace.steps, dtype=torch.bool)] if trace.is_forward else [layout.trained for layout in layouts]
    recorded = {ROLLOUT_LOGPROBS: torch.cat([part.trajectory.logprobs for part in sampled])} if trace.has_densities else {}
    return Rollouts(
        groups=tuple(Group(id, prompts[id], tuple(own)) for id, own in samples.items()),
        group_ids=torch.tensor(group_ids),
        sample_ids=torch.tensor(sample_ids),
        action_mask=torch.cat(masks),
        trace=trace,
        recorded=recorded,
        node_ids=torch.cat(nodes) if are_shared else None,
        weights_version=min(part.weights_version for part in sampled),
    )


def node_ids(layout: Layout, keys: Sequence[tuple[int, int]]) -> Int[Tensor, "n t"]:
    """Names of the steps, made of seed and sample of the first row that took each: no two rollouts share one."""
    names = torch.tensor([((seed % 2**42) << 20) + sample for seed, sample in keys])
    return names[layout.node_ids]


def refuse_nan(bad: Sequence[Bool[Tensor, " _"]], owners: Sequence[Int[Tensor, " _"]], requests: Sequence[Request]) -> None:
    """Raise ValueError for velocities of any step that were not finite; the device is asked once, for all of them."""
    found = torch.cat(list(bad)).cpu().split([len(one) for one in bad])
    for step, (here, own) in enumerate(zip(found, owners, strict=True)):
        if bool(here.any()):
            prompt = requests[int(own[here][0])].prompt
            raise ValueError(
                f"the velocity of prompt {prompt.id!r} is not finite at step {step + 1} of {len(bad)}, "
                f"as for {int(here.sum())} of {len(own)} latents: look for weights that diverged (lower optimizer.lr), "
                "or set policy.dtype = 'float32'"
            )


class RemoteGenerator(Remote[FlowHost, LocalGenerator], Generator):
    """Draws in other processes. Chunks are whole requests, as many as fill a forward, whatever the number of processes."""

    @in_span("generate")
    def write(self, parts: Sequence[Part]) -> list[Sampled]:
        """The samples of several parts, chunk by chunk; raises what `ask` raises."""
        if self.host.weights.active != "policy":
            return self.local.write(parts)
        family, most = self.host.family, self.host.config.forward_rows
        chunks = [(own, table) for asked, table in parts for own in chunks_of(asked, family.rows_at(most, table.size))]
        if any(table.plan.base_from is not None for _, table in chunks):
            return self.local.write(chunks)
        found = [replace(cast(Sampled, one), requests=own) for one, (own, _) in zip(self.ask(chunks), chunks, strict=True)]
        for one in found:
            refuse_mixed([(request.seed, i) for request in one.requests for i in request.numbers], one.keys)
        return found


def chunks_of(requests: Sequence[Request], most: int) -> Iterator[list[Request]]:
    """Whole requests in their order, of at most `most` rows together, or one alone."""
    chunk, rows = list[Request](), 0
    for request in requests:
        if chunk and rows + request.count > most:
            yield chunk
            chunk, rows = [], 0
        chunk.append(request)
        rows += request.count
    if chunk:
        yield chunk
