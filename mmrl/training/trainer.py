"""The one loop. Modalities and algorithms are arguments, never subclasses, and none is named here."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.hooks import PlannerHooks, PolicyHooks, with_hooks
from mmrl.core.protocols import Policy, PromptSampler, State
from mmrl.core.ranks import Ranks
from mmrl.core.types import Batch, Credit, Reading, Rollouts, Scores
from mmrl.runtime.blame import UnavailableError
from mmrl.training.ahead.producer import Producer, check_lag
from mmrl.training.batches import Batches, idle_rows, leave_out
from mmrl.training.callbacks import Callback, Callbacks, Examples
from mmrl.training.checkpoints.save import Checkpoints, looks_whole
from mmrl.training.checkpoints.state import RunState, copy_state, load_parts
from mmrl.training.collect import Collected, Collector, rows_of_now, with_shown
from mmrl.training.deepspeed import drive
from mmrl.training.evaluate import Evaluator
from mmrl.training.measure import (
    TAUGHT_SHARE,
    TEACHERS,
    UpdateFigures,
    mean,
    reward_metrics,
    rollout_metrics,
    stopwatch,
    with_shares,
)
from mmrl.training.optim import check_optimizer, put_to_rest, woken
from mmrl.training.reference_reads import ReferenceReads, of_scores, routed
from mmrl.training.resources.micro_batch import MicroBatches
from mmrl.training.resources.profile import Profile
from mmrl.training.rewards.runner import RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.stopping import (
    AskedToStopError,
    Audit,
    Goal,
    Stop,
    TrainingStoppedError,
    refuse_broken_weights,
    refuse_nothing_to_train,
)
from mmrl.training.watch.health import Health


@dataclass(frozen=True)
class Records:
    """A run's outputs: which callbacks get metrics, examples and checkpoints, and where checkpoints go."""

    callbacks: Sequence[Callback] = ()
    checkpoints: Checkpoints | None = None
    sizes: Path | None = None
    """The file that remembers how large micro-batches fit this device; None: every run finds out anew."""
    requests: Callable[[], Collection[str]] = tuple
    """Requests to the run since the last step, on the main process: `stop` or `checkpoint`."""
    begin: int = 0
    """The steps of the stages before: the trainer's own are numbered after them."""
    stage: int = 0
    """Which stage of a chain it is, from 1 on; 0: the run is no chain."""
    seen: Callable[[int], None] = lambda step: None
    """Called on every process where held-out prompts would be scored, in a run that has none; may change nothing of the run."""
    goal: Goal | None = None
    """Ends the stage early; None: it takes all of its steps."""


@final
class Trainer:
    """Samples, scores, credits and updates until `settings.steps` steps are done, numbered after those of earlier stages."""

    def __init__(
        self,
        policy: Policy,
        algorithm: Algorithm,
        sampler: PromptSampler,
        rewards: RewardRunner,
        settings: TrainSettings,
        *,
        ranks: Ranks | None = None,
        evaluator: Evaluator | None = None,
        records: Records = Records(),
    ) -> None:
        algorithm.check(policy)
        algorithm.check_step(settings.prompts_per_step)
        # each run has its own copy of parts that remember
        algorithm = deepcopy(algorithm)
        self.policy, self.algorithm, self.sampler, self.settings = policy, algorithm, sampler, settings
        self.optimizer, self.lr_schedule = settings.optimizer.build(policy.parameters(), settings.steps * algorithm.updates)
        self.ranks = drive(ranks or Ranks(), self.optimizer)
        check_processes(policy, algorithm, rewards, settings, self.ranks)
        self.evaluator, self.checkpoints, self.records, self.goal = evaluator, records.checkpoints, records, records.goal
        self.callbacks = Callbacks(records.callbacks if self.ranks.is_main else (), looks_whole)
        self.sizes = MicroBatches(policy, algorithm, settings.micro_batch, self.ranks, records.sizes)
        self.reader = ReferenceReads(policy, algorithm, settings, self.ranks, self.sizes)
        ranks = self.ranks.apart() if settings.ahead else self.ranks
        self.collector = Collector(policy, sampler, rewards, algorithm, settings, ranks, self.reader)
        self.producer = Producer(self.collector, self.ranks)
        self.health, self.index = Health(settings.max_unparsed, settings.health), records.begin
        self.batches = Batches(algorithm, self.ranks, torch.Generator().manual_seed(settings.seed))
        self.figures, self.audit = UpdateFigures(), Audit(policy, settings, self.ranks)
        self.stop, self.is_stopped = Stop(), False
        self.evaluated = records.begin or -1
        """The step after which held-out prompts were last scored."""
        self._latest: dict[str, float] = {}
        self._examples: Examples | None = None
        """Rollouts of the last step, where they are to be shown."""
        self._before: State = {}
        generator, watched = self.batches.generator, None if evaluator is None else evaluator.rewards
        parts = (policy, self.optimizer, self.lr_schedule, generator, self.producer, watched, self.health, self.ranks)
        self._run_state = RunState(*parts)
        self._remembering = algorithm.remembering | ({} if self.goal is None else {"goal": self.goal})

    def fit(self, profile: Profile = Profile()) -> None:
        """Train to the last step, evaluating and saving on the way; asked to stop, save and return with `is_stopped`."""
        try:
            self._evaluate_if_due()
            while not self._is_last():
                profile.reach(self.index + 1)
                self._latest = self.step()
                self.callbacks.after_step(self.index, self._latest, self._examples)
                wanted = self._is_wanted()
                self._evaluate_if_due()
                if wanted or self._is_last() or self._due(self.settings.save_every):
                    self.save(final=self._is_last())
            if self.settings.steps == 0:
                self.save(final=True)
        except AskedToStopError:
            self.is_stopped = True
            self.save(self._before, final=True)
        finally:
            profile.close()
            self.producer.close()
            if self.checkpoints is not None:
                self.checkpoints.close()
            self.callbacks.look_for_checkpoints(settled=True)

    def leave(self) -> None:
        """End where nothing has moved since the last checkpoint: the run was asked to stop."""
        self.is_stopped = True

    def step(self) -> dict[str, float]:
        """Sample, score, credit, update: one step of any group-relative method on any modality."""
        times: dict[str, float] = {}
        with stopwatch(times, "step"):
            with self._interruptible(f"step {self.index + 1}"):
                collected = self.collect()
                rollouts, scores = routed(self.algorithm, collected.rollouts, collected.scores), collected.scores
                with stopwatch(times, "read"):
                    self.audit(rollouts, self.index + 1)
                    frozen = self.reader.read(rollouts, self.reader.gate.looks, collected.under, collected.others)
            scores = self.algorithm.shape_rewards(scores, rollouts, frozen)
            tell_sampler(self.producer, self.ranks, *rows_of_now(rollouts, scores))
            frozen |= of_scores(self.algorithm, scores, rollouts, self.ranks)
            credit = self.credit(scores, rollouts, frozen)
            trained = replace(rollouts, action_mask=self.algorithm.trainable(rollouts) & credit.mask)
            refuse_nothing_to_train(self.index + 1, self.ranks, trained, scores)
            if self.checkpoints is not None and next(iter(self.policy.parameters())).device.type == "cpu":
                # updates take the memory that the copy of a checkpoint lies in until it is written
                self.checkpoints.wait()
            with stopwatch(times, "update"):
                updates = [self.update(batch) for batch in self.batches(trained, credit, frozen)]
                with_hooks(self.policy, PolicyHooks).end_step(rebase=self.algorithm.rebases_after(self.own_steps + 1))
        self.index += 1
        measured = pass_on(self.algorithm, self.own_steps, updates)
        fresh, own = rows_of_now(rollouts, scores)
        metrics = {**reward_metrics(own, fresh, collected.tables, self.ranks), **rollout_metrics(fresh, self.ranks)}
        metrics |= {**measured, "rollout/rounds": float(collected.rounds), "rollout/discarded": float(collected.num_discarded)}
        metrics |= self.figures.drain(self.ranks) | ({"run/stage": float(self.records.stage)} if self.records.stage else {})
        metrics |= {"data/skipped": float(len(self.collector.skipped))} if self.settings.max_skipped else {}
        metrics |= {**with_shares(times | collected.times, self.ranks), "policy/lr": self.optimizer.param_groups[0]["lr"]}
        self._note(collected, scores, metrics)
        return metrics

    def collect(self) -> Collected:
        """The step's rollouts."""
        return self.producer.take(self.index, self.sampling, self._run_state)

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimizer step; the gradient does not depend on how the policy cuts the batch."""
        self.figures.count(batch, idle := idle_rows(batch, self.algorithm))
        batch = leave_out(batch, idle, self.ranks)
        totals = self.sizes.fit(lambda: self.accumulate(batch), grow=True)
        self.figures.first = False
        totals = share_averages(dict(zip(totals, self.ranks.sum(list(totals.values())), strict=True)))
        totals["policy/grad_norm"] = self.ranks.clip(self.policy.parameters(), self.settings.optimizer.clip_norm)
        refuse_nan(self.index + 1, totals, lambda: self.keep_wreck(batch))
        with woken(self.optimizer, self.settings.optimizer.rest):
            self.ranks.step(self.optimizer)
        # Kept until the next update, gradients would take memory from the caches of sampling.
        self.optimizer.zero_grad(set_to_none=True)
        refuse_broken_weights(self.policy.parameters(), self.index + 1, self.optimizer.param_groups[0]["lr"])
        self.lr_schedule.step()
        self.policy.advance()
        return totals

    def accumulate(self, batch: Batch) -> dict[str, float]:
        """Gradients of a batch, micro-batch by micro-batch, and the sums of this process's loss and measures."""
        live, totals = self.algorithm.live_reads, dict[str, float]()
        self.optimizer.zero_grad()
        micro_batches = self.sizes.cut(batch)
        for i, micro_batch in enumerate(micro_batches, start=1):
            values = self.policy.read(micro_batch.rollouts.trace, live, micro_batch.rollouts.action_mask)
            if self.reader.gate.closed:
                self.reader.gate.first(micro_batch, values, more=i < self.sizes.turns)
            self.figures.compare(micro_batch, values)
            loss, infos = self.algorithm.loss(self.reader.with_old(micro_batch, values), values)
            self.ranks.backward(loss, last=i == len(micro_batches))
            for name, value in {"loss": loss.detach(), **infos}.items():
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals

    def credit(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Credit:
        """Advantages of this rank's rows, computed among the rows of all ranks."""
        read = {reading: frozen[reading] for reading in self.algorithm.advantage_reads}
        everyone, mine = self.ranks.all_rows(replace(rollouts, recorded={**rollouts.recorded, **read}))
        everywhere = self.ranks.all_scores(scores)
        credit = self.algorithm.advantage(everywhere, everyone)
        watched = with_shown(everyone, rollouts, self.collector.planner) if self.ranks.world == 1 else everyone
        with_hooks(self.collector.planner, PlannerHooks).watch(self.own_steps + 1, watched, everywhere, credit)
        own = mine, slice(rollouts.action_mask.shape[1])
        return Credit(
            credit.values[own].to(scores.values.dtype), credit.keep[mine], None if credit.actions is None else credit.actions[own]
        )

    def keep_wreck(self, batch: Batch) -> str:
        """Write a batch down that cannot train, and say where."""
        return f"; the batch is kept in {self.checkpoints.save_wreck(self.index + 1, batch)}" if self.checkpoints else ""

    def evaluate(self) -> None:
        """Score held-out prompts with the weights as they are; a run without any answers prompts that it has seen."""
        with self._interruptible(f"evaluation after step {self.index}"):
            self.producer.rest(self.index)
            if self.evaluator is None:
                return self.records.seen(self.index)
            metrics, examples = self.evaluator.run(self.index)
        self.health.after_evaluation(self.index, examples.groups, examples.scores)
        self._latest = {**self._latest, **metrics}
        self.callbacks.after_evaluation(self.index, metrics, examples)

    def save(self, before: State | None = None, final: bool = False) -> None:
        """Write a checkpoint; `before` replaces what has moved on since, and a `final` one is on disk when this returns."""
        if self.checkpoints is None:
            return
        self.checkpoints.wait()
        self.callbacks.look_for_checkpoints(settled=True)
        folder = self.checkpoints.save(self.index, self.state_dict() | (before or {}), self.ranks, self._latest, final)
        self.callbacks.expect_checkpoint(self.index, folder)

    def state_dict(self) -> State:
        """Everything that moves, some of it not yet copied; every process must call it."""
        sizes = self.sizes.state_dict()
        parts = {name: part.state_dict() for name, part in self._remembering.items()}
        return {"index": self.index, "evaluated": self.evaluated, "sizes": sizes, "parts": parts, **self._run_state.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Continue exactly where `state` was taken; raise ValueError where it is another run's."""
        self._run_state.load_state_dict(state)
        load_parts(self._remembering, state.get("parts", {}))
        self.sizes.load_state_dict(state.get("sizes", {}))
        put_to_rest(self.optimizer, self.settings.optimizer.rest)
        self.index, self.evaluated = state["index"], state["evaluated"]

    @contextmanager
    def _interruptible(self, what: str) -> Iterator[None]:
        """Enclose work that a request to stop may throw away, since the weights do not move; a resumed run repeats it.

        Raises TrainingStoppedError where a reward or a sampler is gone for good; the run is saved as it was before.
        """
        self._before = copy_state(self._run_state.draws(), hold=True) if self.ranks.world == 1 else {}
        try:
            with self.stop.interruptible(self.ranks):
                yield
        except UnavailableError as error:
            kept = ""
            # the other ranks are still at it, and a checkpoint takes them all
            if self.checkpoints is not None and self.ranks.world == 1:
                self.save(self._before, final=True)
                kept = f"; saved after step {self.index}: mend it and resume"
            raise TrainingStoppedError(f"{what}: {error}{kept}") from error

    def _evaluate_if_due(self) -> None:
        if self.goal is not None and self.goal.is_due(self.index, self.own_steps):
            with self._interruptible(f"goal after step {self.index}"):
                self.producer.rest(self.index)
                self.goal.look(self.index)
        every = self.settings.samples_every if self.evaluator is None else self.settings.evaluate_every
        due = self.own_steps == 0 or self._is_last() or self._due(every)
        if due and self.evaluated != self.index:
            self.evaluate()
            self.evaluated = self.index

    def _is_wanted(self) -> bool:
        """Is it time for a checkpoint, or was one asked for? The same on all ranks; to stop waits until before the next step."""
        asked = self.records.requests()
        if "stop" in asked and not self._is_last():
            self.stop.asked_by = "stop.request"
        return any(self.ranks.gather("checkpoint" in asked or (self.checkpoints is not None and self.checkpoints.is_late())))

    def _is_last(self) -> bool:
        return self.own_steps >= self.settings.steps or self.health.stop or (self.goal is not None and self.goal.is_reached)

    @property
    def own_steps(self) -> int:
        """The steps that were taken since this stage began."""
        return self.index - self.records.begin

    def sampling(self, step: int) -> object:
        """How training samples at this step, counted from 1; None if it is the same at every step."""
        schedule = self.algorithm.schedule
        return None if schedule is None else schedule.at(step - self.records.begin - 1)

    def _due(self, every: int) -> bool:
        return every > 0 and self.index % every == 0

    def _note(self, collected: Collected, scores: Scores, metrics: dict[str, float]) -> None:
        self.health.after_step(self.index, metrics)
        self._examples = examples_of(collected, scores) if self.own_steps == 1 or self._due(self.settings.samples_every) else None


def pass_on(algorithm: Algorithm, step: int, updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of what a step's updates measured, which parts that follow training are given; without any update no loss."""
    if not updates:
        return {"loss": math.nan, TAUGHT_SHARE: 0.0}
    measured = {name: mean([update[name] for update in updates]) for name in updates[0]}
    algorithm.adapt(step, measured)
    return measured


def check_processes(policy: Policy, algorithm: Algorithm, rewards: RewardRunner, settings: TrainSettings, ranks: Ranks) -> None:
    """Raise ValueError for an objective or an optimizer that processes cannot share, and for samples not to be had ahead."""
    check_optimizer(settings.optimizer, ranks)
    if settings.ahead:
        check_lag(policy, rewards, algorithm, settings, ranks)
    if ranks.world > 1 and algorithm.scope == "batch":
        raise ValueError(
            "the objective has a term that chooses among all actions of a minibatch (scope 'batch'); every process would choose "
            "among its own: run on one process, or use another objective"
        )


def tell_sampler(sampler: PromptSampler | Producer, ranks: Ranks, rollouts: Rollouts, scores: Scores) -> None:
    """Tell the sampler how every prompt of the step did, on all ranks alike."""
    total = scores.total()
    mine = [(group.prompt, total[rollouts.group_ids == group.id].tolist()) for group in rollouts.groups]
    pairs = [pair for part in ranks.gather(mine) for pair in part]
    sampler.observe([prompt for prompt, _ in pairs], [totals for _, totals in pairs])


def refuse_nan(step: int, totals: Mapping[str, float], keep: Callable[[], str]) -> None:
    """Raise TrainingStoppedError for a loss or gradient that is not finite; `keep` writes its batch down, and says where."""
    bad = [name for name in ("loss", "policy/grad_norm") if not math.isfinite(totals[name])]
    if bad:
        raise TrainingStoppedError(
            f"step {step}: {' and '.join(bad)} is not finite{keep()}. The weights were not updated: "
            "lower optimizer.lr, use float32, or look for a reward or log-probability that explodes"
        )


def share_averages(totals: dict[str, float]) -> dict[str, float]:
    """Divide measures by the sum of the shares they were weighted with, which is 1 for most aggregations but not for all.

    Those of a teacher are means over the tokens that it has.
    """
    share = totals.pop("policy/share")

    def whole(name: str) -> float:
        kind, _, who = name.removeprefix(TEACHERS).partition("/")
        if not name.startswith(TEACHERS) or kind == "taught":
            return share or 1.0
        return totals[f"{TAUGHT_SHARE}/{who}" if who else TAUGHT_SHARE] or math.nan

    return {name: value if name == "loss" else value / whole(name) for name, value in totals.items()}


def examples_of(collected: Collected, scores: Scores) -> Examples:
    """A step's groups as callbacks get them, with their scores after shaping and the parts of their rewards."""
    tables = [(group, collected.tables[group.id]) for group in collected.rollouts.groups]
    parts = [part for _, table in tables for part in table.parts]
    groups = [table.dressed(group) for group, table in tables]
    return Examples(groups, in_group_order(scores, collected.rollouts), parts)


def in_group_order(scores: Scores, rollouts: Rollouts) -> Scores:
    """Rows in the order of groups and their samples; samples whose row was dropped leave, with NaN in their place."""
    place = {pair: i for i, pair in enumerate(rollouts.pairs())}
    rows = [place.get((group.id, i), -1) for group in rollouts.groups for i in range(len(group.samples))]
    index = torch.tensor(rows, dtype=torch.long)
    taken = scores.take(index.clamp(min=0))
    gone = (index < 0)[:, None]
    return replace(taken, values=taken.values.masked_fill(gone, math.nan), status=taken.status.masked_fill(gone, 1))
