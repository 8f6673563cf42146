"""Calling rewards: every sample gets ok, na or failed; neither None nor failure ever becomes 0."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from mmrl.core.protocols import Reward
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group, Rollouts, Sample, Scored, Scores, Status
from mmrl.runtime.blame import NoListError, RewardUnavailableError, by_name, count_of, describe, is_from_outside, shown, values_of
from mmrl.runtime.calls import number, outcome_of
from mmrl.runtime.process_state import ProcessChangedError, ProcessState, change_text, keep_random_state, process_state
from mmrl.runtime.ranges import Number, Positive, Share, check_ranges
from mmrl.runtime.workers import LoadError
from mmrl.training.rewards.cache import RawAnswer
from mmrl.training.rewards.calls import Calling, Meter, RewardCaller, Transform, is_same, no_call, nothing

log = logging.getLogger("mmrl.rewards")
LARGEST = torch.finfo(torch.float32).max
OWN_METRICS = frozenset({"total", "no_spread", "completion_length", "diversity"})
"""Names under reward/ and eval/ that are reserved."""
OWN_PARTS = frozenset({"std", "failed", "na", "retried", "cached"})
"""Names under reward/<name>/ that are reserved."""


class RewardError(ValueError):
    """A reward broke its contract or failed too often; the message names it, the prompt and the remedy."""


@dataclass(frozen=True)
class NamedReward:
    """A reward as a run uses it."""

    name: str
    function: Reward
    weight: Number = 1.0
    """0 = logged, never trained on, and harmless when it fails."""
    timeout_s: Positive | None = None
    """Per group; longer counts as failed."""
    max_failed: Share = 0.5
    """Share of a call's samples that may fail before the run stops."""
    call: Calling = field(default_factory=Calling)
    transform: Transform | None = None
    """None: the reward counts as it is."""
    sources: tuple[str, ...] = ()
    """The sources whose prompts it scores; empty: all."""

    __post_init__ = check_ranges

    def applies(self, group: Group) -> bool:
        """True if the group's prompt comes from a source that it scores."""
        return not self.sources or group.prompt.source in self.sources

    def counted(self, score: float) -> float:
        """The amount that a score adds to the total."""
        return self.weight * (score if self.transform is None else self.transform(score))


@dataclass(frozen=True)
class Answer:
    """One reward's answer for one group."""

    values: list[float]
    status: list[Status]
    parts: list[Mapping[str, float]]
    error: str | None = None
    cause: BaseException | None = None
    """What the reward raised."""
    shown: Sequence[Sample | None] = ()
    """What it looked at in place of each sample; empty: the samples."""


@dataclass
class GroupScores:
    """All rewards' answers for one group: (samples, rewards) tables."""

    values: Tensor
    status: Tensor
    parts: list[dict[str, float]] = field(default_factory=list)
    """Per sample: "<reward>/<part>" -> number."""
    shown: list[Sample | None] = field(default_factory=list[Sample | None])
    """Per sample: what a reward looked at in its place, the first of them; empty: nothing else."""

    def dressed(self, group: Group) -> Group:
        """The group with what rewards looked at beside its texts, for files and callbacks alone."""
        if not any(self.shown):
            return group
        pairs = zip(group.samples, self.shown, strict=True)
        dressed = (one if seen is None else replace(one, image=seen.image, beside=seen.beside) for one, seen in pairs)
        return replace(group, samples=tuple(dressed))


class RewardRunner:
    """Scores groups with a list of rewards, which may be empty only where `unscored`: nothing is trained on them."""

    def __init__(self, rewards: Sequence[NamedReward], unscored: bool = False) -> None:
        if not rewards and not unscored:
            raise ValueError("no reward is configured: add a [[reward]] to the config or --reward NAME")
        names = [reward.name for reward in rewards]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"reward names {twice} are used twice: give each [[reward]] its own `name`")
        for name in names:
            if name in OWN_METRICS or not name or set(name) & set("/@") or not name.isprintable():
                raise ValueError(
                    f"a reward is named {name!r}, which metrics could not tell from their own names: give it another `name`, "
                    f"without / and @, and none of {', '.join(sorted(OWN_METRICS))}"
                )
        if rewards and all(reward.weight == 0 for reward in rewards):
            raise ValueError(f"all rewards ({', '.join(names)}) have weight 0: nothing would be trained")
        self.rewards = tuple(rewards)
        self.names = tuple(names)
        self.weights = torch.tensor([reward.weight for reward in rewards], dtype=torch.float32)
        self.callers: list[RewardCaller] = []
        self.lane_of = {reward.name: self._caller(reward) for reward in rewards}

    def score(self, groups: Sequence[Group]) -> list[GroupScores]:
        """One table per group; RewardUnavailableError where a reward cannot answer now and will not soon.

        Raises RewardError for a wrong number of answers, an infinite one, or more failures than a reward's budget.
        """
        with self.scoring() as scoring:
            scoring.add(groups)
            return scoring.tables()

    @contextmanager
    def scoring(self, beside: bool = False) -> Iterator["Scoring"]:
        """A step's scoring, to which groups are added as they are finished.

        `beside`: something else is done between the calls of `add`, so rewards should run meanwhile.
        """
        with ExitStack() as stack:
            for caller in self.callers:
                stack.callback(caller.rest)
            yield Scoring(self, stack, beside)

    def scores(self, rollouts: Rollouts, tables: Mapping[int, GroupScores]) -> Scores:
        """The tables' rows in the order of the rollouts' rows."""
        pairs = rollouts.pairs()
        if not pairs:
            nothing = torch.zeros(0, len(self.names))
            return Scores(self.names, nothing, nothing.long(), self.weights)
        values = torch.stack([tables[group].values[sample] for group, sample in pairs])
        status = torch.stack([tables[group].status[sample] for group, sample in pairs])
        scores = Scores(self.names, values, status, self.weights)
        refuse_overflow(scores)
        return scores

    def drain_metrics(self, ranks: Ranks | None = None) -> dict[str, float]:
        """The cost of the rewards since the last call, of all ranks: seconds per group, further attempts, share remembered."""
        meters = {caller: caller.meter for caller in self.callers}
        for caller in self.callers:
            caller.meter = Meter()
        if ranks is not None:
            of_ranks = ranks.gather(list(meters.values()))
            meters = {caller: Meter.joined(own) for caller, own in zip(meters, zip(*of_ranks, strict=True), strict=True)}
        found: dict[str, float] = {}
        for name, caller in self.lane_of.items():
            meter = meters[caller]
            if meter.seconds:
                half, most = np.percentile(meter.seconds, [50, 95])
                found |= {f"time/reward/{name}/p50_s": float(half), f"time/reward/{name}/p95_s": float(most)}
            if caller.calling.retries:
                found[f"reward/{name}/retried"] = float(meter.retried)
            found |= {f"reward/{name}/cached": meter.found / meter.asked} if meter.asked else {}
        return found

    def close(self) -> None:
        """End the processes of rewards that run in processes."""
        for caller in self.callers:
            caller.close()

    def _caller(self, reward: NamedReward) -> RewardCaller:
        """Equal rewards, called alike, are one: they load one model and are asked once."""
        for caller in self.callers:
            if (caller.calling, caller.timeout_s) == (reward.call, reward.timeout_s) and is_same(
                caller.function, reward.function
            ):
                return caller
        self.callers.append(RewardCaller(reward.name, reward.function, reward.call, reward.timeout_s))
        return self.callers[-1]


def refuse_overflow(scores: Scores) -> None:
    """Raise RewardError, with the reward that weighs most, for totals beyond float32: every statistic would be infinite."""
    weighted = torch.where(scores.status == Status.OK, scores.values.double() * scores.weights.double(), 0.0)
    rows = (weighted.sum(1).abs() > LARGEST).nonzero()[:, 0]
    if len(rows):
        row = weighted[rows[0]]
        k = int(row.abs().argmax())
        raise RewardError(
            f"the weighted total of a sample is {float(row.sum()):.3g}, beyond float32, and most of it is reward "
            f"{scores.names[k]!r}: {float(scores.values[rows[0], k]):.3g} times its weight {float(scores.weights[k]):g}; lower "
            "the weight, or give it a transform with a scale"
        )


class Scoring:
    """One step's scoring: groups come in, rewards work on them, tables come out."""

    def __init__(self, runner: RewardRunner, stack: ExitStack, beside: bool) -> None:
        self.runner, self.stack, self.beside = runner, stack, beside
        self.groups: list[Group] = []
        self.one_by_one = all(caller.is_inline(beside) for caller in runner.callers)
        self.before: ProcessState | None = None
        """Settings of the process when the first group came."""
        self.outcomes: dict[RewardCaller, list[Future[RawAnswer]]] = {caller: [] for caller in runner.callers}

    def add(self, groups: Sequence[Group]) -> None:
        """Take in groups; rewards that can begin with them at once do."""
        if not self.groups and groups:
            self.stack.enter_context(keep_random_state())
            self.before = process_state()
            self.stack.callback(self.before.restore)
        empty = [group.prompt.id for group in groups if not group.samples]
        if empty:
            raise RewardError(f"the group of prompt {empty[0]!r} has no samples: rewards compare the samples of whole groups")
        self.groups += groups
        # what runs beside the others starts first
        callers = sorted(self.outcomes, key=lambda caller: caller.where in ("auto", "inline") and not caller.is_async)
        for caller in callers:
            if not caller.whole_step:
                asked = (self._ask(caller, [group]) if self._concerns(caller, group) else no_call(group) for group in groups)
                self.outcomes[caller] += asked

    def _ask(self, caller: RewardCaller, groups: Sequence[Group]) -> Future[RawAnswer]:
        return caller.submit(groups, self.beside, self.one_by_one)

    def _concerns(self, caller: RewardCaller, group: Group) -> bool:
        """Does any reward that this caller answers for apply to the group?"""
        return any(one.applies(group) for one in self.runner.rewards if self.runner.lane_of[one.name] is caller)

    def tables(self) -> list[GroupScores]:
        """One table per group, in the order they were added; waits for what is not done."""
        if self.groups:
            for caller in self.outcomes:
                if caller.whole_step:
                    wanted = [group for group in self.groups if self._concerns(caller, group)]
                    self.outcomes[caller] = [self._ask(caller, wanted)] if wanted else []
        settled = {caller: self._raw_answers(caller) for caller in self.outcomes}
        self._blame(settled)
        columns = [self._column(reward, settled[self.runner.lane_of[reward.name]]) for reward in self.runner.rewards]
        tables = []
        for i, group in enumerate(self.groups):
            answers = [column[i] for column in columns]
            shape = len(answers), len(group.samples)
            values = torch.tensor([answer.values for answer in answers], dtype=torch.float32).reshape(shape).T
            status = torch.tensor([[int(s) for s in answer.status] for answer in answers], dtype=torch.long).reshape(shape).T
            parts: list[dict[str, float]] = [{} for _ in group.samples]
            for name, answer in zip(self.runner.names, answers, strict=True):
                for merged, own in zip(parts, answer.parts, strict=True):
                    merged |= {f"{name}/{part}": float(value) for part, value in own.items()}
            seen = [answer.shown for answer in answers if answer.shown]
            shown = [next(filter(None, of_sample), None) for of_sample in zip(*seen, strict=True)]
            tables.append(GroupScores(values, status, parts, shown))
        return tables

    def _raw_answers(self, caller: RewardCaller) -> list[RawAnswer]:
        """The raw answer for every group, or the exception it raised."""
        outcomes: list[RawAnswer] = [outcome_of(future) for future in self.outcomes[caller]]
        if not caller.whole_step:
            return outcomes
        wanted = [self._concerns(caller, group) for group in self.groups]
        asked = iter(self._of_whole_step(caller, outcomes[0], sum(wanted)) if outcomes else ())
        return [next(asked) if want else nothing(group) for want, group in zip(wanted, self.groups, strict=True)]

    def _of_whole_step(self, caller: RewardCaller, whole: RawAnswer, count: int) -> list[RawAnswer]:
        """The raw answer for each of n groups, out of one for all."""
        if isinstance(whole, BaseException):
            return [whole] * count
        try:
            answers = values_of(whole, count)
        except BaseException as error:
            if is_from_outside(error):
                raise
            return [error] * count
        if len(answers) != count:
            error = RewardError(
                f"reward {caller.name!r} answered for {count_of(answers, count)} of {count} groups: return one list per group"
            )
            return [error] * count
        return answers

    def _blame(self, settled: dict[RewardCaller, list[RawAnswer]]) -> None:
        """Settings of the process that changed while several rewards ran: they are restored, and since any of the rewards may
        have done it, all count as failed.
        """
        changed = "" if self.before is None else self.before.restore()
        who = f"one of the rewards {', '.join(map(repr, self.runner.names))}" if len(settled) > 1 else "it"
        for caller in settled if changed else ():
            settled[caller] = [ProcessChangedError(change_text(changed, who))] * len(self.groups)

    def _column(self, reward: NamedReward, outcomes: Sequence[RawAnswer]) -> list[Answer]:
        pairs = [(group, o if reward.applies(group) else nothing(group)) for group, o in zip(self.groups, outcomes, strict=True)]
        answers = [check_answer(reward, group, outcome) for group, outcome in pairs]
        failed = sum(answer.status.count(Status.FAILED) for answer in answers)
        total = sum(len(answer.status) for answer in answers)
        if failed:
            first = next(answer for answer in answers if answer.error)
            if reward.weight != 0 and failed > reward.max_failed * total:
                raise RewardError(
                    f"reward {reward.name!r} failed on {failed} of {total} samples "
                    f"(allowed: {reward.max_failed:.0%}); first error: {first.error}"
                ) from first.cause
            log.warning(
                "reward %r failed on %d of %d samples; they are left out. First error: %s",
                reward.name,
                failed,
                total,
                first.error,
            )
        return answers


def check_answer(reward: NamedReward, group: Group, outcome: RawAnswer) -> Answer:
    """Read an answer; a broken one of a reward that is only logged counts as failed, since it must not stop a run."""
    if reward.weight != 0:
        return read_answer(reward, group, outcome)
    try:
        return read_answer(reward, group, outcome)
    except (RewardError, RewardUnavailableError) as error:
        return all_failed(group, str(error))


def read_answer(reward: NamedReward, group: Group, outcome: RawAnswer) -> Answer:
    """Turn a raw answer into values and status, or refuse it."""
    if isinstance(outcome, BaseException):
        if isinstance(outcome, RewardError | RewardUnavailableError):
            raise outcome
        text = f"{describe(outcome)} (prompt {group.prompt.id!r})"
        if isinstance(outcome, ImportError | LoadError):
            why = "lacks a package" if isinstance(outcome, ImportError) else "cannot run in a process"
            raise RewardError(f"reward {reward.name!r} {why}: {text}") from outcome
        return all_failed(group, text, outcome)
    count = len(group.samples)
    try:
        answers = values_of(outcome, count)
    except NoListError as error:
        text = f"reward {reward.name!r} {error} for prompt {group.prompt.id!r}: return a list with one float or None per sample"
        raise RewardError(text) from None
    except BaseException as error:
        if is_from_outside(error):
            raise
        return all_failed(group, f"{describe(error)} (prompt {group.prompt.id!r})", error)
    if len(answers) != count:
        raise RewardError(
            f"reward {reward.name!r} answered {count_of(answers, count)} values for the {count} samples of prompt "
            f"{group.prompt.id!r}: return one float or None per sample, in order"
        )
    values, status, parts = zip(*(_one(reward, group, answer) for answer in answers), strict=True)
    shown = [answer.shown if isinstance(answer, Scored) else None for answer in answers]
    error = f"answered NaN (prompt {group.prompt.id!r})" if Status.FAILED in status else None
    if broken := [i for i, sample in enumerate(group.samples) if sample.ended == "error"]:
        values = tuple(math.nan if i in broken else value for i, value in enumerate(values))
        status = tuple(Status.FAILED if i in broken else s for i, s in enumerate(status))
        said = group.samples[broken[0]].turns[-1].observation
        error = f"the world of a sample of prompt {group.prompt.id!r} broke: {said.text if said else ''}"
    if reward.weight != 0 and Status.NA in status and Status.OK in status:
        status = tuple(Status.FAILED if s == Status.NA else s for s in status)
        error = (
            f"answered None for some samples of prompt {group.prompt.id!r} only: None is for whole groups, since samples without "
            "a score cannot be compared with the others; answer 0 for a sample that is wrong"
        )
    return Answer(list(values), list(status), list(parts), error, shown=shown if any(shown) else ())


def all_failed(group: Group, error: str, cause: BaseException | None = None) -> Answer:
    count = len(group.samples)
    return Answer([math.nan] * count, [Status.FAILED] * count, [{}] * count, error, cause)


def _one(reward: NamedReward, group: Group, answer: RawAnswer) -> tuple[float, Status, Mapping[str, float]]:
    read, own = answer, {}
    try:
        if isinstance(answer, Mapping | Scored):
            read, own = (answer.value, answer.parts) if isinstance(answer, Scored) else by_name(answer)
        value = math.nan if read is None else number(read)
    except (OverflowError, TypeError, ValueError):
        raise RewardError(
            f"reward {reward.name!r} answered {shown(read)} for a sample of prompt {group.prompt.id!r}: "
            "return a float, None, Scored or numbers by name"
        ) from None
    parts = _parts(reward, group, own)
    if read is None:
        return math.nan, Status.NA, parts
    if abs(value) > LARGEST:
        raise RewardError(
            f"reward {reward.name!r} answered {value} for a sample of prompt {group.prompt.id!r}: rewards must be finite"
        )
    if math.isnan(value):
        return math.nan, Status.FAILED, parts
    if reward.transform is None:
        return value, Status.OK, parts
    transformed = reward.transform(value)
    if not abs(transformed) <= LARGEST:
        raise RewardError(f"reward {reward.name!r} is {transformed} after its transform of {value}: widen transform.scale")
    return transformed, Status.OK, {**parts, "raw": value}


def _parts(reward: NamedReward, group: Group, parts: RawAnswer) -> Mapping[str, float]:
    try:
        found = {str(name): number(value) for name, value in parts.items()}
    except (AttributeError, RuntimeError, TypeError, ValueError):
        raise RewardError(
            f"reward {reward.name!r} answered the parts {shown(parts)} for a sample of prompt {group.prompt.id!r}: "
            "parts are numbers by name"
        ) from None
    if OWN_PARTS & set(found):
        raise RewardError(
            f"reward {reward.name!r} answered parts named {', '.join(sorted(OWN_PARTS & set(found)))}, which are metrics of the "
            "run itself: give its parts other names"
        )
    return found
