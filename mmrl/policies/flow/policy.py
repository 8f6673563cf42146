"""An image generator as a policy: integrates noise to images along a plan, and evaluates its noisy steps again exactly."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmrl.core.protocols import State
from mmrl.core.ranks import Ranks
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Group, Prompt, Reading, Request, Rollouts, Sample, Scope, Trace
from mmrl.flow.integrate import Trajectory, integrate
from mmrl.flow.layout import Layout, SeededNoise, lay_out, leaves
from mmrl.flow.plan import RolloutPlan
from mmrl.policies.flow.diagnose import FlowDiagnostics
from mmrl.policies.flow.encode import Encoder
from mmrl.policies.flow.evaluate import FROM_VELOCITY, QUANTITIES, check_quantity, read_trace
from mmrl.policies.flow.families.base import Condition
from mmrl.policies.flow.loading import load, parts, save_adapter, save_pipeline
from mmrl.policies.flow.net import FlowNet
from mmrl.policies.flow.packing import cut_actions, cut_rows
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.trace import FlowTrace, SigmaPlan, join, trace_of_noised, trace_of_steps
from mmrl.policies.shared.ema import Decay, Weights
from mmrl.policies.shared.sharding import reshard, wrapped

__all__ = ["FlowPolicy", "FlowPolicyConfig", "FlowTrace"]


class FlowPolicy:
    """A flow-matching text-to-image pipeline of diffusers. An action is a denoising step, or a noised copy of a sample.

    Samples carry a PIL image. All arithmetic but the network's is done on the CPU in float32, while sampling and while reading,
    and rollouts and readings are on the CPU. Readings under the live weights carry a gradient where gradients are on; readings
    under a shadow never do. The guidance is a setting of the policy, so sampling and training cannot differ in it.

    Raises:
        FileNotFoundError: no such model or adapter.
        ValueError: a pipeline that is not known here, unknown shadows, or a picture size the model cannot draw.
    """

    offers = QUANTITIES
    load = staticmethod(load)

    def __init__(self, config: FlowPolicyConfig, shadows: Iterable[str] = (), ema_decay: Decay = 0.99) -> None:
        self.config, self.ema_decay = config, ema_decay
        self.family = self.load(config)
        self.pipeline = self.family.pipeline
        guidance = self.family.usual_guidance if config.guidance is None else config.guidance
        self.net = FlowNet(
            self.pipeline.transformer, self.family, guidance, config.dtype == "bfloat16", full=config.equal_forwards
        )
        self.module: nn.Module = self.net
        self.encoder = Encoder(self.family, config.cached_prompts)
        self.is_main = True
        self.diagnostics = FlowDiagnostics(self)
        self.ranks = Ranks()
        self.weights = Weights(self.net, shadows, ema_decay)

    @property
    def shadows(self) -> frozenset[str]:
        return frozenset(self.weights.shadows)

    def parameters(self) -> list[nn.Parameter]:
        return list(self.weights.named.values())

    def advance(self) -> None:
        self.weights.follow()

    @torch.no_grad()
    def rollout(self, requests: Sequence[Request], sampling: Any = None) -> Rollouts:
        """Images of all requests; `sampling` is the RolloutPlan to follow, `schedule.at(step)` or `evaluation_plan(num_steps)`.

        Raises:
            ValueError: no plan, a request nobody can serve, a group size that does not fill the plan's trees, or latents that
                are no longer finite.
        """
        if not isinstance(sampling, RolloutPlan):
            raise ValueError(
                "an image generator samples along a plan: set algorithm.schedule (Full, Window, Tree, Branching, Forward), or "
                f"give rollout a RolloutPlan such as mmrl.flow.plan.evaluation_plan(28), not {type(sampling).__name__}"
            )
        self._check(requests)
        sigma_plan = SigmaPlan(sampling, self.sigmas(sampling))
        # A process that has nothing to sample under some weights still takes part in the forwards of the others.
        stand_in = [Request(Prompt("stand-in"), leaves(sampling), 0)]
        sampled, idle = list[Sampled](), list[Sampled]()
        for model in sorted(self.shadows | {"policy"}):
            own = [request for request in requests if request.model == model]
            if self.ranks.anyone(bool(own)):
                with self.weights.swapped_in(model):
                    (sampled if own else idle).append(self._sample(own or stand_in, sigma_plan))
        if sampled:
            return gathered(sampled, requests)
        nothing = idle[0] if idle else self._sample(stand_in, sigma_plan)
        return replace(gathered([nothing], stand_in).take(torch.arange(0)), groups=())

    def sigmas(self, plan: RolloutPlan) -> Float[Tensor, " t1"]:
        """At which the plan's steps are taken. Raises ValueError where the model's spacing has no answer."""
        return plan.sigmas(plan.spacing or self.family.spacing(), self.family.image_tokens)

    def read(self, trace: Trace, readings: Iterable[Reading], mask: Bool[Tensor, "n t"]) -> dict[Reading, Tensor]:
        """Quantities of the recorded actions, (n, t) or (n, t, ...) in float32; 0 where mask is False.

        std, dt and sigma belong to the schedule and are given everywhere. Quantities that no weights enter may be asked of `old`.

        Raises:
            ValueError: a quantity, model or view this policy does not have, or one that means nothing on this schedule.
        """
        assert isinstance(trace, FlowTrace)
        wanted: dict[str, list[Reading]] = {}
        for reading in readings:
            self._check_reading(reading)
            check_quantity(trace, reading.quantity)
            wanted.setdefault(reading.model, []).append(reading)
        out: dict[Reading, Tensor] = {}

        def velocities(rows: Tensor, columns: Tensor) -> Tensor:
            x = trace.inputs(rows, columns)
            return self._velocities(x, trace.timesteps[rows, columns], trace.conditions, trace.prompt_index[rows])

        for model, asked in wanted.items():
            with self.weights.swapped_in("policy" if model == "old" else model):
                values = read_trace(trace, [reading.quantity for reading in asked], mask, velocities)
            out |= {reading: values[reading.quantity] for reading in asked}
        return out

    def split(self, batch: Batch, micro_batch: int, scope: Scope) -> Iterator[Batch]:
        """Parts of at most `micro_batch` actions that train. With scope `action` and a gradient a part also fits one forward.

        Without a gradient rows stay whole, since `read` cuts its forwards itself.
        """
        if scope == "action" and torch.is_grad_enabled():
            return cut_actions(batch, max(1, min(micro_batch, self.config.forward_rows)))
        return cut_rows(batch, micro_batch, scope)

    def join(self, traces: Sequence[Trace]) -> FlowTrace:
        return join([trace for trace in traces if isinstance(trace, FlowTrace)])

    def state_dict(self) -> State:
        """Trainable weights and shadows, whole and on the CPU. With sharded weights every process must call it."""
        return self.weights.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the state belongs to other weights or shadows."""
        self.weights.load_state_dict(state)

    def save(self, folder: Path) -> None:
        """An adapter for pipeline.load_lora_weights, or a pipeline for from_pretrained. Every process must call it."""
        write = save_pipeline if self.config.lora is None else save_adapter
        write(self.pipeline, self.net.transformer, folder, self.is_main)

    def prepare(self, accelerator: Any) -> None:
        """Move to accelerate's device and wrap for its processes. Shadows start again from the weights as they are now."""
        for part in parts(self.pipeline):
            if part is not self.net.transformer:
                part.to(accelerator.device)
        self.module = wrapped(self.net, self.parameters(), accelerator, alike=True)
        self.ranks = Ranks(accelerator)
        self.net = accelerator.unwrap_model(self.module)
        self.is_main = accelerator.is_main_process
        self.weights = Weights(self.net, self.shadows, self.ema_decay, self.ranks.is_sharded)

    def _check(self, requests: Sequence[Request]) -> None:
        known = self.shadows | {"policy"}
        for request in requests:
            name = f"a request for prompt {request.prompt.id!r}"
            if request.view != "plain" or request.role != "policy" or request.prompt.media:
                raise ValueError(
                    f"{name} has the view {request.view!r}, the role {request.role!r} and {len(request.prompt.media)} pictures: "
                    "an image generator draws plain prompts of text for the role 'policy'"
                )
            if request.model not in known:
                raise ValueError(f"{name} asks for the weights {request.model!r}; this policy keeps {', '.join(sorted(known))}")

    def _check_reading(self, reading: Reading) -> None:
        models = self.shadows | {"policy"} | ({"old"} if reading.quantity in QUANTITIES - FROM_VELOCITY else set())
        for what, name, known in (
            ("quantity", reading.quantity, self.offers),
            ("model", reading.model, models),
            ("view", reading.view, {"plain"}),
        ):
            if name not in known:
                raise ValueError(f"{what} {name!r} cannot be read from this flow policy, which has {', '.join(sorted(known))}")

    def _sample(self, requests: Sequence[Request], sigma_plan: SigmaPlan) -> "Sampled":
        """All samples of requests under the weights as they are."""
        plan, counts = sigma_plan.plan, tuple(request.count for request in requests)
        seeds = tuple(request.seed for request in requests)
        layout = lay_out(plan, counts, seeds)
        noise = SeededNoise(plan, counts, seeds, self.family.latent_shape)
        conditions = self.encoder([request.prompt.text for request in requests], self.net.device)
        prompts = torch.arange(len(requests)).repeat_interleave(torch.tensor(counts))

        def velocity(x: Tensor, step: int, rows: Int[Tensor, " m"]) -> Tensor:
            v = self._velocities(x, sigma_plan.timesteps[step].expand(len(x)), conditions, prompts[rows], plan.guidance)
            refuse_nan(v, step, plan.num_steps, [requests[i].prompt for i in prompts[rows].tolist()])
            return v

        trajectory = integrate(
            plan, sigma_plan.sigmas, layout, velocity, lambda column, rows: self.family.pack(noise(column, rows))
        )
        keys = [(request.seed, i) for request in requests for i in range(request.count)]
        if plan.forward is not None:
            trace = trace_of_noised(trajectory.samples, keys, sigma_plan, conditions, prompts)
        else:
            trace = trace_of_steps(trajectory, sigma_plan, conditions, prompts)
        return Sampled(requests, keys, trajectory, trace, self._images(trajectory.samples))

    def _velocities(
        self,
        x: Float[Tensor, "m ..."],
        timesteps: Float[Tensor, " m"],
        conditions: Sequence[Condition],
        index: Int[Tensor, " m"],
        guidance: float | None = None,
    ) -> Float[Tensor, "m ..."]:
        """The network's, in forwards of at most `forward_rows` latents.

        Wrapped modules talk to each other at every forward, so all processes make the same number of them.
        """
        pieces = list(torch.arange(len(x)).split(self.config.forward_rows)) if len(x) else []
        missing = self.ranks.forwards(len(pieces)) - len(pieces)
        out = [self._forward(x[rows], timesteps[rows], conditions, index[rows], guidance) for rows in pieces]
        for _ in range(missing):
            one = torch.zeros(1, dtype=index.dtype)
            out.append(self._forward(x.new_zeros(1, *x.shape[1:]), timesteps.new_zeros(1), conditions, one)[:0])
        return torch.cat(out) if out else x

    def _forward(
        self, x: Tensor, timesteps: Tensor, conditions: Sequence[Condition], index: Tensor, guidance: float | None = None
    ) -> Tensor:
        """One forward of the wrapped module; without a gradient, of the module itself."""
        grad, count, device = torch.is_grad_enabled(), len(x), self.net.device
        rows = torch.arange(self.config.forward_rows if self.config.equal_forwards else count).clamp(max=count - 1)
        empty = self.encoder.empty(device) if self.net.passes(guidance) == 2 else None
        module = self.module if grad else self.net
        v = module(x[rows].to(device), timesteps[rows].to(device), conditions, index[rows], empty, guidance)
        if not grad and self.ranks.is_sharded:
            reshard(self.net)
        return v[:count].cpu()

    def _images(self, samples: Float[Tensor, "n ..."]) -> list[Any]:
        """As PIL images."""
        vae, out = self.pipeline.vae, list[Any]()
        for chunk in samples.split(self.config.decode_rows):
            pixels = self.family.decode(self.family.unpack(chunk).to(vae.device, vae.dtype))
            if not bool(pixels.isfinite().all()):
                raise ValueError("the autoencoder decoded pixels that are not finite (black ones): look for latents that grew")
            out += self.pipeline.image_processor.postprocess(pixels.float(), output_type="pil")
        return out


@dataclass(frozen=True)
class Sampled:
    """What some requests came to."""

    requests: Sequence[Request]
    keys: Sequence[tuple[int, int]]
    """(seed, sample) of every row."""
    trajectory: Trajectory
    trace: FlowTrace
    images: Sequence[Any]

    @property
    def action_mask(self) -> Bool[Tensor, "n t"]:
        layout = self.trajectory.layout
        return torch.ones_like(self.trace.steps, dtype=torch.bool) if self.trace.is_forward else layout.trained


def gathered(sampled: Sequence[Sampled], requests: Sequence[Request]) -> Rollouts:
    """The groups of all requests in their order, and the rows of everything sampled."""
    samples: dict[int, list[Sample]] = {request.group_id: [] for request in requests}
    prompts: dict[int, Prompt] = {}
    for request in requests:
        if prompts.setdefault(request.group_id, request.prompt).id != request.prompt.id:
            raise ValueError(f"group {request.group_id} holds prompts {prompts[request.group_id].id!r} and {request.prompt.id!r}")
    group_ids: list[int] = []
    sample_ids: list[int] = []
    for part in sampled:
        owners = [request for request in part.requests for _ in range(request.count)]
        for request, image in zip(owners, part.images, strict=True):
            group_ids.append(request.group_id)
            sample_ids.append(len(samples[request.group_id]))
            samples[request.group_id].append(Sample(image=image))
    layouts = [part.trajectory.layout for part in sampled]
    trace = join([part.trace for part in sampled])
    recorded = {ROLLOUT_LOGPROBS: torch.cat([part.trajectory.logprobs for part in sampled])} if trace.has_densities else {}
    return Rollouts(
        groups=tuple(Group(id, prompts[id], tuple(own)) for id, own in samples.items()),
        group_ids=torch.tensor(group_ids),
        sample_ids=torch.tensor(sample_ids),
        action_mask=torch.cat([part.action_mask for part in sampled]),
        trace=trace,
        recorded=recorded,
        node_ids=torch.cat([node_ids(part.trajectory.layout, part.keys) for part in sampled]) if shared(layouts) else None,
    )


def shared(layouts: Sequence[Layout]) -> bool:
    """Is there a step that several rows took together?"""
    return any(bool((layout.node_ids != torch.arange(len(layout))[:, None]).any()) for layout in layouts)


def node_ids(layout: Layout, keys: Sequence[tuple[int, int]]) -> Int[Tensor, "n t"]:
    """Named by seed and sample of the first row that took the step, so that they differ between any two rollouts."""
    names = torch.tensor([((seed % 2**42) << 20) + sample for seed, sample in keys])
    return names[layout.node_ids]


def refuse_nan(v: Float[Tensor, "m ..."], step: int, num_steps: int, prompts: Sequence[Prompt]) -> None:
    bad = (~v.isfinite().flatten(1).all(1)).nonzero()[:, 0].tolist()
    if bad:
        raise ValueError(
            f"the velocity of prompt {prompts[bad[0]].id!r} is not finite at step {step + 1} of {num_steps}, "
            f"as for {len(bad)} of {len(v)} latents: look for weights that diverged (lower optimizer.lr), "
            "or set policy.dtype = 'float32'"
        )
