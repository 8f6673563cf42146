"""The gate before training: the weights that sampled must give the same log-probabilities again, or a cause is named."""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.protocols import Clipping, Diagnosable, Hypothesis, Policy
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Reading, Rollouts
from mmrl.training.preflight import TrainingStoppedError
from mmrl.training.settings import TrainSettings

HANDFUL = 8
"""Rows, the worst ones, that are evaluated again to find the cause."""
SHARE = 0.1
"""Of a clip range; also how much of a difference something must move that explains it."""


@dataclass(frozen=True)
class Gap:
    """|log ratio| of actions whose log-probability is known from before."""

    size: Float[Tensor, "n t"]
    """Infinite where one of the two is not finite; 0 where nothing is compared."""
    compared: Bool[Tensor, "n t"]

    @classmethod
    def between(cls, mask: Bool[Tensor, "n t"], noted: Tensor, evaluated: Tensor) -> "Gap":
        """NaN in `noted` stands for an action that nobody sampled."""
        known = mask & ~noted.isnan()
        return cls(torch.where(known, (evaluated - noted).abs().nan_to_num(math.inf, math.inf), 0.0), known)

    @property
    def worst(self) -> float:
        return float(self.size.max()) if self.size.numel() else 0.0

    @property
    def total(self) -> float:
        return float(self.size.sum())

    @property
    def average(self) -> float:
        return self.total / max(1, int(self.compared.sum()))


@dataclass(frozen=True)
class Verdict:
    """The finding of one process; of several the worst one's counts."""

    worst: float
    place: str
    cause: str


@dataclass
class RatioGate:
    """Closed until the first micro-batch of a run has passed; all processes pass together or stop together."""

    policy: Policy
    algorithm: Algorithm
    settings: TrainSettings
    ranks: Ranks
    closed: bool = field(default=True, init=False)

    def check(self, rollouts: Rollouts, noted: Tensor, evaluated: Tensor) -> float:
        """The largest |log ratio| before the first update, which must vanish: the weights are still those that sampled.

        Raises:
            TrainingStoppedError: beyond `ratio_bound`, or beyond `mean_ratio_bound` on average; names the worst row's prompt
                and the likely cause.
        """
        return self._check("before the first update", rollouts, noted, evaluated, self.settings.mean_ratio_bound)

    def first(self, micro_batch: Batch, live: dict[Reading, Tensor]) -> None:
        """The same of the first micro-batch, whose forward is the one with gradient; then the gate is open.

        The mean must be below a tenth of the objective's clip range besides.
        """
        if not self.closed:
            return
        self.closed = False
        old = micro_batch.frozen.get(OLD_LOGPROBS, micro_batch.rollouts.recorded.get(ROLLOUT_LOGPROBS))
        if old is None or LOGPROBS not in live:
            return
        ranges = [term.clip_range for _, term in self.algorithm.objective if isinstance(term, Clipping)]
        ranges = [clipped for clipped in ranges if clipped.of == "ratio"]
        bound = min(
            [self.settings.mean_ratio_bound, *(SHARE * clipped.narrowest for clipped in ranges if clipped.level == "action")]
        )
        evaluated = live[LOGPROBS].detach()
        self._check("in the first forward with a gradient", micro_batch.rollouts, old, evaluated, bound)
        per_rollout = [SHARE * clipped.narrowest for clipped in ranges if clipped.level == "rollout"]
        if per_rollout:
            self._check_rollouts(micro_batch.rollouts, old, evaluated, min(per_rollout))

    def _check(self, moment: str, rollouts: Rollouts, noted: Tensor, evaluated: Tensor, mean_bound: float) -> float:
        gap, bound = Gap.between(rollouts.action_mask, noted, evaluated), self.settings.ratio_bound
        worst = max(self.ranks.gather(gap.worst))
        total, count = self.ranks.sum([gap.total, int(gap.compared.sum())])
        average = total / max(1.0, count)
        if worst <= bound and average <= mean_bound:
            return worst
        cause = self._cause(rollouts, noted, evaluated, gap, (bound, mean_bound))
        mine = Verdict(gap.worst, worst_action(rollouts, noted, evaluated, gap), cause)
        found = max(self.ranks.gather(mine), key=lambda verdict: verdict.worst)
        raise TrainingStoppedError(
            f"{moment} {found.place}: |log ratio| is {worst:.2e} at most and {average:.2e} on average, beyond "
            f"ratio_bound = {bound:g} or mean_ratio_bound = {mean_bound:g}. {found.cause}"
        )

    def _check_rollouts(self, rollouts: Rollouts, noted: Tensor, evaluated: Tensor, bound: float) -> None:
        """The ratio of a whole rollout is the mean over its actions, with their signs."""
        known = rollouts.action_mask & ~noted.isnan()
        mean = torch.where(known, evaluated - noted, 0.0).sum(1) / known.sum(1).clamp(min=1)
        worst = max(self.ranks.gather(float(mean.abs().max()) if len(mean) else 0.0))
        if worst > bound:
            raise TrainingStoppedError(
                f"in the first forward with a gradient the log ratio of a rollout is {worst:.2e}, beyond a tenth of the clip "
                f"range of rollouts ({bound:.1e}), so clipping would act on noise: set algorithm.old = 'reread', or use float32"
            )

    def _cause(self, rollouts: Rollouts, noted: Tensor, evaluated: Tensor, gap: Gap, bounds: tuple[float, float]) -> str:
        """A sentence on the first hypothesis that explains the worst rows, or on what was tried in vain."""
        fewest = -self.ranks.most(-len(rollouts))
        if not isinstance(self.policy, Diagnosable) or fewest == 0:
            return "This policy cannot look for the cause itself: compare precision, masks, positions and weights of both sides"
        rows = gap.size.amax(1).argsort(descending=True, stable=True)[: min(HANDFUL, fewest)]
        diagnosis = Diagnosis(rollouts.take(rows), noted[rows], evaluated[rows], bounds)
        tried: list[str] = []
        answer = ""
        for hypothesis in self.policy.diagnostics.hypotheses(diagnosis.rollouts):
            # One process may stop at the first cause; of several, all read equally often.
            said = diagnosis.ask(hypothesis) if not answer or self.ranks.world > 1 else None
            answer = answer or said or ""
            tried.append(hypothesis.cause)
            if answer and self.ranks.world == 1:
                break
        infinite = gap.worst == math.inf
        end = "Look for weights that diverged, or use float32" if infinite else "Training on would be wrong"
        return answer or f"No single cause explains it; tried: {', '.join(dict.fromkeys(tried))}. {end}"


@dataclass
class Diagnosis:
    """The rows that differ most, and what sampler and training say of them."""

    rollouts: Rollouts
    noted: Float[Tensor, "n t"]
    evaluated: Float[Tensor, "n t"]
    bounds: tuple[float, float]
    """(largest, mean) |log ratio| that is no difference."""
    worst: float = field(init=False)
    """What is to be explained."""
    average: float = field(init=False)

    def __post_init__(self) -> None:
        gap = Gap.between(self.rollouts.action_mask, self.noted, self.evaluated)
        self.worst, self.average = gap.worst, gap.average

    def ask(self, hypothesis: Hypothesis) -> str | None:
        """A sentence if this is the cause."""
        if hypothesis.read is None:
            return f"Likely cause: {hypothesis.cause} ({hypothesis.change}). {hypothesis.remedy}"
        try:
            values = hypothesis.read().detach()
        except (RuntimeError, ValueError, OSError):
            # A change that this model or machine cannot make is no explanation.
            return None
        if hypothesis.must_equal == "reading":
            return self.explain_change(hypothesis, values)
        mask = self.rollouts.action_mask
        left = Gap.between(mask, self.noted, torch.where(values.isnan(), self.noted, values))
        still = int((left.compared & ~values.isnan()).sum())
        fits = left.worst <= self.bounds[0] and left.average <= self.bounds[1]
        shrunk = left.worst * hypothesis.shrinks <= self.worst < math.inf and left.average * hypothesis.shrinks <= self.average
        if hypothesis.control and not fits:
            # The rows differ less among themselves than among all: no change may take credit for that.
            self.worst, self.average = min(self.worst, left.worst), min(self.average, left.average)
            return None
        if 2 * still < int(left.compared.sum()) or not (fits or shrunk):
            return None
        return (
            f"Likely cause: {hypothesis.cause} (evaluated again {hypothesis.change}, the {len(mask)} worst rows differ by "
            f"{left.worst:.1e} at most instead of {self.worst:.1e}). {hypothesis.remedy}"
        )

    def explain_change(self, hypothesis: Hypothesis, values: Tensor) -> str | None:
        """A sentence if what training reads changes where it must not, by as much as the difference to be explained."""
        change = Gap.between(self.rollouts.action_mask, self.evaluated, values)
        if change.worst <= self.bounds[0] or change.worst < SHARE * self.worst:
            return None
        return (
            f"Likely cause: {hypothesis.cause} (evaluated again {hypothesis.change}, the {len(values)} worst rows change by "
            f"{change.worst:.1e}, which must be nothing). {hypothesis.remedy}"
        )


def worst_action(rollouts: Rollouts, noted: Tensor, evaluated: Tensor, gap: Gap) -> str:
    """The worst action, by its prompt and sample, and both its log-probabilities."""
    if not gap.size.numel():
        return "no action of this process differs"
    row, action = divmod(int(gap.size.argmax()), gap.size.shape[1])
    group = next(group for group in rollouts.groups if group.id == int(rollouts.group_ids[row]))
    return (
        f"the log-probability of action {action} of prompt {group.prompt.id!r} (sample {int(rollouts.sample_ids[row])}) is "
        f"{float(evaluated[row, action]):.6f}, but the sampler noted {float(noted[row, action]):.6f}"
    )
