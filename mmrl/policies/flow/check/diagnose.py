"""Why an image generator's log-probabilities may differ from those it noted while sampling: one controlled reading per reason."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.core.protocols import Hypothesis
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts
from mmrl.flow.dynamics import CPS, DDIM, DanceSDE, FlowSDE
from mmrl.flow.plan import StepPlan
from mmrl.flow.sigmas import shift_by, timesteps, truncated_timesteps
from mmrl.policies.flow.families.base import Condition
from mmrl.policies.flow.families.sources import kind_of
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.prompt.encode import key_of
from mmrl.policies.flow.trace import FlowTrace, SigmaTable
from mmrl.policies.shared import hypotheses as shared
from mmrl.policies.shared.holding import holding
from mmrl.policies.shared.hypotheses import Suspects

TRIES = 4
"""Other prompts whose embeddings are used instead of a row's own."""
MOST_GUIDANCE = 100.0
GUIDANCE, PROMPT, POSITIONS = "guidance differs between sampling and training", "wrong prompt embeddings", "wrong times"
SCHEDULE, NOISE = "schedule shift", "noise level"
REMEDIES = {
    **shared.REMEDIES,
    GUIDANCE: "Sample with the guidance that training uses: policy.guidance belongs to both",
    PROMPT: "Embeddings must belong to the row's prompt: look for code that permutes, caches or indexes them",
    POSITIONS: "The network must get the times of the schedule: look for code that rounds, scales or shifts timesteps",
    SCHEDULE: "Both sides must step through the same sigmas: look for another spacing, shift or size of pictures",
    NOISE: "The density must have the noise that was drawn: look for another level or noise_scale in the plan",
}


@dataclass(frozen=True)
class FlowDiagnostics:
    """Says why readings of a FlowPolicy may differ."""

    policy: FlowHost

    def hypotheses(self, rollouts: Rollouts) -> Iterator[Hypothesis]:
        policy, trace = self.policy, rollouts.trace
        assert isinstance(trace, FlowTrace)
        again = Again(policy, rollouts, trace)
        suspect = Suspects(policy.net, policy.weights, rollouts, again, REMEDIES)
        single = replace(policy.config, forward_rows=1)
        yield from suspect.of_model(lambda: suspect.under(holding([policy], "config", single)), "one latent at a time")
        yield from of_guidance(suspect, again)
        yield from of_rows(suspect, again)
        yield from of_schedule(suspect, again)
        yield from suspect.of_layers()


@dataclass(frozen=True)
class Again:
    """Evaluates transitions again with one thing changed."""

    policy: FlowHost
    rollouts: Rollouts
    trace: FlowTrace

    @property
    def mask(self) -> Bool[Tensor, "n t"]:
        return self.rollouts.action_mask

    def __call__(self, trace: FlowTrace | None = None, mask: Tensor | None = None) -> Float[Tensor, "n t"]:
        """Log-probabilities as the policy reads them."""
        return self.policy.logprobs(trace or self.trace, self.mask if mask is None else mask)

    def with_guidance(self, guidance: float) -> Float[Tensor, "n t"]:
        """Log-probabilities with another guidance."""
        with holding([self.policy.net], "guidance", guidance):
            return self()

    def with_best_guidance(self) -> Float[Tensor, "n t"]:
        """Log-probabilities with the guidance that fits the record best: they are quadratic in it, as velocities are linear."""
        noted, mask = self.rollouts.recorded[ROLLOUT_LOGPROBS].double(), self.mask
        one, two, three = (self.with_guidance(float(g)).double()[mask] for g in (2, 3, 4))
        a = (three - 2 * two + one) / 2
        b = two - one - 5 * a
        c = one - 4 * a - 2 * b - noted[mask]
        at = int(a.abs().argmax())
        root = (b[at] ** 2 - 4 * a[at] * c[at]).clamp(min=0).sqrt()
        found = [float((-b[at] + sign * root) / (2 * a[at])) for sign in (1, -1)] if bool(a[at]) else []
        usable = [round(g, 2) for g in found if 1 <= g <= MOST_GUIDANCE] or [1.0]
        return self.with_guidance(min(usable, key=lambda g: float((a * g * g + b * g + c).abs().max())))

    def with_tables(self, change: Callable[[SigmaTable], SigmaTable]) -> Float[Tensor, "n t"]:
        """Log-probabilities along other plans, with the times of their sigmas."""
        plans = tuple(map(change, self.trace.sigma_tables))
        return self(replace(self.trace, sigma_tables=plans, timesteps=times_by(self.trace, [plan.timesteps for plan in plans])))


def of_guidance(suspect: Suspects, again: Again) -> Iterator[Hypothesis]:
    """Reasons in the guidance: sampling may have used another one than training."""
    policy, net = again.policy, again.policy.net
    planned = [sigma_table.plan.guidance for sigma_table in again.trace.sigma_tables if sigma_table.plan.guidance is not None]
    known = {1.0, policy.family.default_guidance, policy.config.guidance or math.nan, *planned}
    for guidance in sorted(g for g in known if not math.isnan(g) and g != net.guidance):
        yield suspect(GUIDANCE, f"with guidance {guidance:g}", partial(again.with_guidance, guidance))
    if not policy.family.embeds_guidance:
        yield suspect(GUIDANCE, "with the guidance that fits the record best", again.with_best_guidance)


def of_rows(suspect: Suspects, again: Again) -> Iterator[Hypothesis]:
    """Reasons in the rows: columns and prompts that were mixed up."""
    trace = again.trace
    draws = [sigma_table.deviations > 0 for sigma_table in trace.sigma_tables]
    known = torch.stack(
        [draws[i][steps] & (steps >= 0) for i, steps in zip(trace.course_index.tolist(), trace.steps, strict=True)]
    )
    yield from suspect.of_columns(partial(again, mask=known), known)
    change = "with prompts encoded afresh"
    yield suspect(PROMPT, change, lambda: again(replace(trace, conditions=encode_again(again))))
    others = [partial(again, replace(trace, prompt_index=of_other_prompts(trace, i))) for i in range(TRIES)]
    yield suspect.nearest(PROMPT, "with the embeddings of other prompts of the step", others)


def of_schedule(suspect: Suspects, again: Again) -> Iterator[Hypothesis]:
    """Reasons in the schedule: times, sigmas and noise."""
    trace = again.trace
    for name, rule in (("exact", timesteps), ("truncated", truncated_timesteps)):
        times = times_by(trace, [rule(sigma_table.sigmas).float() for sigma_table in trace.sigma_tables])
        yield suspect(POSITIONS, f"with the {name} times of the schedule", partial(again, replace(trace, timesteps=times)))

    def shift(factor: float, one: SigmaTable) -> SigmaTable:
        return replace(one, sigmas=shift_by(factor, one.sigmas.double()).float())

    def louder(factor: float, one: SigmaTable) -> SigmaTable:
        return replace(one, plan=replace(one.plan, steps=tuple(noisier(step, factor) for step in one.plan.steps)))

    change = "with sigmas shifted by {factor}"
    # A network's answers differ even at nearly equal times; at the start of a row, no shift changes the time.
    first = again.mask & (again.mask.cumsum(1) == 1)
    yield from suspect.fit(SCHEDULE, change, lambda factor: again.with_tables(partial(shift, factor)), first)
    change = "with {factor} times the noise level"
    yield from suspect.fit(NOISE, change, lambda factor: again.with_tables(partial(louder, factor)))


def noisier(step: StepPlan, factor: float) -> StepPlan:
    """The step with its noise level scaled; unchanged if its dynamics have none."""
    own = step.dynamics
    return (
        replace(step, dynamics=replace(own, level=factor * own.level))
        if isinstance(own, FlowSDE | DanceSDE | CPS | DDIM)
        else step
    )


def of_other_prompts(trace: FlowTrace, by: int) -> Int[Tensor, " n"]:
    """The places of other conditions, `by` further on among those with the same number of picture tokens as the row's own."""
    kinds = torch.tensor([kind_of(condition) for condition in trace.conditions])
    found = trace.prompt_index.clone()
    for kind in kinds.unique():
        alike, rows = (kinds == kind).nonzero()[:, 0], kinds[trace.prompt_index] == kind
        found[rows] = alike[(torch.searchsorted(alike, trace.prompt_index[rows]) + by) % len(alike)]
    return found


def encode_again(again: Again) -> tuple[Condition, ...]:
    """Embeddings: those of the rows' prompts computed again, the others as they are."""
    policy, conditions = again.policy, list(again.trace.conditions)
    prompts = [group.prompt for group, _ in again.rollouts.samples()]
    keys = [key_of(prompt) for prompt in prompts]
    made = policy.encoder.encode(list(dict(zip(keys, prompts, strict=True)).values()), policy.net.device)
    for place, key in zip(again.trace.prompt_index.tolist(), keys, strict=True):
        conditions[place] = made[key]
    return tuple(conditions)


def times_by(trace: FlowTrace, times: list[Float[Tensor, " t"]]) -> Float[Tensor, "n t"]:
    """The times that the network is given at every action if the steps of plan i have `times[i]`."""
    out = trace.timesteps.clone()
    for i, own_times in enumerate(times):
        own = (trace.course_index == i)[:, None] & (trace.steps >= 0)
        out[own] = own_times[trace.steps[own]]
    return out
