"""Plain-language warnings: say early when a run goes wrong."""

import logging
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mmrl.core.protocols import State
from mmrl.core.types import Group, Scores
from mmrl.training.measure import mean
from mmrl.training.settings import HealthSettings
from mmrl.training.watch.alarm import Alarm, Finding, HeldOutScores

log = logging.getLogger("mmrl")
Metrics = Mapping[str, float]

LOG_RATIO = "rollout/log_ratio"
LEAST_LEAP = 1e-4
"""A mean |log ratio| below this is rounding, whatever is usual: an engine in float32 makes a hundred times less."""
LEAP = 10.0
"""The same as a multiple of what is usual. Rounding grows slowly; a cache that was not emptied costs all of an update at once."""
STILL = 1e-9
"""A mean KL per action below this is no movement."""
USUAL_STEPS = 20
"""Steps whose median is what is usual."""


@dataclass
class MetricMemory:
    """Metrics of a run's first steps and of its last ones, the newest at the end."""

    window: int
    first: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    last: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    num_steps: int = 0

    def add(self, metrics: Metrics) -> None:
        self.num_steps += 1
        if len(self.first) < self.window:
            self.first.append(dict(metrics))
        self.last = [*self.last, dict(metrics)][-self.window :]

    @property
    def full(self) -> bool:
        """True once a whole window has been seen."""
        return len(self.last) == self.window

    @property
    def has_two_windows(self) -> bool:
        """True once the last steps no longer overlap the first."""
        return self.num_steps >= 2 * self.window

    def now(self, name: str) -> float:
        return self.last[-1].get(name, math.nan)

    def recent(self, name: str, absent: float = math.nan) -> float:
        """Mean over the last steps."""
        return mean([metrics.get(name, absent) for metrics in self.last])

    def gain(self, name: str) -> float:
        """The last steps' mean over the first steps'; NaN before these are apart, and where the first is not positive."""
        start = mean([metrics.get(name, math.nan) for metrics in self.first])
        return self.recent(name) / start if self.has_two_windows and start > 0 else math.nan

    def rewards(self) -> list[str]:
        """Names of the rewards that were ever asked."""
        names = [name for name in self.last[-1] if name.startswith("reward/") and name.endswith("/std")]
        return [name.removeprefix("reward/").removesuffix("/std") for name in names]


def no_spread(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """In this step no group has any spread, or over the window most have none."""
    remedy = (
        "raise the temperature (of pictures, the schedule's level), choose prompts of middling difficulty, or check the "
        "reward with its own ground truth"
    )
    if seen.now("reward/no_spread") >= 1:
        yield "no_spread", f"every group's samples got the same reward, so there is nothing to learn from: {remedy}"
    elif seen.full and seen.recent("reward/no_spread") > limits.max_no_spread:
        yield (
            "little_spread",
            f"in {seen.recent('reward/no_spread'):.0%} of the groups of the last {limits.window} steps all samples got the same "
            f"reward, and these teach nothing: {remedy}, or sample until groups differ (algorithm.planner, DynamicSampling)",
        )


def constant_reward(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """A reward gave every sample of every step in the window the same value."""
    for name in seen.rewards() if seen.full else ():
        values = {metrics.get(f"reward/{name}", math.nan) for metrics in seen.last}
        if len(values) == 1 and seen.now(f"reward/{name}/std") == 0 and seen.recent(f"reward/{name}/std") == 0:
            yield (
                f"constant/{name}",
                f"reward {name!r} gave every sample of the last {limits.window} steps {values.pop():.3g}: either all are equally "
                "good, and the prompts too easy or too hard, or the reward does not look at the sample: try it on answers of "
                "your own with `mmrl reward test`",
            )


def missing_answers(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """A reward failed for too many samples, said None for all, or too many samples have no total."""
    for name in seen.rewards():
        failed = seen.recent(f"reward/{name}/failed", absent=0.0)
        if failed > limits.max_failed:
            yield (
                f"failed/{name}",
                f"reward {name!r} failed for {failed:.0%} of the last steps' samples, which then do not train: read its errors "
                "above, look at its server or API, or allow it more time (timeout_s)",
            )
        if seen.full and seen.recent(f"reward/{name}/na", absent=0.0) == 1:
            yield (
                f"na/{name}",
                f"reward {name!r} said None (does not apply) for every sample of the last {limits.window} steps: the prompts "
                "lack what it looks for (an answer, boxes, a column), or it is the wrong reward for this data",
            )
    unscored = seen.recent("rollout/unscored", absent=0.0)
    if unscored > limits.max_unscored:
        yield (
            "unscored",
            f"{unscored:.0%} of the last steps' samples have no total reward and do not train: a weighted reward failed, or none "
            "of the weighted rewards applies to them; see reward/<name>/failed and reward/<name>/na",
        )


def truncations(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """Too many completions were cut off."""
    share = seen.recent("rollout/truncated")
    if share > limits.max_truncated:
        yield (
            "truncated",
            f"{share:.0%} of the completions never stopped and were cut: raise the policy's max_new_tokens, or check that the "
            "chat template teaches the stop token",
        )


def length(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """Completions are many times shorter, or longer, than at the start."""
    gain, now = seen.gain("rollout/length"), seen.recent("rollout/length")
    if gain < 1 / limits.length_factor:
        yield (
            "short",
            f"completions shrank to {now:.3g} tokens, {gain:.0%} of the start's: read the samples; if something is missing in "
            "them, reward it, or compare the mean over tokens (algorithm.aggregation) with the mean over rollouts, which favours "
            "short",
        )
    if gain > limits.length_factor:
        yield (
            "long",
            f"completions grew to {now:.3g} tokens, {gain:.3g} times the start's: read the samples; if they ramble, the reward "
            "favours length: add a penalty (algorithm.shaping, OverlongPenalty) or lower policy.sampling.max_new_tokens",
        )


def entropy(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """Entropy per token is a small part, or a multiple, of the start's."""
    name = "rollout/entropy"
    gain, now = seen.gain(name), seen.recent(name)
    if gain < limits.min_entropy:
        yield (
            "entropy_low",
            f"entropy fell to {now:.3g} per token, {gain:.0%} of the start's: samples hardly differ any more and little is left "
            "to learn from. If the reward is not yet good enough, raise policy.sampling.temperature, lower optimizer.lr, raise "
            "the upper clip range (preset dapo) or add an entropy bonus (algorithm.objective, Entropy)",
        )
    if gain > limits.max_entropy:
        yield (
            "entropy_high",
            f"entropy rose to {now:.3g} per token, {gain:.3g} times the start's: the model turns to noise. Lower optimizer.lr, "
            "lower policy.sampling.temperature, or add a KL penalty (algorithm.objective, ReferenceKL)",
        )


def clipping(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """Over the window most actions were clipped."""
    share = seen.recent("policy/clip_frac")
    if seen.full and share > limits.max_clip_frac:
        yield (
            "clipping",
            f"{share:.0%} of the actions of the last {limits.window} steps were clipped and did not train: lower optimizer.lr, "
            "take fewer minibatches or epochs per step, or widen the clip range (algorithm.objective, Clip)",
        )


def gradient(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """The gradient's norm is many times the window's median, or zero all over the window."""
    name = "policy/grad_norm"
    before = [metrics[name] for metrics in seen.last[:-1] if name in metrics]
    usual, now = statistics.median(before) if before else math.nan, seen.now(name)
    if seen.full and now > limits.grad_factor * usual > 0:
        yield (
            "grad_spike",
            f"the gradient's norm is {now:.3g}, {now / usual:.0f} times the usual {usual:.3g}: one such step is harmless where "
            "optimizer.clip_norm cuts it; if they return, lower optimizer.lr and look at this step's rewards and lengths",
        )
    if seen.full and now == 0 and seen.recent(name) == 0:
        yield (
            "grad_zero",
            f"the gradient was 0 in each of the last {limits.window} steps, so nothing is learnt: no group has any spread, every "
            "action is clipped or masked, or the trainable weights do not take part",
        )


def standstill(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """Gradients arrive, and over the window the model is still the reference."""
    kl = seen.recent("policy/kl")
    if seen.full and abs(kl) < STILL and seen.recent("policy/grad_norm") > 0:
        yield (
            "still",
            f"after {seen.num_steps} steps the model is where it began (KL to the reference {kl:.2g} per action): updates are "
            "too small to move what trains. Raise optimizer.lr; adapters take ten times and more of what all weights take",
        )


def divergence(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """KL to the reference is large, or doubles within a window; or a step's updates lead far from the weights that sampled."""
    name = "policy/kl"
    kl, half = seen.recent(name), limits.window // 2
    early, late = (mean([metrics.get(name, math.nan) for metrics in part]) for part in (seen.last[:half], seen.last[-half:]))
    remedy = "lower optimizer.lr, raise the weight of the KL penalty (algorithm.objective), or stop at an earlier checkpoint"
    if kl > limits.max_kl:
        yield "kl", f"KL to the reference is {kl:.3g} per action: the model has become another one. Look at the samples; {remedy}"
    elif seen.full and late > limits.max_kl / 2 and late > 2 * early:
        yield (
            "kl_runaway",
            f"KL to the reference rose from {early:.3g} to {late:.3g} per action within {limits.window} steps: {remedy}",
        )
    old = seen.recent("policy/kl_old")
    if seen.full and old > limits.max_kl_old:
        yield (
            "kl_old",
            f"within a step the model moves {old:.3g} (KL per action) from the weights that sampled: lower optimizer.lr, or take "
            "fewer minibatches or epochs per step",
        )


def sampler(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """The sampler's log-probabilities are far from those of the weights that train, or many times as far as at the start.

    In a single step: many times as far as usual.
    """
    gap, gain = seen.recent(LOG_RATIO), seen.gain(LOG_RATIO)
    remedy = (
        "it samples with other weights, other numbers or a cache from before an update: restart the engine, compare the dtype on "
        'both sides, or set algorithm.old = "reread" with a RolloutCorrection (algorithm.importance)'
    )
    if gap > limits.max_log_ratio:
        yield "log_ratio", f"the sampler's log-probabilities are {gap:.3g} nats off per action, before any update: {remedy}"
    elif gap > limits.max_log_ratio / 10 and gain > limits.log_ratio_factor:
        yield (
            "log_ratio_rises",
            f"the sampler's log-probabilities are {gap:.3g} nats off per action, {gain:.3g} times the start's: {remedy}",
        )
    gaps = [metrics.get(LOG_RATIO, math.nan) for metrics in (*seen.first, *seen.last)]
    if len(gaps) - 1 in leaps(gaps):
        yield "log_ratio_leaps", f"in this step alone the sampler's log-probabilities are {gaps[-1]:.3g} nats off: {remedy}"


def leaps(values: Sequence[float]) -> list[int]:
    """The places in a run's log-ratios, in their order, that leap above the median of those before, leaps left out.

    The first can only be rounding: no update came before it, so no cache can be stale.
    """
    usual: list[float] = []
    found: list[int] = []
    for place, value in enumerate(values):
        if usual and value > max(LEAST_LEAP, LEAP * statistics.median(usual)):
            found.append(place)
        elif math.isfinite(value):
            usual = [*usual, value][-USUAL_STEPS:]
    return found


def stale_sentence(steps: Sequence[float], values: Sequence[float]) -> str:
    """A sentence on the steps of a run whose log-ratios leap; empty where none does."""
    places = leaps(values)
    if not places:
        return ""
    usual = statistics.median([value for place, value in enumerate(values) if place not in places and math.isfinite(value)])
    few = ", ".join(f"{steps[place]:.0f}" for place in places[:5]) + (", ..." if len(places) > 5 else "")
    worst, first = max(values[place] for place in places), steps[places[0]]
    return (
        f"at {len(places)} of {len(steps)} steps ({few}) the sampler's log-probabilities are up to {worst:.3g} nats per action "
        f"off, and usually {usual:.2g}: a server wrote with caches from before an update, or with other weights. What was "
        f"trained from step {first:.0f} on learned from wrong ratios: resume from a checkpoint before it"
    )


def waiting(seen: MetricMemory, limits: HealthSettings) -> Iterator[Finding]:
    """Training waits most of the time for samples that are drawn beside it."""
    share = seen.recent("time/idle/trainer")
    if seen.full and share > limits.max_trainer_idle:
        yield (
            "trainer_idle",
            f"training waited for samples {share:.0%} of the time of the last {limits.window} steps: add engines "
            "(policy.engine.url) or cluster.samplers, look for slow rewards, or set ahead = 2 if steps take unequally long",
        )


CHECKS: tuple[Callable[[MetricMemory, HealthSettings], Iterator[Finding]], ...] = (
    no_spread,
    constant_reward,
    missing_answers,
    truncations,
    length,
    entropy,
    clipping,
    gradient,
    standstill,
    divergence,
    sampler,
    waiting,
)


class Health:
    """Plain-language warnings about a run, each said once until it has been over for a window of steps."""

    def __init__(self, max_unparsed: float = 0.2, settings: HealthSettings = HealthSettings()) -> None:
        self.max_unparsed, self.settings = max_unparsed, settings
        self.memory = MetricMemory(settings.window)
        self.alarm = Alarm(settings.alarm)
        self.active: dict[str, int] = {}
        """What was found in training, and at which step last."""
        self.alarms: list[str] = []
        """What the last evaluation found."""
        self.said: list[str] = []
        """Keys of all that was said since this process began."""
        self.stop = False
        """An alarm was raised that shall end the run."""

    def after_step(self, step: int, metrics: Metrics) -> list[str]:
        """The sentences that became true with this step."""
        self.memory.add(metrics)
        found = {key: said for check in CHECKS for key, said in check(self.memory, self.settings)} | dict(self._parse_failures())
        if self.memory.has_two_windows:
            found |= dict(self.alarm.after_step(as_lists(self.memory.first), as_lists(self.memory.last)))
        new = self._say(step, found, known=self.active)
        fresh = {key: last for key, last in self.active.items() if step - last < self.settings.window}
        self.active = fresh | dict.fromkeys(found, step)
        return new

    def after_evaluation(self, step: int, groups: Sequence[Group], scores: Scores) -> list[str]:
        """The sentences that became true with the evaluation after `step`."""
        first, last = (as_lists(steps).get("reward/total", []) for steps in (self.memory.first, self.memory.last))
        found = dict(self.alarm.after_evaluation(HeldOutScores.of(step, groups, scores, last), first))
        new = self._say(step, found, known=self.alarms)
        self.alarms = list(found)
        return new

    def state_dict(self) -> State:
        remembered = {name: getattr(self.memory, name) for name in ("first", "last", "num_steps")}
        return {**remembered, "active": self.active, "alarms": self.alarms, "alarm": self.alarm.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Go on where `state` was taken; an empty one (of a run that kept none) changes nothing."""
        if state:
            self.memory = MetricMemory(self.settings.window, state["first"], state["last"], state["num_steps"])
            self.active, self.alarms = dict(state["active"]), list(state["alarms"])
            self.alarm.load_state_dict(state["alarm"])

    def _parse_failures(self) -> Iterator[Finding]:
        for name in self.memory.last[-1]:
            share = self.memory.recent(name)
            if name.endswith("/unparsed") and share > self.max_unparsed:
                yield (
                    name,
                    f"{share:.0%} of the completions could not be parsed by {name.split('/')[1]!r} and scored 0: look at the "
                    "samples; the prompt's answer format and the reward's may differ",
                )

    def _say(self, step: int, found: Mapping[str, str], known: Collection[str]) -> list[str]:
        """Warn of what is not known yet; alarms are errors, which the report shows first."""
        new: list[str] = []
        for key, sentence in found.items():
            if key not in known:
                alarm = key.startswith("alarm/")
                ends = alarm and self.settings.alarm.stop
                new.append(f"step {step}: {sentence}" + (". The run ends here (health.alarm.stop)" if ends else ""))
                log.log(logging.ERROR if alarm else logging.WARNING, new[-1])
                self.said.append(key)
                self.stop |= ends
        return new


def as_lists(steps: Sequence[Metrics]) -> dict[str, list[float]]:
    """By metric, its values in the steps that have it."""
    names = dict.fromkeys(name for metrics in steps for name in metrics)
    return {name: [metrics[name] for metrics in steps if name in metrics] for name in names}
