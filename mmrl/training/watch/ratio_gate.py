"""The gate before training: the weights that sampled must reproduce their log-probabilities, or a cause is named."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.hooks import PolicyHooks, TermHooks, with_hooks
from mmrl.core.protocols import Hypothesis, Policy, Rounding
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Reading, Rollouts
from mmrl.training.settings import TrainSettings
from mmrl.training.stopping import TrainingStoppedError

HANDFUL = 8
"""Rows, the worst ones, that are evaluated again to find the cause."""
SHARE = 0.1
"""Of a clip range; also how much of a difference something must move that explains it."""
COARSE_SHARE = 0.2
"""Of a clip range, where rounding is coarse: of errors as long-tailed as |log ratio|, fewer than one in a hundred is clipped."""
NOISES = 3.0
"""The mean bound in what rounding was measured to make: decoding and reading differ by about one."""
FEWEST_ROUNDINGS, MOST_ROUNDINGS = 0.5, 2.0
"""The mean bound in unit * sqrt(depth), whatever was measured. A 3B model of 36 layers in bfloat16 makes 0.7 to 1.0 of them."""
PEAK = 20.0
"""The largest |log ratio| that rounding makes of any action, in mean bounds; at most 1."""
BOUND, MEAN_BOUND = 2e-5, 0.02
"""Of float32, any action and the mean: a tenth of a clip range of 0.2."""
ENGINE_BOUNDS = (1e-4, 2e-2)
"""Largest |log ratio| in float32, and the least mean bound in coarser precision, where an engine samples."""
EXCHANGED, KEEP_ROWS = "exchanged rows", "Every row must keep its own record: look for code that sorts, gathers or joins rows"
EXCHANGE_SHRINKS = 100.0
"""How many times nearer a row must be to another row's record than to its own."""
ENGINE_LOOKS = 4
"""Steps at whose beginning an engine or a sampler ahead is compared: what is kept from before shows after an update only."""
Causes = Callable[[Rollouts], Iterable[Hypothesis]]
"""Why rows may differ, apart from what their policy knows."""


def no_causes(rollouts: Rollouts) -> Iterable[Hypothesis]:
    """Nothing but what the policy knows."""
    return ()


@dataclass(frozen=True)
class Gap:
    """|log ratio| of actions whose log-probability is known from before."""

    size: Float[Tensor, "n t"]
    """Infinite where one of the two is not finite; 0 where nothing is compared."""
    compared: Bool[Tensor, "n t"]

    @classmethod
    def between(cls, mask: Bool[Tensor, "n t"], noted: Tensor, evaluated: Tensor) -> "Gap":
        """NaN in `noted` stands for an action that was not sampled."""
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
class Bounds:
    """The |log ratio| that is no difference: of any action, and on average."""

    worst: float
    mean: float

    def hold(self, worst: float, mean: float) -> bool:
        return worst <= self.worst and mean <= self.mean


@dataclass
class RatioGate:
    """Closed until the first micro-batch of a run has passed; all processes pass together or stop together.

    Bounds that the settings leave to it ("auto") are those of float32, or what rounding is seen to make: a handful of rows is
    read again in ways that are equal but for rounding (decoded from the cache, one by one), and the mean may be NOISES times what
    these differ, but at most MOST_ROUNDINGS unit * sqrt(depth). Neither the sampler's numbers nor the reading that trains is
    among them, so what is wrong with one of these widens nothing.
    """

    policy: Policy
    algorithm: Algorithm
    settings: TrainSettings
    ranks: Ranks
    closed: bool = field(default=True, init=False)
    bounds: Bounds | None = field(default=None, init=False)
    """What held at the last look."""
    noise: float = field(default=math.nan, init=False)
    """Mean |difference| between readings that are equal but for rounding, once it was measured."""
    looks: bool = field(default=True, init=False)
    """Are the next rollouts compared? Those of a process's first step; of an engine and of samplers ahead, of the first few."""
    _lags: bool = field(default=False, init=False)
    """Do earlier weights write the rows, so that the record says nothing of the live ones?"""
    _looks: int = field(default=0, init=False)

    @property
    def is_exact(self) -> bool:
        """Does the network that trains sample, too?"""
        return with_hooks(self.policy, PolicyHooks).exact_sampler

    @property
    def _looks_on(self) -> bool:
        return (not self.is_exact or self.settings.ahead > 0) and self._looks < ENGINE_LOOKS

    @property
    def rounding(self) -> Rounding | None:
        """How the policy's network rounds, if it knows."""
        return with_hooks(self.policy, PolicyHooks).rounding

    @property
    def is_coarse(self) -> bool:
        """Does rounding make more than what float32's bounds allow?"""
        return self.rounding is not None and self.rounding.is_coarse

    def expect_lag(self) -> None:
        """Earlier weights write the rows from now on, so what was recorded says nothing of the live ones."""
        self._lags = True

    def check(self, rollouts: Rollouts, noted: Tensor, evaluated: Tensor, causes: Causes = no_causes) -> float:
        """The largest |log ratio| before the first update, which must vanish: the weights are still those that sampled.

        Args:
            causes: hypotheses for some rows besides the policy's own.

        Raises:
            TrainingStoppedError: beyond `ratio_bound`, or beyond `mean_ratio_bound` on average; names the worst row's prompt
                and the likely cause.
        """
        self._looks += 1
        self.looks = self.closed or self._looks_on
        moment = "before the first update" if self.closed else "before this step's first update"
        return self._check(moment, rollouts, noted, evaluated, causes=causes)

    def first(self, micro_batch: Batch, live: dict[Reading, Tensor], more: bool = False) -> None:
        """The same of a process's first micro-batch, whose forward is the one with gradient; then the gate is open.

        Where old log-probabilities are not the live ones themselves, the mean must be below a tenth of the objective's clip range
        besides, or a fifth where rounding is coarse, unless the config bounds the mean itself. With `more`, it is another
        process's turn next, and its micro-batch is compared too.
        """
        self.closed, self.looks = more, self._looks_on
        noted = None if self._lags else micro_batch.rollouts.recorded.get(ROLLOUT_LOGPROBS)
        old = micro_batch.frozen.get(OLD_LOGPROBS, noted)
        if old is None or LOGPROBS not in live:
            return
        evaluated = live[LOGPROBS].detach()
        known = [with_hooks(term, TermHooks).clip_range for _, term in self.algorithm.objective]
        ranges = [one for one in known if one is not None and one.of == "ratio" and OLD_LOGPROBS in micro_batch.frozen]
        share = COARSE_SHARE if self.is_coarse else SHARE
        of_actions = [share * clipped.narrowest for clipped in ranges if clipped.level == "action"]
        most = min(of_actions, default=math.inf) if self.settings.mean_ratio_bound == "auto" else math.inf
        self._check("in the first forward with a gradient", micro_batch.rollouts, old, evaluated, most)
        per_rollout = [SHARE * clipped.narrowest for clipped in ranges if clipped.level == "rollout"]
        if per_rollout:
            self._check_rollouts(micro_batch.rollouts, old, evaluated, min(per_rollout))

    def _check(
        self,
        moment: str,
        rollouts: Rollouts,
        noted: Tensor,
        evaluated: Tensor,
        most: float = math.inf,
        causes: Causes = no_causes,
    ) -> float:
        # weights that are gone sampled replayed rows
        noted = noted.masked_fill(rollouts.is_replayed()[:, None], math.nan)
        gap = Gap.between(rollouts.action_mask, noted, evaluated)
        worst = max(self.ranks.gather(gap.worst))
        total, count = self.ranks.sum([gap.total, int(gap.compared.sum())])
        average = total / max(1.0, count)
        bounds = self._bounds(self.noise, most)
        is_auto = "auto" in (self.settings.ratio_bound, self.settings.mean_ratio_bound)
        if not bounds.hold(worst, average) and is_auto and self.is_coarse and self.is_exact:
            found = [noise for noise in (self.noise, self._measure(rollouts)) if not math.isnan(noise)]
            self.noise = max(found, default=math.nan)
            bounds = self._bounds(self.noise, most)
        self.bounds = bounds
        if bounds.hold(worst, average):
            return worst
        cause = self._cause(rollouts, noted, evaluated, gap, causes)
        mine = gap.worst, worst_action(rollouts, noted, evaluated, gap), cause
        _, place, cause = max(self.ranks.gather(mine), key=itemgetter(0))
        measured = "" if math.isnan(self.noise) else f" (equal readings differ by {self.noise:.1e} on average)"
        raise TrainingStoppedError(
            f"{moment} {place}: |log ratio| is {worst:.2e} at most and {average:.2e} on average, beyond "
            f"ratio_bound = {bounds.worst:.3g} or mean_ratio_bound = {bounds.mean:.3g}{measured}. {cause}"
        )

    def _bounds(self, noise: float, most: float = math.inf) -> Bounds:
        """The settings' own bounds, and in place of "auto" those of the precision; `noise` is NaN before it was measured."""
        rounding = self.rounding
        worst, mean = BOUND if rounding is None else rounding.bound, MEAN_BOUND
        if rounding is not None and rounding.is_coarse:
            step = rounding.unit * math.sqrt(rounding.depth)
            measured = 0.0 if math.isnan(noise) else NOISES * noise
            mean = min(MOST_ROUNDINGS * step, max(FEWEST_ROUNDINGS * step, measured))
            mean = mean if self.is_exact else max(ENGINE_BOUNDS[1], MOST_ROUNDINGS * step)
            worst = min(1.0, PEAK * mean)
        elif not self.is_exact:
            worst = max(worst, ENGINE_BOUNDS[0])
        own = self.settings
        return Bounds(
            worst if own.ratio_bound == "auto" else own.ratio_bound,
            min(most, mean if own.mean_ratio_bound == "auto" else own.mean_ratio_bound),
        )

    def _measure(self, rollouts: Rollouts) -> float:
        """How far the policy's equal readings of a handful of rows lie apart, as a mean over actions and ranks."""
        fewest = -self.ranks.most(-len(rollouts))
        if self.rounding is None or fewest == 0:
            return math.nan
        rows = torch.linspace(0, len(rollouts) - 1, min(HANDFUL, fewest)).round().long()
        some = rollouts.take(rows)
        one, *others = self.rounding.readings(some)
        means: list[float] = []
        for other in others:
            gap = Gap.between(some.action_mask, one, other)
            total, count = self.ranks.sum([gap.total, int(gap.compared.sum())])
            means.append(total / max(1.0, count))
        return max(means, default=math.nan)

    def _check_rollouts(self, rollouts: Rollouts, noted: Tensor, evaluated: Tensor, bound: float) -> None:
        """The ratio of a whole rollout is the mean over its actions, with their signs."""
        known = rollouts.action_mask & ~noted.isnan() & ~rollouts.is_replayed()[:, None]
        mean = torch.where(known, evaluated - noted, 0.0).sum(1) / known.sum(1).clamp(min=1)
        worst = max(self.ranks.gather(float(mean.abs().max()) if len(mean) else 0.0))
        if worst > bound:
            raise TrainingStoppedError(
                f"in the first forward with a gradient the log ratio of a rollout is {worst:.2e}, beyond a tenth of the clip "
                f"range of rollouts ({bound:.1e}), so clipping would act on noise: set algorithm.old = 'reread', or use float32"
            )

    def _cause(self, rollouts: Rollouts, noted: Tensor, evaluated: Tensor, gap: Gap, causes: Causes) -> str:
        """A sentence on the first hypothesis that explains the worst rows, or on what was tried in vain."""
        fewest = -self.ranks.most(-len(rollouts))
        diagnostics = with_hooks(self.policy, PolicyHooks).diagnostics
        if fewest == 0 or (diagnostics is None and causes is no_causes):
            return "This policy cannot look for the cause itself: compare precision, masks, positions and weights of both sides"
        rows = gap.size.amax(1).argsort(descending=True, stable=True)[: min(HANDFUL, fewest)]
        diagnosis = Diagnosis(rollouts.take(rows), noted[rows], evaluated[rows], self.bounds or self._bounds(self.noise))
        exchange = Hypothesis(
            EXCHANGED, "against the record of another row", KEEP_ROWS, lambda: read_exchanged(rows, noted, evaluated, gap)
        )
        own = () if diagnostics is None else diagnostics.hypotheses(diagnosis.rollouts)
        tried: list[str] = []
        answer = ""
        for hypothesis in chain([exchange], causes(diagnosis.rollouts), own):
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
    """The rows that differ most, with the sampler's and training's log-probabilities."""

    rollouts: Rollouts
    noted: Float[Tensor, "n t"]
    evaluated: Float[Tensor, "n t"]
    bounds: Bounds
    worst: float = field(init=False)
    """The difference to explain."""
    average: float = field(init=False)

    def __post_init__(self) -> None:
        gap = Gap.between(self.rollouts.action_mask, self.noted, self.evaluated)
        self.worst, self.average = gap.worst, gap.average

    def ask(self, hypothesis: Hypothesis) -> str | None:
        """A sentence if the hypothesis is the cause."""
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
        fits = self.bounds.hold(left.worst, left.average)
        shrunk = left.worst * hypothesis.shrinks <= self.worst < math.inf and left.average * hypothesis.shrinks <= self.average
        if hypothesis.control and not fits:
            # Read by themselves these rows differ less than among all: no change may take credit for that.
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
        if change.worst <= self.bounds.worst or change.worst < SHARE * self.worst:
            return None
        return (
            f"Likely cause: {hypothesis.cause} (evaluated again {hypothesis.change}, the {len(values)} worst rows change by "
            f"{change.worst:.1e}, which must be nothing). {hypothesis.remedy}"
        )


def read_exchanged(rows: Int[Tensor, " m"], noted: Float[Tensor, "n t"], evaluated: Float[Tensor, "n t"], gap: Gap) -> Tensor:
    """(m, t): what some rows would have to be read as, if what was noted of the row that fits each best were its own.

    NaN where that row has no action. Raises ValueError unless all fit far better than their own: of rows as alike as those of an
    untrained model, some other one is always near.
    """
    values = evaluated[rows].clone()
    for place, row in enumerate(rows.tolist()):
        own = float(gap.size[row].sum())
        if math.isfinite(own) and own * EXCHANGE_SHRINKS <= gap.worst:
            continue
        both = gap.compared[row] & gap.compared
        off = torch.where(both, (evaluated[row] - noted).abs().nan_to_num(math.inf, math.inf), 0.0).sum(1)
        off[2 * both.sum(1) < gap.compared[row].sum()] = math.inf
        best = int(off.argmin())
        if not math.isfinite(own) or float(off[best]) * EXCHANGE_SHRINKS > own:
            raise ValueError(f"row {row} fits no other one")
        values[place] = torch.where(both[best], noted[row] + evaluated[row] - noted[best], math.nan)
    return values


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
