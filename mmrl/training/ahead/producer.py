"""The steps of a run: step j is written by the weights that had max(0, j - k) steps, k = `settings.ahead`.

With k = 0 a step is collected when it is asked for. Else a thread beside the updates does all that moves state, in the order of
the steps: it hears of the scores of step j - k - 1, draws, samples, scores and revises. So latencies never decide what happens.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition, Thread, current_thread
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.hooks import SamplerHooks, with_hooks
from mmrl.core.protocols import Policy, PromptSampler, State
from mmrl.core.ranks import Ranks
from mmrl.core.readings import ROLLOUT_LOGPROBS, WEIGHTS_VERSION
from mmrl.core.types import Prompt, Rollouts
from mmrl.runtime.process_state import LEFT_BEHIND, put_aside, random_state, take_back
from mmrl.runtime.tensors import copy_all
from mmrl.training.ahead.lag import Lag, refuse_lag
from mmrl.training.checkpoints.state import RunState, copy_state, remembers
from mmrl.training.collect import Collected, Collector
from mmrl.training.rewards.runner import RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.stopping import TrainingStoppedError


@runtime_checkable
class Publishes(Protocol):
    """A policy whose rollouts are written elsewhere, by a copy of its weights."""

    def publish(self, version: int | None = None) -> tuple[int, Callable[[], None], Callable[[], None]]:
        """Set the live weights aside under this number, or that of the updates that they had.

        Returns the number, a call by which rollouts are written with them from then on, and one that gives up what is written;
        both may come from any thread.
        """
        ...


@dataclass(frozen=True)
class Version:
    """The weights after one step."""

    weights: list[Tensor]
    number: int
    """By which the policy names them in rollouts."""
    hold: Callable[[], None]
    leave: Callable[[], None]


class Versions:
    """Those that a policy has published, and those of a checkpoint until they are."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.parameters = policy, list(policy.parameters())
        self.held: dict[int, Version] = {}
        self._kept: dict[int, tuple[int, list[Tensor]]] = {}
        """Of a checkpoint: number and weights."""

    def publish(self, step: int, number: int | None = None) -> Version:
        """Set the live weights aside as those after this many steps, unless they are already."""
        if step not in self.held:
            assert isinstance(self.policy, Publishes)
            weights = [weight.detach().clone() for weight in self.parameters]
            self.held = {**self.held, step: Version(weights, *self.policy.publish(number))}
        return self.held[step]

    def begin(self, steps: Iterable[int]) -> None:
        """Publish what the first steps are written by: the checkpoint's, and the live weights."""
        for step in steps:
            number, weights = self._kept.get(step, (None, self.parameters))
            with under(self.parameters, weights):
                self.publish(step, number)
        self._kept = {}

    def forget_before(self, step: int, looks: bool) -> None:
        """Keep those from this one on, and while rows are compared the one before, away from a card."""
        held = {at: one for at, one in self.held.items() if at >= step}
        if looks and (before := self.held.get(step - 1)) is not None:
            held[step - 1] = replace(before, weights=[weight.cpu() for weight in before.weights])
        self.held = held

    def blocks(self) -> Mapping[int, Callable[[], AbstractContextManager[None]]]:
        """By step, a block in which the policy has these weights."""
        return {step: partial(under, self.parameters, one.weights) for step, one in self.held.items()}

    def rows(self, steps: Iterable[int]) -> list[list[object]]:
        """Step, number and weights of those of these steps that are there, for a checkpoint."""
        found = {step: (one.number, one.weights) for step, one in self.held.items()} | self._kept
        return [[step, *found[step]] for step in steps if step in found]

    def load(self, listed: Iterable[Sequence[Any]], needed: Iterable[int], live: int) -> None:
        """Take those of a checkpoint; ValueError where it lacks one that is needed and is not the live one."""
        self._kept = {step: (number, weights) for step, number, weights in listed}
        lost = sorted({*needed} - {*self._kept, live})
        if lost:
            raise ValueError(
                f"the checkpoint lacks the weights after step {lost[0]}, by which steps are sampled next: the run that wrote it "
                "had another save_every with ahead_drain, so set both as there"
            )


@contextmanager
def under(parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[None]:
    """A block in which these parameters have other weights."""
    # through .data the version counters stay, as for shadows
    live = [weight.data for weight in parameters]
    kept = [weight.clone() for weight in live]
    copy_all(live, weights)
    try:
        yield
    finally:
        copy_all(live, kept)


CLOSE_S = 2.0
"""Longest wait for the thread when a run ends; it holds nothing that would have to be saved."""
MOVED = {"time/rollout_s": "time/beside/rollout_s", "time/reward_s": "time/beside/reward_s"}
"""Seconds that pass beside the step, and no part of it."""
Observation = tuple[Sequence[Prompt], Sequence[Sequence[float]]]


class OtherVersionError(TrainingStoppedError):
    """Rows were written by other weights than the lag says: an update was lost on its way to the engine, or given twice."""


@dataclass(eq=False)
class Producer:
    """Collects each step when it is due, or up to `settings.ahead` steps before, with a policy that publishes its weights.

    Of several processes each has a thread then, and its collector's ranks are a process group of their own (`Ranks.apart`).
    """

    collector: Collector
    trainers: Ranks

    def __post_init__(self) -> None:
        one, settings = self.collector, self.collector.settings
        self.ahead = settings.ahead
        self._lag = Lag(settings.ahead, settings.steps, settings.save_every if settings.ahead_drain else 0)
        self._versions = Versions(one.policy)
        self._moved = Condition()
        """Whatever both threads look at changes under this lock."""
        self._oldest = 0
        """The step that trains now, or next."""
        self._random: State | None = None
        """The thread's own random generators, between two steps."""
        self._observed: dict[int, Observation] = {}
        self._forget()

    def _forget(self) -> None:
        """Nothing is in flight."""
        self._thread: Thread | None = None
        self._next, self._last = 0, -1
        """The step that is collected now, or next; the last one whose weights are there."""
        self._found: dict[int, Collected] = {}
        self._before: dict[int, State] = {}
        """Step -> the state before it was collected."""
        self._versions.held = {}
        self._version: Version | None = None
        """The weights that write the step."""
        self._error: BaseException | None = None
        self._closed, self._taken = False, 0.0
        self._trainer = current_thread()
        """The thread whose random generators the other one puts its own in the place of."""

    @property
    def _is_over(self) -> bool:
        """Is the thread that asks to end? One that was left behind must not go on in a run that began anew."""
        return self._closed or self._thread is not current_thread()

    @property
    def _is_busy(self) -> bool:
        return self._thread is not None and self._next <= self._last and self._error is None and not self._closed

    def take(self, step: int, sampling: Callable[[int], object], state: RunState) -> Collected:
        """The rows of a step, counted from 0, once they are there; then the next one may be collected, with the weights of now.

        `sampling` says how a step, counted from 1, is sampled. Raises whatever went wrong in the thread, with its own trace.
        """
        if not self.ahead:
            return self.collector.collect(sampling(step + 1))
        begun = time.perf_counter()
        if self._thread is None:
            self._begin(step, sampling, state)
        if step > self._last:
            self._versions.publish(step)
            self._allow(step)
        with self._moved:
            self._moved.wait_for(lambda: step in self._found or self._error is not None)
            if step not in self._found:
                assert self._error is not None
                raise self._error
            collected = self._found.pop(step)
        waited = time.perf_counter() - begun
        self._versions.publish(step)
        version = self._lag.writes(step)
        self._versions.forget_before(version, self.collector.reader.gate.looks)
        self._allow(self._lag.reach(step))
        now = time.perf_counter()
        collected.times |= {"rollout/staleness": float(step - version), "time/publish_s": now - begun - waited}
        collected.times |= {"time/idle/trainer": waited / max(now - self._taken, waited)} if self._taken else {}
        self._taken = now
        blocks = self._versions.blocks()
        collected.under = None if version == step else blocks[version]
        collected.others = {at: blocks[at] for at in (version - 1, version + 1) if at in blocks}
        return collected

    def _allow(self, last: int) -> None:
        """Let steps be collected up to this one."""
        with self._moved:
            self._last = last
            self._moved.notify_all()

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        """Let the sampler see how the prompts of the last step did, as soon as the step is collected that hears of it."""
        if not self.ahead:
            return self.collector.sampler.observe(prompts, totals)
        with self._moved:
            self._observed[self._oldest] = prompts, totals
            self._oldest += 1
            self._before = {step: one for step, one in self._before.items() if step >= self._oldest}
            first = self._oldest - self.ahead - 1
            self._observed = {step: one for step, one in self._observed.items() if step >= first}

    def rest(self, step: int) -> None:
        """Wait until no step is collected, and let the live weights, those after this many steps, answer what does not train."""
        if not self.ahead:
            return
        with self._moved:
            self._moved.wait_for(lambda: not self._is_busy)
        self._versions.publish(step).hold()

    def close(self) -> None:
        """Collect no more. A thread that does not end is left behind, and the random generators are the trainer's again."""
        with self._moved:
            is_busy, self._closed = self._is_busy, True
            self._moved.notify_all()
        if is_busy and self._version is not None:
            self._version.leave()
        if self._thread is None:
            return
        self._thread.join(CLOSE_S)
        with self._moved:
            if self._thread.is_alive():
                LEFT_BEHIND.add(self._thread)
                take_back(self._trainer)

    def draws(self, state: RunState) -> State:
        """The state that collecting moves on, from before the step that trains next was collected.

        Of steps sampled ahead also the scores that are still to be heard of, and the thread's own random generators.
        """
        if not self.ahead:
            return state.now()
        with self._moved:
            self._moved.wait_for(lambda: self._oldest in self._before or not self._is_busy)
            before = self._before.get(self._oldest)
            outside = random_state()
            first = self._oldest - self.ahead
            if before is None:
                # nothing is in flight, and the scores of one step more are still to be heard of
                before, first = state.now() | {"random": self.collector.ranks.gather(self._random or outside)}, first - 1
            observed = [
                [step, [prompt.id for prompt in prompts], [list(row) for row in totals]]
                for step, (prompts, totals) in sorted(self._observed.items())
                if step >= first
            ]
        own = {"lag": self.ahead, "random": before["random"], "observed": observed}
        rewards = [*before["rewards"][:1], *state.of_evaluation()]
        return {**before, "rewards": rewards, "random": self.trainers.gather(outside), "ahead": own}

    def versions(self) -> State:
        """The weights that steps in flight are written by, as far as they are not the live ones."""
        return {"versions": self._versions.rows(range(self._lag.writes(self._oldest), self._oldest))} if self.ahead else {}

    def load_state_dict(self, state: State) -> None:
        """Continue where the state was taken; ValueError for that of a run with another lag, or of another version of mmrl."""
        own = state.get("ahead", {"lag": 0, "random": [], "observed": []})
        if own["lag"] != self.ahead:
            raise ValueError(
                f"the checkpoint is of a run with ahead = {own['lag']}, and this one has {self.ahead}: set ahead = {own['lag']}"
            )
        by_rank, ranks = own["random"], self.collector.ranks
        if not isinstance(by_rank, list):
            raise ValueError(
                "the checkpoint's ahead.random is not a list with an entry per process: another version of mmrl wrote it, so the "
                "run cannot go on exactly; start a new one"
            )
        self.close()
        self.collector.load_state_dict(state)
        self._forget()
        prompts = prompts_of(self.collector.sampler, {name for _, names, _ in own["observed"] for name in names})
        self._observed = {step: ([prompts[name] for name in names], totals) for step, names, totals in own["observed"]}
        if self.ahead:
            self._oldest, self._random = state["index"], by_rank[ranks.rank if len(by_rank) == ranks.world else 0]
            self._versions.load(state["versions"], self._lag.first(self._oldest), self._oldest)

    def _note_writer(self, fresh: Rollouts) -> Rollouts:
        """The rows with the version of the weights that wrote them; OtherVersionError where the lag says another one."""
        if self._version is None:
            return fresh
        noted = fresh.recorded.get(ROLLOUT_LOGPROBS)
        drawn = noted is None or bool((noted.isfinite() & fresh.action_mask).any())
        if drawn and fresh.weights_version != self._version.number:
            raise OtherVersionError(
                f"step {self._next + 1}: its rows were written by weights of version {fresh.weights_version}, and ahead = "
                f"{self.ahead} says {self._version.number}: an update was lost on its way to the engine, or given twice, so "
                "start its servers again, and resume"
            )
        versions = torch.full(fresh.action_mask.shape, float(self._version.number))
        return replace(fresh, recorded={**fresh.recorded, WEIGHTS_VERSION: versions})

    def _begin(self, step: int, sampling: Callable[[int], object], state: RunState) -> None:
        """Publish what the first steps are written by, and start the thread."""
        self._versions.begin(self._lag.first(step))
        self._next, self._last, self._trainer = step, self._lag.reach(step - 1), current_thread()
        self._thread = Thread(target=self._run, args=(sampling, state), name="mmrl-ahead", daemon=True)
        self._thread.start()

    def _run(self, sampling: Callable[[int], object], state: RunState) -> None:
        try:
            while True:
                begun = time.perf_counter()
                with self._moved:
                    self._moved.wait_for(lambda: self._next <= self._last or self._is_over)
                    if self._is_over:
                        return
                waited = time.perf_counter() - begun
                collected = self._collect(self._next, sampling, state)
                spent = max(time.perf_counter() - begun, 1e-9)
                times = {MOVED.get(name, name): value for name, value in collected.times.items()}
                collected.times = times | {"time/idle/sampler": waited / spent}
                with self._moved:
                    if self._is_over:
                        return
                    self._found[self._next] = collected
                    self._next += 1
                    self._moved.notify_all()
        except BaseException as error:  # noqa: BLE001 - the trainer raises it
            with self._moved:
                self._error = self._error if self._is_over else error
                self._moved.notify_all()

    def _collect(self, step: int, sampling: Callable[[int], object], state: RunState) -> Collected:
        with self._own_random_state():
            observed = self._observed.get(step - self.ahead - 1)
            if observed is not None:
                self.collector.sampler.observe(*observed)
            before = copy_state(state.now(), hold=True)
            with self._moved:
                self._before[step] = before
                self._moved.notify_all()
            self._version = self._versions.held[self._lag.writes(step)]
            self._version.hold()
            return self.collector.collect(sampling(step + 1), self._note_writer)

    @contextmanager
    def _own_random_state(self) -> Iterator[None]:
        """A block of the thread in which rewards draw from its own random generators. Cards keep theirs: the trainer has them."""
        with self._moved:
            put_aside(self._trainer, self._random)
        try:
            yield
        finally:
            with self._moved:
                random = take_back(self._trainer)
                self._random = random if self._thread is current_thread() else self._random


def prompts_of(sampler: PromptSampler, names: set[str]) -> Mapping[str, Prompt]:
    """The prompts of these ids, with no more than the id where the sampler does not hold its prompts."""
    held = with_hooks(sampler, SamplerHooks).prompts if names else None
    found = {prompt.id: prompt for prompt in held or () if prompt.id in names}
    return {name: found.get(name, Prompt(name, "")) for name in names}


def check_lag(policy: Policy, rewards: RewardRunner, algorithm: Algorithm, settings: TrainSettings, ranks: Ranks) -> None:
    """Raise ValueError where samples cannot be drawn so far ahead."""
    if ranks.is_sharded or ranks.engine is not None:
        raise ValueError(
            f"ahead is {settings.ahead}, and FSDP or DeepSpeed spreads the weights over the run's {ranks.world} processes: start "
            "it with configs/accelerate/ddp.yaml, or set ahead = 0"
        )
    if not isinstance(policy, Publishes):
        raise ValueError(
            f"ahead is {settings.ahead}, and {type(policy).__name__} writes with the network that trains: set ahead = 0"
        )
    memories = [lane.name for lane in rewards.callers if remembers(lane.function)]
    if memories:
        raise ValueError(
            f"ahead is {settings.ahead}, and reward {memories[0]!r} has a state_dict, so it remembers, and evaluations "
            "would change that between steps in flight: set ahead = 0"
        )
    refuse_lag(algorithm, settings.ahead)
