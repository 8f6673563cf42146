"""A flow policy that learns in seconds: it draws points of the plane given three numbers, and keeps every promise of Policy."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Group, Prompt, Reading, Request, Rollouts, Sample, Scope, Trace
from mmrl.flow.integrate import Trajectory, gaussian_of, integrate
from mmrl.flow.layout import SeededNoise, generator_of, lay_out
from mmrl.flow.path import add_noise, velocity_of, velocity_with_guidance
from mmrl.flow.plan import RolloutPlan
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import LinearShift
from mmrl.policies.flow.policy import plan_of
from mmrl.runtime.tensors import pad_actions
from tests.support.fakes import OfNets, in_units

OFFERS = frozenset({"logprobs", "mean", "velocity", "sampled_mean", "std", "pull", "dt", "sigma", "origin", "target_velocity"})
TARGETS = ((1.0, 1.0), (-1.0, 1.0), (0.0, -1.0))


@dataclass(frozen=True)
class FlowTrace:
    """Tensors with (n, t) in front, and which steps of the plan the t columns are."""

    plan: RolloutPlan
    sigmas: Tensor
    columns: Tensor
    tensors: Mapping[str, Tensor]

    def take(self, rows: Tensor, steps: slice) -> "FlowTrace":
        tensors = {name: x[rows][:, steps] for name, x in self.tensors.items()}
        return FlowTrace(self.plan, self.sigmas, self.columns[steps], tensors)


class Knows(nn.Module):
    """A teacher: its velocity at (x, t, c) leads straight to the point of c."""

    def forward(self, given: Tensor) -> Tensor:
        x, t, c = given[..., :2], given[..., 2:3], given[..., 3:]
        return (x - c @ torch.tensor(TARGETS)) / t.clamp(min=1e-3)


@dataclass
class FakeFlowPolicy(OfNets):
    """A velocity net over (x, t, prompt.columns["vector"])."""

    shadows: frozenset[str] = frozenset({"ref", "ema"})
    ema_decay: Callable[[int], float] = lambda step: 0.9
    offers: frozenset[str] = OFFERS
    nets: dict[str, nn.Module] = field(default_factory=dict)
    updates: int = 0
    accelerator: Any = None

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.nets["policy"] = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))
        for name in ("ref", "ema"):
            self.nets[name] = copy.deepcopy(self.nets["policy"]).requires_grad_(False)
        self.nets["teacher"] = Knows()

    def velocity(self, model: str, x: Tensor, t: Tensor, c: Tensor) -> Tensor:
        return self.nets[model](torch.cat([x, t[..., None], c], -1))

    @torch.no_grad()
    def rollout(self, requests: Sequence[Request], sampling: Any = None) -> Rollouts:
        plan = plan_of(requests, sampling or Full().at(0))
        counts, seeds = tuple(r.count for r in requests), tuple(r.seed for r in requests)
        layout, numbers = lay_out(plan, counts, seeds), [request.numbers for request in requests]
        sigmas, noise = plan.sigmas(LinearShift(1.0)), SeededNoise(plan, counts, seeds, (2,), numbers)
        rows = [request for request in requests for _ in range(request.count)]
        c = torch.tensor([request.prompt.columns["vector"] for request in rows])
        model = requests[0].model

        def velocity(x: Tensor, step: int, of: Tensor) -> Tensor:
            at_base = plan.base_from is not None and step >= plan.base_from
            return self.velocity("ref" if at_base else model, x, sigmas[step].expand(len(x)), c[of])

        found = integrate(plan, sigmas, layout, velocity, noise)
        groups, group_ids, sample_ids = grouped(requests, found.samples)
        if plan.previews:
            ways = [found.prediction(i, torch.arange(len(rows))) for i in range(1, plan.num_steps)]
            groups = with_previews(groups, torch.stack(ways, 1))
        if plan.forward is not None:
            keys = [(request.group_id, i) for request in requests for i in request.numbers]
            trace = self._noised(plan, sigmas, found.samples, c, keys)
            mask = torch.ones(len(rows), plan.forward.count, dtype=torch.bool)
            return Rollouts(groups, group_ids, sample_ids, mask, trace)
        trace = self._steps(plan, sigmas, found, c)
        nodes = None if plan.shape == "chains" else layout.node_ids
        return Rollouts(groups, group_ids, sample_ids, layout.trained, trace, {ROLLOUT_LOGPROBS: found.logprobs}, nodes)

    def _steps(self, plan: RolloutPlan, sigmas: Tensor, found: Trajectory, c: Tensor) -> FlowTrace:
        rows, steps = torch.arange(len(c)), range(plan.num_steps)
        n = len(c)
        tensors = {
            "x": torch.stack([found.state(i, rows) for i in steps], 1),
            "x_next": torch.stack([found.state(i + 1, rows) for i in steps], 1),
            "sampled_mean": torch.stack([found.mean(i, rows) for i in steps], 1),
            "sigma": sigmas[:-1].expand(n, -1),
            "origin": found.layout.state_ids[:, :-1].float(),
            "dt": (sigmas[:-1] - sigmas[1:]).expand(n, -1),
            "std": plan.deviations(sigmas).expand(n, -1),
            "pull": plan.pulls(sigmas).expand(n, -1),
            "c": c[:, None].expand(-1, plan.num_steps, -1),
        }
        return FlowTrace(plan, sigmas, torch.arange(plan.num_steps), tensors)

    def _noised(self, plan: RolloutPlan, sigmas: Tensor, data: Tensor, c: Tensor, keys: list[tuple[int, int]]) -> FlowTrace:
        assert plan.forward is not None
        shared = plan.forward.shared
        generators = [generator_of(group, 0 if shared else sample, "forward") for group, sample in keys]
        t = torch.stack([plan.forward.draw(sigmas, generator) for generator in generators])
        noise = torch.stack([torch.randn(t.shape[1], 2, generator=generator) for generator in generators])
        data = data[:, None].expand_as(noise)
        x = add_noise(data.flatten(0, 1), noise.flatten(0, 1), t.flatten()).reshape(noise.shape)
        tensors = {"x": x, "sigma": t, "target_velocity": velocity_of(data, noise), "c": c[:, None].expand(-1, t.shape[1], -1)}
        return FlowTrace(plan, sigmas, torch.arange(t.shape[1]), tensors)

    def read(self, trace: Trace, readings: Iterable[Reading], mask: Tensor) -> dict[Reading, Tensor]:
        assert isinstance(trace, FlowTrace)
        out: dict[Reading, Tensor] = {}
        for reading in readings:
            if reading.quantity in trace.tensors:
                out[reading] = trace.tensors[reading.quantity]
                continue
            x, t, c = (trace.tensors[name] for name in ("x", "sigma", "c"))
            v = self.velocity(reading.model, x, t, c)
            if reading.guidance is not None:  # its own is 1
                without = self.velocity(reading.model, x, t, torch.zeros_like(c))
                v = velocity_with_guidance(v, without, reading.guidance)
            out[reading] = v if reading.quantity == "velocity" else self._transitions(reading.quantity, trace, v)
        return out

    def _transitions(self, quantity: str, trace: FlowTrace, v: Tensor) -> Tensor:
        columns = []
        for place, index in enumerate(trace.columns.tolist()):
            step, x, x_next = trace.plan.steps[index], trace.tensors["x"][:, place], trace.tensors["x_next"][:, place]
            if trace.plan.imitate and quantity == "mean":
                columns.append(x - trace.tensors["dt"][:, place, None] * v[:, place])
                continue
            if not step.trained:  # zeros that hang on the graph, so that a part without trained steps has a gradient
                nothing = 0 * v[:, place]
                columns.append(nothing.sum(-1) if quantity == "logprobs" else nothing)
                continue
            gaussian = gaussian_of(step, x, v[:, place], trace.sigmas, index)
            columns.append(gaussian.log_density(x_next) if quantity == "logprobs" else gaussian.mean)
        return torch.stack(columns, 1)

    def split(self, batch: Batch, micro_batch: int, scope: Scope) -> Iterator[Batch]:
        if scope == "batch":
            yield batch
            return
        width = batch.advantages.shape[1]
        if scope == "action":
            for rows in torch.arange(len(batch)).split(micro_batch):
                long = max(1, micro_batch // len(rows))
                for start in range(0, width, long):
                    yield batch.take(rows, slice(start, start + long))
            return
        yield from in_units(batch, scope, micro_batch // width)

    def join(self, traces: Sequence[Trace]) -> FlowTrace:
        parts = [trace for trace in traces if isinstance(trace, FlowTrace)]
        width = len(parts[0].columns)
        joined = {name: torch.cat([pad_actions(part.tensors[name], width) for part in parts]) for name in parts[0].tensors}
        return replace(parts[0], tensors=joined)

    @torch.no_grad()
    def advance(self) -> None:
        decay = self.ema_decay(self.updates)
        for slow, live in zip(self.nets["ema"].parameters(), self.nets["policy"].parameters(), strict=True):
            slow.lerp_(live, 1 - decay)
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        super().load_state_dict(state)


def grouped(requests: Sequence[Request], samples: Tensor) -> tuple[tuple[Group, ...], Tensor, Tensor]:
    groups, group_ids, sample_ids, start = [], [], [], 0
    for request in requests:
        own = samples[start : start + request.count]
        groups.append(Group(request.group_id, request.prompt, tuple(Sample(image=point) for point in own)))
        group_ids += [request.group_id] * request.count
        sample_ids += range(request.count)
        start += request.count
    return tuple(groups), torch.tensor(group_ids), torch.tensor(sample_ids)


def with_previews(groups: Sequence[Group], predictions: Tensor) -> tuple[Group, ...]:
    """The groups with what every step but the last predicted of their samples."""
    rest = iter(predictions)
    return tuple(replace(one, samples=tuple(replace(x, previews=tuple(next(rest))) for x in one.samples)) for one in groups)


def prompts() -> list[Prompt]:
    """Three prompts, each with its own point."""
    return [
        Prompt(str(i), f"point {i}", answer=target, columns={"vector": torch.eye(3)[i].tolist()})
        for i, target in enumerate(TARGETS)
    ]


def nearness(group: Group) -> list[float]:
    """Minus the distance to the answer."""
    answer = torch.tensor(group.prompt.answer)
    return [-float((sample.image - answer).norm()) for sample in group.samples]
