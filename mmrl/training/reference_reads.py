"""Readings under weights that do not move during a step: old, reference and averaged ones."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from mmrl.algorithms.advantages.decoupled import PerModality
from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.hooks import PolicyHooks, with_hooks
from mmrl.core.protocols import Hypothesis, Policy
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, MEAN_REWARD, OLD_LOGPROBS, PLACE, REWARD, ROLLOUT_LOGPROBS, SOUND_ADVANTAGE, TAUGHT
from mmrl.core.types import Batch, Reading, Rollouts, Scores, Trace
from mmrl.runtime.tensors import join_rows
from mmrl.training.resources.micro_batch import MicroBatches
from mmrl.training.settings import TrainSettings
from mmrl.training.watch.ratio_gate import RatioGate

Under = Callable[[], AbstractContextManager[None]]
"""Makes a block in which the policy has the weights of an earlier step."""
OF_GROUPS = "group_"
"""Prefix of the names of quantities that compare the rows of one group."""
NO_OTHERS: Mapping[int, Under] = {}
OTHER_VERSION = "another version of the weights"
START_AGAIN = "An update was lost on its way to what samples, or came too early: start servers again, and resume"


@runtime_checkable
class Routes(Protocol):
    """A term whose teacher may have some rows to itself, and be told something of each."""

    @property
    def routes(self) -> bool:
        """Has it?"""
        ...

    def route(self, rollouts: Rollouts, scores: Scores) -> tuple[Bool[Tensor, " n"], Sequence[str]]:
        """The rows that it has, and a text for every row; no texts: it is told nothing."""
        ...


@runtime_checkable
class Tellable(Protocol):
    """A record of rows, which may carry a text for each."""

    def tell(self, texts: Sequence[str]) -> Trace:
        """The same with these texts."""
        ...


@dataclass(frozen=True)
class ReferenceReads:
    """Takes the readings that the algorithm's parts need, once per step and before the first update."""

    policy: Policy
    algorithm: Algorithm
    settings: TrainSettings
    ranks: Ranks
    sizes: MicroBatches

    @cached_property
    def gate(self) -> RatioGate:
        return RatioGate(self.policy, self.algorithm, self.settings, self.ranks)

    @torch.no_grad()
    def read(
        self, rollouts: Rollouts, check: bool, under: Under | None = None, others: Mapping[int, Under] = NO_OTHERS
    ) -> dict[Reading, Tensor]:
        """Readings of the step's actions under weights that do not move during it.

        `old` is read with the live weights, which have not moved yet, unless the sampler's own record will do. Rows that earlier
        weights wrote are compared `under` these; where they differ, `others` by their number of steps are tried.
        """
        wanted, recorded = self.algorithm.frozen_reads, rollouts.recorded
        sampled = recorded.get(ROLLOUT_LOGPROBS)
        unknown = sampled is not None and self.ranks.most(int((sampled.isnan() & rollouts.action_mask).any())) > 0
        wanted = tuple(reading for reading in wanted if reading != OLD_LOGPROBS or reading in recorded or not self.old_is_live)
        trusted = sampled is not None and self.algorithm.old == "recorded" and not unknown
        missing = [reading for reading in wanted if reading not in recorded and not (reading == OLD_LOGPROBS and trusted)]
        checked = sampled is not None and check
        extra = [OLD_LOGPROBS] if checked and under is None and OLD_LOGPROBS not in missing else []
        read = self.sizes.fit(lambda: self.read_rows(rollouts, missing + extra)) if missing or extra else {}
        if under is not None:
            self.gate.expect_lag()
        if checked and sampled is not None:
            with nullcontext() if under is None else under():
                own = read if under is None else self.read_live(rollouts, [OLD_LOGPROBS])
                self.gate.check(rollouts, sampled, own[OLD_LOGPROBS], lambda rows: self.versions(rows, others))
        if sampled is not None and OLD_LOGPROBS in wanted:
            # a replayed row was sampled by weights that are gone: only its record is left
            noted = (
                sampled if self.algorithm.old == "recorded" else sampled.masked_fill(~rollouts.is_replayed()[:, None], torch.nan)
            )
            read[OLD_LOGPROBS] = torch.where(noted.isnan(), 0.0 if trusted else read[OLD_LOGPROBS], noted)
        return {reading: recorded[reading] if reading in recorded else read[reading] for reading in wanted}

    @property
    def old_is_live(self) -> bool:
        """Can the live reading of a step's only update serve as the old one, exactly and at no cost?

        Unless `old` is "reread", the sampler's record is used where other weights or an engine may have sampled: the ratio then
        corrects for that.
        """
        is_exact = with_hooks(self.policy, PolicyHooks).exact_sampler
        sampled_here = is_exact and not self.policy.shadows and not self.settings.ahead
        return self.algorithm.old_can_be_live and (self.algorithm.old == "reread" or sampled_here)

    def with_old(self, batch: Batch, live: Mapping[Reading, Tensor]) -> Batch:
        """The batch with its live log-probabilities as old ones, detached from the graph, where there were none before."""
        if not self.old_is_live or OLD_LOGPROBS in batch.frozen:
            return batch
        return replace(batch, frozen={**batch.frozen, OLD_LOGPROBS: live[LOGPROBS].detach()})

    @torch.no_grad()
    def read_live(self, rollouts: Rollouts, readings: list[Reading]) -> dict[Reading, Tensor]:
        """Readings of rows that were just sampled, under the weights that sampled them."""
        return self.sizes.fit(lambda: self.read_rows(rollouts, readings))

    def versions(self, rollouts: Rollouts, others: Mapping[int, Under]) -> Iterator[Hypothesis]:
        """That weights of another step wrote the rows than is said."""
        for step, under in others.items():

            def read(under: Under = under) -> Tensor:
                with under():
                    return self.read_live(rollouts, [OLD_LOGPROBS])[OLD_LOGPROBS]

            yield Hypothesis(OTHER_VERSION, f"with the weights after {step} steps", START_AGAIN, read)

    def read_rows(self, rollouts: Rollouts, readings: list[Reading]) -> dict[Reading, Tensor]:
        """Evaluate readings for all rows, cut to micro-batches; those that compare the rows of a group, group by group."""
        ones = torch.ones_like(rollouts.action_mask, dtype=torch.float32)
        places = torch.arange(ones.numel()).reshape(ones.shape)
        whole = Batch(rollouts, ones, ones, ones, {PLACE: places})
        compared = [reading for reading in readings if reading.quantity.startswith(OF_GROUPS)]
        others = [reading for reading in readings if reading not in compared]
        read: dict[Reading, Tensor] = {}
        if others:
            read |= self.read_micro_batches(self.policy.split(whole, self.sizes.size, self.algorithm.scope), others, places.shape)
        if compared:
            ids = rollouts.group_ids
            groups = [whole.take((ids == group_id).nonzero()[:, 0]) for group_id in ids.unique()]
            read |= self.read_micro_batches(groups or [whole], compared, places.shape)
        return read

    def read_micro_batches(self, cut: Iterable[Batch], readings: list[Reading], shape: torch.Size) -> dict[Reading, Tensor]:
        """The readings of all micro-batches, put back in place as (n, t).

        Every rank reads the same number of times, or sharded weights would wait for ever.
        """
        asked = {r: r._replace(model="policy") if r.model in ("old", "start") else r for r in readings}
        live = list(dict.fromkeys(asked.values()))
        micro_batches, pieces = list(cut), list[dict[Reading, Tensor]]()
        # Asked before the first read: reading talks to the other ranks too, and all must do both in one order.
        missing = self.ranks.most(len(micro_batches)) - len(micro_batches)
        for micro_batch in micro_batches:
            values = self.policy.read(micro_batch.rollouts.trace, live, micro_batch.rollouts.action_mask)
            pieces.append({reading: values[one] for reading, one in asked.items()})
        for _ in range(missing):
            self.policy.read(micro_batches[-1].rollouts.trace, live, micro_batches[-1].rollouts.action_mask)
        order = torch.cat([micro_batch.frozen[PLACE].flatten() for micro_batch in micro_batches])
        flat = {reading: join_rows([piece[reading].flatten(0, 1) for piece in pieces])[order.argsort()] for reading in readings}
        return {reading: x.unflatten(0, shape) for reading, x in flat.items()}


def routed(algorithm: Algorithm, rollouts: Rollouts, scores: Scores) -> Rollouts:
    """The rows with TAUGHT recorded, and with what their teacher is told; as they are where no term routes them."""
    for _, term in algorithm.objective:
        if isinstance(term, Routes) and term.routes:
            taught, texts = term.route(rollouts, scores)
            recorded = {**rollouts.recorded, TAUGHT: taught[:, None].expand(rollouts.action_mask.shape).float()}
            rollouts = replace(rollouts, recorded=recorded)
            if texts and isinstance(rollouts.trace, Tellable):
                rollouts = replace(rollouts, trace=rollouts.trace.tell(texts))
    return rollouts


def of_scores(algorithm: Algorithm, scores: Scores, rollouts: Rollouts, ranks: Ranks) -> dict[Reading, Tensor]:
    """Readings made of rewards, (n, t): a row's total, the mean over its group, also over rows that were dropped, TAUGHT, and the
    advantage of a sound, among the rows of all ranks."""
    wanted = algorithm.score_reads
    if not wanted:
        return {}
    totals = scores.total().double()
    means = torch.full_like(totals, torch.nan)
    for group in rollouts.groups:
        rows = rollouts.group_ids == group.id
        means[rows] = totals[rows].nanmean() if group.seen is None else group.seen.mean
    shape = rollouts.action_mask.shape
    values = {REWARD: totals[:, None].expand(shape), MEAN_REWARD: means[:, None].expand(shape), **rollouts.recorded}
    if SOUND_ADVANTAGE in wanted and isinstance(algorithm.advantage, PerModality):
        everyone, mine = ranks.all_rows(rollouts)
        values[SOUND_ADVANTAGE] = algorithm.advantage.of_the_sound(ranks.all_scores(scores), everyone)[mine, : shape[1]]
    return {reading: values[reading].to(scores.values.dtype) for reading in wanted}
