"""Why an image generator may evaluate other log-probabilities than it noted while sampling: one controlled reading per reason."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.core.protocols import Hypothesis
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts
from mmrl.flow.sigmas import timesteps, truncated_timesteps
from mmrl.policies.flow.families.base import Condition
from mmrl.policies.flow.families.sources import kind_of
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.prompt.encode import key_of
from mmrl.policies.flow.trace import FlowTrace
from mmrl.policies.shared.hypotheses import (
    BATCH,
    LIVE,
    SHIFT,
    WEIGHTS,
    adapters,
    dropout,
    layers_that_drop,
    move_columns,
    precision,
    repetition,
)
from mmrl.policies.shared.interventions import distance, holding, in_precision, nearest_reading, without_dropout

TRIES = 4
"""Other prompts whose embeddings are used instead of a row's own."""
MOST_GUIDANCE = 100.0
GUIDANCE, PROMPT, POSITIONS = "guidance differs between sampling and training", "wrong prompt embeddings", "wrong times"


@dataclass(frozen=True)
class FlowDiagnostics:
    """Says why readings of a FlowPolicy may differ."""

    policy: FlowHost

    def hypotheses(self, rollouts: Rollouts) -> Iterator[Hypothesis]:
        trace = rollouts.trace
        assert isinstance(trace, FlowTrace)
        again = Again(self.policy, rollouts, trace)
        yield from model_hypotheses(again)
        yield from guidance_hypotheses(again)
        yield from row_hypotheses(again)


@dataclass(frozen=True)
class Again:
    """Evaluates transitions again with one thing changed."""

    policy: FlowHost
    rollouts: Rollouts
    trace: FlowTrace

    @property
    def mask(self) -> Bool[Tensor, "n t"]:
        return self.rollouts.action_mask

    def __call__(self, trace: FlowTrace | None = None, mask: Tensor | None = None, model: str = "policy") -> Float[Tensor, "n t"]:
        """Log-probabilities as the policy reads them."""
        return self.policy.logprobs(trace or self.trace, self.mask if mask is None else mask, model)

    def under(self, change: AbstractContextManager[object]) -> Float[Tensor, "n t"]:
        """Log-probabilities read while something is changed."""
        with change:
            return self()

    def with_guidance(self, guidance: float) -> Float[Tensor, "n t"]:
        """Log-probabilities with another guidance."""
        return self.under(holding(self.policy.net, "guidance", guidance))

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

    def noise_between_readings(self, change: AbstractContextManager[object]) -> float:
        """How far two readings are apart, over how far they are from what was noted."""
        with change:
            one, two = self(), self()
        return distance(one, two, self.rollouts.recorded[ROLLOUT_LOGPROBS], self.mask)

    def one_by_one(self) -> Float[Tensor, "n t"]:
        """Log-probabilities read one latent at a time."""
        change = holding(self.policy, "config", replace(self.policy.config, forward_rows=1))
        return self.under(change)


def model_hypotheses(again: Again) -> Iterator[Hypothesis]:
    """Reasons within the model: repetition, dropout, precision, batches, weights."""
    policy, net = again.policy, again.policy.net
    yield repetition(again)
    yield from dropout(
        lambda: again.under(without_dropout(net)),
        lambda: (again.noise_between_readings(nullcontext()), again.noise_between_readings(without_dropout(net))),
    )
    for name in ("float32", "bfloat16", "float16"):
        yield precision(name, lambda name=name: again.under(in_precision(net, name)))
    remedy = "Remove what mixes rows (batch statistics), use float32, or set policy.equal_forwards = true"
    for change, read in (("one latent at a time", again.one_by_one), ("all together", again)):
        yield Hypothesis(BATCH, change, remedy, read, must_equal="reading")
    for name in sorted(policy.weights.shadows):
        yield Hypothesis(WEIGHTS, f"under the {name} weights", LIVE, partial(again, model=name))
    yield from adapters(net, again.under)


def row_hypotheses(again: Again) -> Iterator[Hypothesis]:
    """Reasons in the rows: columns, prompts and times that were mixed up."""
    trace = again.trace
    for by in (1, -1):
        remedy = "Look for code that cuts, pads or rolls masks, steps or recorded log-probabilities"
        yield Hypothesis(SHIFT, f"with columns moved by {by:+d}", remedy, partial(read_shifted, again, by))
    remedy = "Embeddings must belong to the row's prompt: look for code that permutes, caches or indexes them"
    yield Hypothesis(PROMPT, "with prompts encoded afresh", remedy, lambda: again(replace(trace, conditions=encode_again(again))))
    offsets = [partial(again, replace(trace, prompt_index=of_other_prompts(trace, i))) for i in range(TRIES)]
    change = "with the embeddings of other prompts of the step"
    yield Hypothesis(
        PROMPT, change, remedy, lambda: nearest_reading(offsets, again.rollouts.recorded[ROLLOUT_LOGPROBS], again.mask)
    )
    remedy = "The network must get the times of the schedule: look for code that rounds, scales or shifts timesteps"
    for name, rule in (("exact", timesteps), ("truncated", truncated_timesteps)):
        timed = replace(trace, timesteps=times_by(trace, rule))
        yield Hypothesis(POSITIONS, f"with the {name} times of the schedule", remedy, partial(again, timed))
    yield from layers_that_drop(again.policy.net)


def read_shifted(again: Again, by: int) -> Float[Tensor, "n t"]:
    """Log-probabilities with every value `by` columns later; NaN where none came from."""
    sigma_plans = [sigma_plan.deviations > 0 for sigma_plan in again.trace.sigma_plans]
    pairs = zip(again.trace.course_index.tolist(), again.trace.steps, strict=True)
    known = torch.stack([sigma_plans[i][steps] & (steps >= 0) for i, steps in pairs])
    return move_columns(again(mask=known), known, by)


def of_other_prompts(trace: FlowTrace, by: int) -> Int[Tensor, " n"]:
    """The places of other conditions, `by` further on among those with as many tokens of pictures as the row's own."""
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


def times_by(trace: FlowTrace, rule: Callable[[Tensor], Tensor]) -> Float[Tensor, "n t"]:
    """The times that the network would be given if `rule` made them of the plans' sigmas."""
    out = trace.timesteps.clone()
    for i, sigma_plan in enumerate(trace.sigma_plans):
        own = (trace.course_index == i)[:, None] & (trace.steps >= 0)
        out[own] = rule(sigma_plan.sigmas).float()[trace.steps[own]]
    return out


def guidance_hypotheses(again: Again) -> Iterator[Hypothesis]:
    """Another guidance while sampling than while training."""
    policy, net = again.policy, again.policy.net
    remedy = f"Training uses guidance {net.guidance:g}: sample with the same, policy.guidance belongs to both"
    planned = [sigma_plan.plan.guidance for sigma_plan in again.trace.sigma_plans if sigma_plan.plan.guidance is not None]
    known = {1.0, policy.family.default_guidance, policy.config.guidance or math.nan, *planned}
    for guidance in sorted(g for g in known if not math.isnan(g) and g != net.guidance):
        yield Hypothesis(GUIDANCE, f"with guidance {guidance:g}", remedy, partial(again.with_guidance, guidance))
    if not policy.family.embeds_guidance:
        yield Hypothesis(GUIDANCE, "with the guidance that fits the record best", remedy, again.with_best_guidance)
