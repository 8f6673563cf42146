"""An image generator as a policy: integrates noise to images along a plan, and evaluates its noisy steps again exactly."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor, nn

from mmrl.core.hooks import PolicyHooks
from mmrl.core.protocols import Diagnostics, State, View
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Batch, Prompt, Reading, Request, Rollouts, Scope, Trace
from mmrl.flow.layout import leaves
from mmrl.flow.plan import RolloutPlan, in_few_steps
from mmrl.policies.flow.adapters import read_teachers, save_adapter
from mmrl.policies.flow.families.base import Condition, FlowFamily
from mmrl.policies.flow.families.sources import refuse_sources
from mmrl.policies.flow.loading import parts_of, save_pipeline
from mmrl.policies.flow.net import FlowNet
from mmrl.policies.flow.parts import FlowParts
from mmrl.policies.flow.prompt.encode import Encoder
from mmrl.policies.flow.read.evaluate import FROM_VELOCITY, QUANTITIES, Actions, check_quantity, read_trace
from mmrl.policies.flow.read.forward import noisy_latents, velocities_of
from mmrl.policies.flow.read.packing import cut_actions, cut_rows, cut_sizes
from mmrl.policies.flow.read.surrogate import read_pixels
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.single_file import SingleFile, is_single
from mmrl.policies.flow.sizes import Size
from mmrl.policies.flow.trace import FlowTrace, NoisyLatents, SigmaTable, join
from mmrl.policies.flow.write.generate import Part, Sampled, assemble
from mmrl.policies.flow.write.given import refuse_given
from mmrl.policies.shared.compiled import compile_blocks
from mmrl.policies.shared.quantized.layer import base_of, refuse_other_base
from mmrl.policies.shared.sharding import wrap_module
from mmrl.policies.shared.teachers import TEACHER
from mmrl.policies.shared.weights import USUAL_DECAY, Decay, Publication, check_reading
from mmrl.runtime.spans import in_span

__all__ = ["FlowPolicy", "FlowPolicyConfig", "FlowTrace"]


@dataclass(frozen=True)
class FlowRounding:
    """How the network of a FlowPolicy rounds: too little to be measured."""

    bound: float = 1e-6
    """Largest |log ratio|: clip ranges are 1e-4 and less, and bfloat16 needs equal forwards (policy.equal_forwards)."""
    unit: float = 2.0**-24
    depth: int = 1
    is_coarse: bool = False

    def readings(self, rollouts: Rollouts) -> Iterator[Float[Tensor, "n t"]]:
        """Nothing."""
        yield from ()


class FlowPolicy(PolicyHooks):
    """A flow-matching text-to-image pipeline of diffusers. An action is a denoising step, or a noised copy of a sample.

    All arithmetic but the network's is in float32 on the network's device; rollouts and readings are on the CPU. Readings under
    the live weights carry a gradient where gradients are on, under a shadow never.

    Args:
        ema_decay: see Weights.
        parts: what loads, draws, computes velocities, decodes and keeps weights; a dry run has others.

    Raises what `loading.load` and Weights raise.
    """

    offers = QUANTITIES

    def __init__(
        self,
        config: FlowPolicyConfig,
        shadows: Iterable[str] = (),
        ema_decay: Decay = USUAL_DECAY,
        parts: FlowParts = FlowParts(),
    ) -> None:
        self.config, self.ema_decay, self.parts = config, ema_decay, parts
        switch_tf32(config.tf32)
        self.family = parts.load(config)
        self.pipeline = self.family.pipeline
        guidance = self.family.default_guidance if config.guidance is None else config.guidance
        self.net = FlowNet(self.family.network, self.family, guidance, config.dtype == "bfloat16", full=config.equal_forwards)
        self.module: nn.Module = self.net
        disk = parts.embeddings(config, self.family)
        self.encoder = Encoder(self.family, config.cached_prompts, config.rest_text_encoders, disk)
        self.ranks = Ranks()
        self.file = SingleFile(config).fingerprint() if is_single(config) else ""
        self.weights = parts.weights(self.net, shadows, ema_decay, False, self.config.copies_on)
        self._followed = self._publishes = False
        self.forward, self.decoder = parts.forward(self), parts.decoder(self)
        self.generator = parts.generator(self)

    @property
    def shadows(self) -> frozenset[str]:
        return frozenset(self.weights.shadows)

    @property
    def exact_sampler(self) -> bool:
        return self.generator.exact and self.config.quantized.kernels == "equal"

    def audit(self, rollouts: Rollouts) -> None:
        self.parts.audit(self, rollouts)

    @cached_property
    def diagnostics(self) -> Diagnostics:
        return self.parts.diagnostics(self)

    @property
    def rounding(self) -> FlowRounding:
        return FlowRounding()

    def parameters(self) -> list[nn.Parameter]:
        return list(self.weights.named.values())

    def advance(self) -> None:
        self.weights.follow()
        self._followed = False

    def publish(self, version: int | None = None) -> Publication:
        """See FollowsWeights. From the first call on rollouts may be drawn in another thread than the one that trains."""
        self._publishes = True
        self.net.uploads.clear()
        return self.generator.publish(self.weights.num_updates if version is None else version)

    def begin_stage(self, shadows: Iterable[str], ema_decay: Callable[[int], float] | None, views: Mapping[str, View]) -> None:
        self.ema_decay = USUAL_DECAY if ema_decay is None else ema_decay
        updates = self.weights.num_updates
        self.weights = self.parts.weights(self.net, shadows, self.ema_decay, self.ranks.is_sharded, self.config.copies_on)
        self.weights.num_updates, self._followed = updates, False

    @torch.no_grad()
    def rollout(self, requests: Sequence[Request], sampling: RolloutPlan | None = None) -> Rollouts:
        """Images of all requests; `sampling` is the plan to follow, `schedule.at(step)` or `evaluation_plan(num_steps)`.

        Prompts of one size are drawn together. Raises ValueError without a plan, for a request or a group size that cannot be
        served, and for latents that are no longer finite.
        """
        plan = plan_of(requests, sampling)
        self._check(requests, plan)
        if plan.base_from is not None and "ref" not in self.shadows:
            raise ValueError(
                "the plan's base_from finishes with the reference's weights, which this policy keeps none of: make it "
                'with shadows = ["ref"]'
            )
        if not self._publishes:
            self.net.uploads.clear()
        if not self._followed:
            self.generator.follow(self.weights, self.weights.num_updates)
            self._followed = True
        # A process that has nothing to sample under some weights still takes part in the forwards of the others.
        white = (Image.new("RGB", self.family.source_size, "white"),) * self.family.sources[0]
        stand_in = [Request(Prompt("stand-in", media=white), leaves(plan), 0)]
        parts = [(asked, self._sigma_table(plan, size)) for size, asked in by_size(requests, self.family)]
        given = chosen(parts, lambda request: request.role == "injected")
        sampled, idle = [self.parts.given(self, *part) for part in given], list[Sampled]()
        for model in sorted(self.shadows | {"policy"}):
            own = chosen(parts, lambda request, model=model: request.model == model and request.role != "injected")
            missing = self.ranks.forwards(len(own)) - len(own)
            if own or missing:
                with self.weights.swapped_in(model):
                    sampled += self.generator.write(own)
                    idle += self.generator.write([(stand_in, self._sigma_table(plan))] * missing)
        if sampled:
            return assemble(sampled, requests)
        nothing = idle or self.generator.write([(stand_in, self._sigma_table(plan))])
        return replace(assemble(nothing[:1], stand_in).take(torch.arange(0)), groups=())

    def sigmas(self, plan: RolloutPlan, size: Size | None = None) -> Float[Tensor, " t1"]:
        """The sigmas of the plan's steps for pictures of a size (None: the run's); ValueError where the spacing has no answer."""
        return (self.family if size is None else self.family.at(size)).sigmas(plan)

    @in_span("forward")
    def read(self, trace: Trace, readings: Iterable[Reading], mask: Bool[Tensor, "n t"]) -> dict[Reading, Tensor]:
        """Quantities of the recorded actions, (n, t) or (n, t, ...) in float32; 0 where mask is False.

        std, dt and sigma are given everywhere. Quantities that no weights enter may be asked of `old`. Raises ValueError for a
        quantity, model or view that this policy does not have, or that means nothing on this schedule.
        """
        assert isinstance(trace, FlowTrace)
        wanted: dict[tuple[str, float | None], list[Reading]] = {}
        for reading in readings:
            also_old = {"old"} if reading.quantity in QUANTITIES - FROM_VELOCITY else set[str]()
            further = {TEACHER} if self.config.teachers else set[str]()
            check_reading(reading, "flow", self.offers, self.shadows | {"policy"} | also_old | further, {"plain"})
            check_quantity(trace, reading.quantity)
            wanted.setdefault((reading.model, reading.guidance), []).append(reading)
        out: dict[Reading, Tensor] = {}

        def velocities(actions: Sequence[Actions], guidance: float | None) -> Sequence[Tensor]:
            return velocities_of(self, [noisy_latents(trace, *own) for own in actions], trace.conditions, guidance)

        def quantities_of(asked: set[str], own: Bool[Tensor, "n t"], guidance: float | None) -> dict[str, Tensor]:
            return read_trace(trace, asked, own, partial(velocities, guidance=guidance))

        for (model, guidance), asked in wanted.items():
            quantities = {reading.quantity for reading in asked}
            if model == TEACHER:
                values = read_teachers(self, trace, mask, guidance, partial(quantities_of, quantities))
                out |= {reading: values[reading.quantity] for reading in asked}
                continue
            with self.weights.swapped_in("policy" if model == "old" else model):
                values = {"pixels": read_pixels(self, trace, mask, guidance)} if "pixels" in quantities else {}
                if others := quantities - {"pixels"}:
                    values |= quantities_of(others, mask, guidance)
            out |= {reading: values[reading.quantity] for reading in asked}
        return out

    def split(self, batch: Batch, micro_batch: int, scope: Scope) -> Iterator[Batch]:
        """Parts of at most `micro_batch` actions that train. With scope `action` and a gradient a part also fits one forward.

        Without a gradient rows stay whole: `read` cuts its forwards itself. With scope `batch` the pictures of a part have one
        size, and as many of them train as have the tokens of `micro_batch` pictures of the run's size.
        """
        if scope == "batch":
            yield from cut_rows(batch, micro_batch, scope)
            return
        fits_forward = scope == "action" and torch.is_grad_enabled()
        for size, part in cut_sizes(batch):
            most = self.family.rows_at(micro_batch, size)
            if fits_forward:
                yield from cut_actions(part, max(1, min(most, self.family.rows_at(self.config.forward_rows, size))))
            else:
                yield from cut_rows(part, most, scope)

    def join(self, traces: Sequence[Trace]) -> FlowTrace:
        return join([trace for trace in traces if isinstance(trace, FlowTrace)])

    def state_dict(self) -> State:
        beside = {"file": self.file or None, "base": base_of(*self._parts_in_4_bits())}
        found = {name: value for name, value in beside.items() if value is not None}
        return {**self.weights.state_dict(keep=self.ranks.is_main), **found}

    def load_state_dict(self, state: State) -> None:
        if self.file != state.get("file", ""):
            raise ValueError(
                f"policy.model {self.config.model!r} is another file than the one that the run was trained with: put that back"
            )
        refuse_other_base(state, self.config.model, *self._parts_in_4_bits())
        self.weights.load_state_dict(state)
        self._followed = False

    def save(self, folder: Path) -> None:
        """An adapter for pipeline.load_lora_weights, or a pipeline for from_pretrained. Every process must call it."""
        write = save_pipeline if self.config.lora is None else save_adapter
        write(self.pipeline, self.family.split(self.net.transformer), folder, self.ranks.is_main)

    def prepare(self, accelerator: Any) -> None:
        """Move to accelerate's device and wrap for its processes. Shadows start again from the weights as they are now."""
        resting = list(self.family.text_encoders.values()) if self.config.rest_text_encoders else []
        elsewhere = [*self.family.split(self.net.transformer).values(), *resting]
        for part in parts_of(self.pipeline):
            if not any(part is other for other in elsewhere):
                part.to(accelerator.device)
        self.module = wrap_module(self.net, self.parameters(), accelerator)
        self.ranks = Ranks(accelerator)
        self.net = accelerator.unwrap_model(self.module)
        if self.config.compile:
            self.net.compiled = compile_blocks([self.net.transformer], f"policy.model {self.config.model!r}")
        self.weights = self.parts.weights(self.net, self.shadows, self.ema_decay, self.ranks.is_sharded, self.config.copies_on)
        self._followed = False

    def velocities(
        self, asked: NoisyLatents, conditions: Sequence[Condition], guidance: float | None = None
    ) -> Float[Tensor, "m ..."]:
        """The guided velocities at latents whose prompts are among the conditions."""
        return velocities_of(self, [asked], conditions, guidance)[0]

    def decode(self, latents: Float[Tensor, "n ..."], size: Size | None = None) -> list[object]:
        """Finished latents of one size as PIL images, clips or sounds."""
        return self.decoder(latents, size)

    def logprobs(self, trace: FlowTrace, mask: Bool[Tensor, "n t"], model: str = "policy") -> Float[Tensor, "n t"]:
        """Log-probabilities of the recorded transitions under some weights, without gradient."""
        reading = LOGPROBS._replace(model=model)
        return self.read(trace, [reading], mask)[reading].detach()

    def _check(self, requests: Sequence[Request], plan: RolloutPlan) -> None:
        known = self.shadows | {"policy"}
        for request in requests:
            name = f"a request for prompt {request.prompt.id!r}"
            is_given = request.role == "injected"
            if is_given:
                refuse_given(request, plan.forward is not None, self.config, self.family.sound_beside)
            if request.shown.prompt is not None or (request.written is not None and not is_given):
                raise ValueError(
                    f"{name} shows another prompt or goes on from an earlier sample, which an image generator cannot: "
                    "take a planner without hints, refinements and prefixes"
                )
            if request.view != "plain" or request.role not in ("policy", "injected"):
                raise ValueError(
                    f"{name} has the view {request.view!r} and the role {request.role!r}: an image generator draws plain "
                    "prompts for the role 'policy'"
                )
            refuse_sources([request.prompt], self.family.sources)
            if request.model not in known:
                raise ValueError(f"{name} asks for the weights {request.model!r}; this policy keeps {', '.join(sorted(known))}")

    def _parts_in_4_bits(self) -> list[nn.Module]:
        """The networks that may rest in 4 bits."""
        return [*self.family.trained.values(), *self.family.text_encoders.values()]

    def _sigma_table(self, plan: RolloutPlan, size: Size | None = None) -> SigmaTable:
        own = size or (self.config.width, self.config.height)
        return SigmaTable(plan, own, self.sigmas(plan, size), self.family.at(own).part_sizes)


def by_size(requests: Sequence[Request], family: FlowFamily) -> list[tuple[Size, list[Request]]]:
    """Every size that prompts ask for, and its requests."""
    found: dict[Size, list[Request]] = {}
    for request in requests:
        found.setdefault(family.size_of(request.prompt), []).append(request)
    return sorted(found.items(), key=lambda pair: pair[0])


def chosen(parts: Sequence[Part], is_chosen: Callable[[Request], bool]) -> list[Part]:
    """The parts with some of their requests alone, where they have any."""
    return [(own, table) for asked, table in parts if (own := list(filter(is_chosen, asked)))]


def plan_of(requests: Sequence[Request], sampling: object) -> RolloutPlan:
    """The plan that requests follow: the given one, or in as few steps as they ask for; ValueError without one, or for two."""
    if not isinstance(sampling, RolloutPlan):
        raise ValueError(
            "an image generator samples along a plan: set algorithm.schedule (Full, Window, Tree, Branching, Forward), or "
            f"give rollout a RolloutPlan such as mmrl.flow.plan.evaluation_plan(28), not {type(sampling).__name__}"
        )
    wanted = {request.tempering.num_steps for request in requests}
    if len(wanted) > 1:
        raise ValueError(f"requests of one rollout ask for {wanted} steps: let a planner's round ask for the same of all")
    few = wanted.pop() if wanted else None
    return sampling if few is None else in_few_steps(sampling, few)


def switch_tf32(on: bool) -> None:
    """Let NVIDIA GPUs multiply float32 with 10 bits of mantissa, or not; ValueError in a run that must be repeatable."""
    if on and torch.are_deterministic_algorithms_enabled():
        raise ValueError("policy.tf32 = true and deterministic = true exclude each other: leave one of them out")
    torch.backends.cuda.matmul.allow_tf32 = on
