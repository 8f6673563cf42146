"""One step's rollouts: plan -> sample -> score -> revise, until the planner is content or its rounds are used up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmrl.core.protocols import Planner, Policy, PromptSampler
from mmrl.core.tensors import pad_actions
from mmrl.core.types import Group, Request, Revision, Rollouts, Scores
from mmrl.training.distributed import Ranks
from mmrl.training.rewards import GroupScores, RewardRunner, stopwatch


@dataclass
class Collected:
    """What one step trains on (this rank's rows), and what it cost to get."""

    rollouts: Rollouts
    scores: Scores
    tables: Mapping[int, GroupScores]
    rounds: int
    num_discarded: int
    """Samples of all ranks that were drawn, scored and not trained on."""
    times: dict[str, float] = field(default_factory=dict)


class Collector:
    """Draws prompts (the same on all ranks), samples this rank's groups and scores them."""

    def __init__(
        self,
        policy: Policy,
        sampler: PromptSampler,
        rewards: RewardRunner,
        planner: Planner,
        ranks: Ranks,
        *,
        group_size: int,
        num_prompts: int,
        seed: int,
    ) -> None:
        self.policy, self.sampler, self.rewards, self.planner, self.ranks = policy, sampler, rewards, planner, ranks
        self.group_size, self.num_prompts, self.seed = group_size, num_prompts, seed
        self.next_group = 0

    def collect(self, how: Any = None) -> Collected:
        """Rows of this rank whose groups the planner kept."""
        times: dict[str, float] = {}
        rollouts: Rollouts | None = None
        tables: dict[int, GroupScores] = {}
        requests, rounds, drawn = self.plan(self.num_prompts), 0, 0
        while True:
            with stopwatch(times, "rollout"):
                fresh = self.policy.rollout(requests, how)
            drawn += len(fresh)
            rollouts = fresh if rollouts is None else merged(self.policy, rollouts, fresh)
            touched = {request.group_id for request in requests}
            with stopwatch(times, "reward"):
                again = [group for group in rollouts.groups if group.id in touched]
                tables |= {group.id: table for group, table in zip(again, self.rewards.score(again), strict=True)}
            scores = self.rewards.scores(rollouts, tables)
            revision = self.revise(rollouts, scores, rounds)
            rollouts = without(rollouts, revision)
            rounds += 1
            requests = self.requests_of(revision)
            if not self.ranks.most(len(requests)) or rounds >= self.planner.max_rounds:
                break
        discarded = sum(self.ranks.gather(drawn - len(rollouts)))
        return Collected(rollouts, self.rewards.scores(rollouts, tables), tables, rounds, discarded, times)

    def plan(self, num_prompts: int) -> list[Request]:
        """This rank's requests for newly drawn prompts; group ids are the same whatever the number of ranks."""
        prompts = self.sampler.draw(num_prompts)
        requests = self.planner.first(prompts, self.group_size, self.next_group, self.seed)
        ids = sorted({request.group_id for request in requests})
        self.next_group = max(ids, default=self.next_group - 1) + 1
        mine = set(self.ranks.share_out(ids))
        return [request for request in requests if request.group_id in mine]

    def revise(self, rollouts: Rollouts, scores: Scores, round_index: int) -> Revision:
        """The planner's decision over the groups of all ranks."""
        everyone, _ = self.ranks.all_rows(rollouts)
        everywhere = replace(
            scores,
            values=torch.cat(self.ranks.gather(scores.values)),
            status=torch.cat(self.ranks.gather(scores.status)),
        )
        return self.planner.revise(everyone.groups, everywhere, everyone.group_ids, self.num_prompts, round_index)

    def requests_of(self, revision: Revision) -> list[Request]:
        """More of known groups stay with the rank that owns them; fresh prompts are rounded up to the ranks."""
        world = self.ranks.world
        fresh = -(-revision.fresh_prompts // world) * world
        return [*self.ranks.share_out(list(revision.requests)), *(self.plan(fresh) if fresh else [])]


def merged(policy: Policy, old: Rollouts, new: Rollouts) -> Rollouts:
    """Rows of both; a group named in both becomes one, its new samples after the old ones."""
    sizes = {group.id: len(group.samples) for group in old.groups}
    offsets = torch.tensor([sizes.get(group, 0) for group in new.group_ids.tolist()], dtype=torch.long)
    groups = {group.id: group for group in old.groups}
    for group in new.groups:
        known = groups.get(group.id)
        groups[group.id] = group if known is None else joined_group(known, group)
    length = max(old.action_mask.shape[1], new.action_mask.shape[1])

    def both(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([pad_actions(a, length), pad_actions(b, length)])

    return Rollouts(
        groups=tuple(groups.values()),
        group_ids=torch.cat([old.group_ids, new.group_ids]),
        sample_ids=torch.cat([old.sample_ids, new.sample_ids + offsets]),
        action_mask=both(old.action_mask, new.action_mask),
        trace=policy.join([old.trace, new.trace]),
        recorded={reading: both(old.recorded[reading], new.recorded[reading]) for reading in old.recorded},
        node_ids=None if old.node_ids is None or new.node_ids is None else both(old.node_ids, new.node_ids),
    )


def joined_group(old: Group, new: Group) -> Group:
    probes = {view: (*old.probes.get(view, ()), *new.probes.get(view, ())) for view in {**old.probes, **new.probes}}
    return Group(old.id, old.prompt, (*old.samples, *new.samples), probes)


def without(rollouts: Rollouts, revision: Revision) -> Rollouts:
    """Without the groups and samples the planner dropped. A dropped sample stays in its group; only its row goes."""
    if not revision.drop_groups and not revision.drop_samples:
        return rollouts
    pairs: Sequence[tuple[int, int]] = list(zip(rollouts.group_ids.tolist(), rollouts.sample_ids.tolist(), strict=True))
    rows = [
        i
        for i, (group, sample) in enumerate(pairs)
        if group not in revision.drop_groups and (group, sample) not in revision.drop_samples
    ]
    kept = rollouts.take(torch.tensor(rows, dtype=torch.long))
    return replace(kept, groups=tuple(group for group in rollouts.groups if group.id not in revision.drop_groups))
