"""The alarm for reward hacking: the trained rewards rise while a watched reward, or variety, falls, or while texts drift away."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mmrl.core.protocols import State
from mmrl.core.types import Group, Scores
from mmrl.training.measure import diversity, fingerprints, first_pictures, mean, prompt_distance, sameness
from mmrl.training.settings import AlarmSettings

SPREADS = 3.0
"""The first steps' values are rarely this many spreads from their median by chance."""
Finding = tuple[str, str]
"""A key, and a sentence about it."""
ROUNDING = 1e-6
"""A relative difference this small counts as none."""


@dataclass(frozen=True)
class HeldOutScores:
    """One evaluation's scores of every held-out prompt, samples averaged; the prompts are the same every time."""

    step: int
    trained: list[float]
    watched: dict[str, list[float]]
    train_totals: list[float]
    """reward/total of the training steps just before."""
    variety: dict[str, float]
    """sameness of texts, or diversity and diversity_prompts of pictures."""

    @classmethod
    def of(cls, step: int, groups: Sequence[Group], scores: Scores, train_totals: Sequence[float]) -> "HeldOutScores":
        sizes = [len(group.samples) for group in groups]
        columns = {name: scores.values[:, k] for k, name in enumerate(scores.names) if not scores.weights[k]}
        watched = {name: by_prompt(column, sizes) for name, column in columns.items() if "@" not in name}
        spread = diversity(groups)
        variety = {
            "sameness": sameness(fingerprints(groups)),
            "diversity": mean(spread) if spread else None,
            "diversity_prompts": prompt_distance(first_pictures(groups)),
        }
        known = {name: value for name, value in variety.items() if value is not None}
        return cls(step, by_prompt(scores.total(), sizes), watched, list(train_totals), known)


class SampleShift(NamedTuple):
    """From one sample of numbers to another."""

    before: float
    after: float
    chance: float
    """How often chance alone gives a change this large in this direction."""
    size: float
    """The difference in standard deviations of the numbers; infinite where they do not vary."""


class Alarm:
    """Compares every evaluation with the first, and with the one that was best for a watched reward."""

    def __init__(self, settings: AlarmSettings = AlarmSettings()) -> None:
        self.settings = settings
        self.first: HeldOutScores | None = None
        self.best: dict[str, HeldOutScores] = {}
        """By watched reward, and by measure of variety."""
        self.count = 0
        """Evaluations since the first: the best of many is partly so by chance."""

    def after_evaluation(self, now: HeldOutScores, first_totals: Sequence[float]) -> Iterator[Finding]:
        """Findings that a watched reward fell, significantly and by much, while the trained rewards rose.

        Args:
            first_totals: reward/total of the run's first steps, which stand for the time before them.
        """
        if self.first is None or len(self.first.trained) != len(now.trained):
            self.first, self.best, self.count = now, dict.fromkeys(now.watched, now), 0
            if now.watched and len(now.trained) < self.settings.least_prompts:
                yield (
                    "too_few_prompts",
                    f"{len(now.trained)} held-out prompts are too few to notice reward hacking by the watched rewards: "
                    f"take at least {self.settings.least_prompts} (evaluation.num_prompts), better 64",
                )
        self.count += 1
        for name, values in now.watched.items():
            if name in self.settings.ignore or name not in self.best:
                continue
            for then, choices in ((self.best[name], self.count), (self.first, 1)):
                risen = self._rise(then, now, first_totals)
                fall = self._fall(then.watched[name], values, choices)
                if risen and fall:
                    yield f"alarm/{name}", self._sentence(name, then, now, risen, fall)
                    break
            if mean(values) >= mean(self.best[name].watched[name]):
                self.best[name] = now
        yield from self._variety_losses(now, first_totals)

    def after_step(self, first: Mapping[str, list[float]], last: Mapping[str, list[float]]) -> Iterator[Finding]:
        """Variety or length collapsed while what is trained on rose, or, where no reward is watched, texts drifted away.

        Args:
            first, last: metrics of the run's first steps and of its last ones, as many of both.
        """
        risen = independent_change(first["reward/total"], last["reward/total"])
        if not risen.chance <= self.settings.rise_chance:
            return
        for name, what in VARIETIES.items():
            metric = f"train/{name}"
            if metric in first and metric in last:
                before, after = mean(first[metric]), mean(last[metric])
                if self._is_narrow(name, before, after):
                    figures = f"{metric} from {before:.3g} to {after:.3g}"
                    yield f"alarm/{metric}", loss_of_variety(risen, "in training", what, figures)
        before, after = mean(first["rollout/length"]), mean(last["rollout/length"])
        if after < self.settings.min_length * before and not were_cut_off(first):
            what = "completions shrank to almost nothing"
            yield "alarm/length", loss_of_variety(risen, "in training", what, f"from {before:.3g} tokens to {after:.3g}")
        elif self.first is None or not self.first.watched.keys() - set(self.settings.ignore):
            yield from drift_findings(risen, first, last, self.settings.max_drift)

    def state_dict(self) -> State:
        first = None if self.first is None else asdict(self.first)
        return {"count": self.count, "first": first, "best": {name: asdict(evaluation) for name, evaluation in self.best.items()}}

    def load_state_dict(self, state: State) -> None:
        self.count = state["count"]
        self.first = None if state["first"] is None else HeldOutScores(**state["first"])
        self.best = {name: HeldOutScores(**evaluation) for name, evaluation in state["best"].items()}

    def _variety_losses(self, now: HeldOutScores, first_totals: Sequence[float]) -> Iterator[Finding]:
        """Answers to held-out prompts became alike since the evaluation where they were most different."""
        for name, after in now.variety.items():
            then = self.best.setdefault(name, now)
            before = then.variety[name]
            risen = self._rise(then, now, first_totals)
            if risen and self._is_narrow(name, before, after):
                since = f"{name} from {before:.3g} at step {then.step} to {after:.3g} at step {now.step}"
                yield f"alarm/eval/{name}", loss_of_variety(*risen, VARIETIES[name], since)
            if (after <= before) if name == "sameness" else (after >= before):
                self.best[name] = now

    def _is_narrow(self, name: str, before: float, after: float) -> bool:
        if name == "sameness":
            return after > self.settings.max_sameness and 1 - after < self.settings.min_variety * (1 - before)
        return after < self.settings.min_variety * before

    def _fall(self, before: Sequence[float], after: Sequence[float], choices: int) -> SampleShift | None:
        """Unless chance explains it, given that `before` is the best of n."""
        change = pairwise_change(before, after, sign=-1, least=self.settings.least_prompts)
        unlikely = change.chance * choices <= self.settings.fall_chance
        return change if unlikely and change.size >= self.settings.least_fall else None

    def _rise(self, then: HeldOutScores, now: HeldOutScores, first_totals: Sequence[float]) -> tuple[SampleShift, str] | None:
        """On the held-out prompts, or in training."""
        held_out = pairwise_change(then.trained, now.trained, sign=1, least=self.settings.least_prompts)
        if held_out.chance <= self.settings.rise_chance:
            return held_out, "on held-out prompts"
        training = independent_change(then.train_totals or first_totals, now.train_totals)
        return (training, "in training") if training.chance <= self.settings.rise_chance else None

    def _sentence(
        self, name: str, then: HeldOutScores, now: HeldOutScores, risen: tuple[SampleShift, str], fall: SampleShift
    ) -> str:
        rise, where = risen
        best = self.best[name].step
        return (
            f"alarm, reward hacking? From step {then.step} to step {now.step} the trained reward rose from {rise.before:.3g} to "
            f"{rise.after:.3g} {where}, while the watched reward {name!r} fell from {fall.before:.3g} to {fall.after:.3g} on "
            f"{len(now.trained)} held-out prompts. Compare the samples of both steps: what the trained reward likes may not be "
            f"what you want. Then train on {name!r} too, penalize what the samples exploit, add a KL penalty or lower "
            f"optimizer.lr; {name!r} was best at step {best}, so go back to a checkpoint from about there"
        )


VARIETIES = {
    "sameness": "different prompts came to be answered by the same text",
    "diversity": "the pictures of a prompt became alike",
    "diversity_prompts": "the pictures of different prompts became alike",
}
"""What it means when one of them goes the wrong way."""


def loss_of_variety(risen: SampleShift, where: str, what: str, figures: str) -> str:
    return (
        f"alarm, reward hacking? The trained reward rose from {risen.before:.3g} to {risen.after:.3g} {where}, while {what} "
        f"({figures}). Look at the samples: if they are not what you want, reward what is missing in them, add a KL penalty "
        "(algorithm.objective) or lower optimizer.lr, and go back to an earlier checkpoint"
    )


def drift_findings(
    risen: SampleShift, first: Mapping[str, list[float]], last: Mapping[str, list[float]], factor: float
) -> Iterator[Finding]:
    """Findings about measures that drifted, each with the advice to watch a reward that shows whether it is harmless."""
    for measure, what, before, after in drifts(first, last, factor):
        if measure == "rollout/length" and after < before and were_cut_off(first):
            continue
        yield (
            f"alarm/drift/{measure}",
            f"alarm, reward hacking? The trained reward rose from {risen.before:.3g} to {risen.after:.3g} in training, while "
            f"{what} ({measure} from {before:.3g} to {after:.3g}), and no reward is watched that would tell if that is good. "
            "Read the samples, and watch a reward ([[evaluation.reward]]); if they are as you want, raise health.alarm.max_drift",
        )


def were_cut_off(first: Mapping[str, list[float]]) -> bool:
    """True if completions did not end by themselves at the start: then shorter ones are what is wanted."""
    return mean(first.get("rollout/truncated", [])) > 0.2


def by_prompt(values: Tensor, sizes: Sequence[int]) -> list[float]:
    """Means over every prompt's samples that have a value; NaN where none has."""
    return [float(part[part.isfinite()].mean()) for part in values.split(list(sizes))]


def pairwise_change(before: Sequence[float], after: Sequence[float], sign: Literal[1, -1], least: int) -> SampleShift:
    """The change over prompts that have both values; its chance is 1 if there are fewer than `least`."""
    pairs = [pair for pair in zip(before, after, strict=False) if all(map(math.isfinite, pair))]
    if len(pairs) < least:
        return SampleShift(math.nan, math.nan, 1.0, 0.0)
    x, y = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    error = float((y - x).std() / len(pairs) ** 0.5)
    return change(x, y, sign, error, len(pairs) - 1)


def independent_change(before: Sequence[float], after: Sequence[float]) -> SampleShift:
    """The rise from one list of numbers to another; its chance is 1 if either has fewer than three finite ones."""
    x, y = ([value for value in values if math.isfinite(value)] for values in (before, after))
    if min(len(x), len(y)) < 3:
        return SampleShift(math.nan, math.nan, 1.0, 0.0)
    a, b = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    error = float((a.var() / len(x) + b.var() / len(y)) ** 0.5)
    return change(a, b, 1, error, min(len(x), len(y)) - 1)


def change(x: Tensor, y: Tensor, sign: Literal[1, -1], error: float, freedom: int) -> SampleShift:
    before, after = float(x.mean()), float(y.mean())
    difference = sign * (after - before) if abs(after - before) > ROUNDING * max(abs(before), abs(after)) else 0.0
    spread = float(((x.var() + y.var()) / 2) ** 0.5)
    least = ROUNDING * abs(difference)
    return SampleShift(before, after, tail_chance(ratio(difference, error, least), freedom), ratio(difference, spread, least))


def ratio(difference: float, scale: float, least: float) -> float:
    """difference / scale, infinite where the scale is below `least` and the difference is not 0."""
    if difference == 0:
        return 0.0
    return difference / scale if scale > least else math.copysign(math.inf, difference)


def tail_chance(t: float, freedom: int) -> float:
    """How often Student's t with n degrees of freedom is above `t`."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -t)) if math.isfinite(t) else float(t < 0)


def growth(before: float, after: float) -> float:
    return after / before if before else math.inf if after else 1.0


WAYS: tuple[tuple[str, str, Callable[[float, float], float]], ...] = (
    ("rollout/length", "completions became longer", growth),
    ("rollout/length", "completions became shorter", lambda before, after: growth(after, before)),
    ("train/form", "the form that most completions had was given up", lambda before, after: growth(after, before)),
    ("train/repetition", "completions repeat themselves", lambda before, after: growth(1 - after, 1 - before)),
)
"""A metric, what it means when it drifts one way, and how many times it moved that way."""


def drifts(
    first: Mapping[str, list[float]], last: Mapping[str, list[float]], factor: float
) -> Iterator[tuple[str, str, float, float]]:
    """Measures that in each of the last steps (the newer half) are `factor` times and 3 spreads from the median of the first.

    Each as its name, what it means, and the medians of the first steps and of the newer half. The spread is 1.4826 times the
    median distance of the first values from their median, so that one odd step does not count. Pictures have no such drift: their
    actions are the denoising steps, whatever is on them.
    """
    if "train/form" not in first:
        return
    for measure, what, times in WAYS:
        if not first.get(measure) or not last.get(measure):
            continue
        before = statistics.median(first[measure])
        spread = 1.4826 * statistics.median(abs(value - before) for value in first[measure])
        newer = last[measure][-max(3, len(last[measure]) // 2) :]
        if all(times(before, now) >= factor and abs(now - before) >= SPREADS * spread for now in newer):
            yield measure, what, before, statistics.median(newer)
