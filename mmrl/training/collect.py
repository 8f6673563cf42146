"""One step's rollouts: plan -> sample -> score -> revise, until the planner requests nothing more or its rounds are used up."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import cast

import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.samplers.learned import Judged
from mmrl.algorithms.views import column
from mmrl.core.hooks import PlannerHooks, PolicyHooks, SamplerHooks, defines, with_hooks
from mmrl.core.protocols import Planner, Policy, PromptSampler, State, Stateful
from mmrl.core.ranks import Ranks
from mmrl.core.readings import VALUE
from mmrl.core.samples import Seen
from mmrl.core.types import Group, Prompt, Request, Revision, Rollouts, Sample, Scores, Status
from mmrl.runtime.tensors import pad_actions
from mmrl.training.measure import stopwatch
from mmrl.training.prompt_source import Drawing, PromptValues
from mmrl.training.reference_reads import ReferenceReads
from mmrl.training.rewards.runner import GroupScores, RewardRunner
from mmrl.training.settings import TrainSettings

ProbeScores = dict[str, Tensor]
Write = Callable[[Sequence[Request]], Rollouts]


@dataclass
class Collected:
    """The rows of this rank that one step trains on, and what it cost to get them."""

    rollouts: Rollouts
    scores: Scores
    tables: Mapping[int, GroupScores]
    rounds: int
    num_discarded: int
    """Samples of all ranks that were drawn, scored and not trained on."""
    times: dict[str, float] = field(default_factory=dict)
    under: Callable[[], AbstractContextManager[None]] | None = None
    """A block with the weights that wrote the rows; None: they are the live ones."""
    others: Mapping[int, Callable[[], AbstractContextManager[None]]] = field(default_factory=dict)
    """The same with weights that might have written them by mistake, by their number of steps."""


@dataclass(eq=False)
class Collector:
    """Draws prompts (the same on all ranks), samples this rank's groups and scores them."""

    policy: Policy
    sampler: PromptSampler
    rewards: RewardRunner
    algorithm: Algorithm
    settings: TrainSettings
    ranks: Ranks
    reader: ReferenceReads

    def __post_init__(self) -> None:
        policy, sampler, settings = self.policy, self.sampler, self.settings
        self.planner, self.next_group = self.algorithm.planner, 0
        self.skipped: dict[str, str] = {}
        """Id of a prompt that could not be shown -> what was wrong with it."""
        begin_replay(self.planner, sampler, policy)
        if VALUE.quantity in policy.offers:
            with_hooks(sampler, Judged).ask(PromptValues(policy, self.ranks))
        skips = settings.max_skipped
        self.draw = Drawing(sampler, policy, self.ranks, skips, self.skipped) if skips else sampler.draw
        self.stored: dict[int, Seen | None] = {}
        """Groups of this step that hold a row of an earlier one, and what the row's group was like."""

    def collect(self, sampling: object = None, note: Callable[[Rollouts], Rollouts] = lambda fresh: fresh) -> Collected:
        """This rank's rows of the groups that the planner kept; `note` is given fresh rows, to note what wrote them."""
        times: dict[str, float] = {}
        # what an evaluation measured since the last step is not this step's
        self.drain_metrics()
        rollouts: Rollouts | None = None
        tables: dict[int, GroupScores] = {}
        owned: set[int] = set()
        self.stored = {}
        probed: dict[int, ProbeScores] = {}
        gone: dict[int, list[float]] = {}
        requests, rounds, drawn = self.requests_for(self.settings.prompts_per_step), 0, 0

        def write(part: Sequence[Request]) -> Rollouts:
            fresh, wanted = note(self.policy.rollout(part, sampling)), with_hooks(self.planner, PlannerHooks).inspects
            return replace(fresh, recorded={**fresh.recorded, **self.reader.read_live(fresh, list(wanted))}) if wanted else fresh

        while True:
            before = 0 if rollouts is None else len(rollouts)
            rollouts, again, fresh_tables = self.sample_and_score(requests, write, rollouts, times)
            drawn += len(rollouts) - before
            owned |= {group.id for group in again}
            tables |= {group.id: table for group, table in zip(again, fresh_tables, strict=True)}
            with stopwatch(times, "reward"):
                probed |= self.score_probes(again)
            scores = self.rewards.scores(rollouts, tables)
            revision = self.revise(rollouts, scores, rounds)
            note_dropped(gone, rollouts, scores, revision)
            rollouts = with_values(without(rollouts, revision), revision)
            rounds += 1
            requests = self.requests_of(revision, owned)
            if not self.ranks.most(len(requests)) or rounds >= self.planner.max_rounds:
                break
        self.look_ahead()
        discarded = sum(self.ranks.gather(drawn - len(rollouts)))
        scores = self.rewards.scores(rollouts, tables)
        rollouts = with_seen(rollouts, scores, gone, self.stored)
        if any(sample.previews for group in rollouts.groups for sample in group.samples):
            rollouts = score_previews(self.rewards, rollouts, scores)
        scores = self.with_probes(scores, rollouts, probed)
        return Collected(rollouts, scores, tables, rounds, discarded, times | self.drain_metrics())

    def drain_metrics(self) -> dict[str, float]:
        """The cost of rewards and worlds since the last call."""
        return {**self.rewards.drain_metrics(self.ranks), **with_hooks(self.policy, PolicyHooks).drain_metrics()}

    def state_dict(self) -> State:
        """The prompts to come, what was skipped of them, and what the planner remembers."""
        planner = self.planner.state_dict() if isinstance(self.planner, Stateful) else {}
        sampler = self.sampler.state_dict()
        return {"next_group": self.next_group, "skipped": dict(self.skipped), "sampler": sampler, "planner": planner}

    def load_state_dict(self, state: State) -> None:
        """Continue where the state was taken."""
        self.next_group = state["next_group"]
        self.skipped.clear()
        self.skipped.update(state["skipped"])
        self.sampler.load_state_dict(state["sampler"])
        if isinstance(self.planner, Stateful) and state["planner"]:
            self.planner.load_state_dict(state["planner"])

    def sample_and_score(
        self, requests: Sequence[Request], write: Write, rollouts: Rollouts | None, times: dict[str, float]
    ) -> tuple[Rollouts, list[Group], list[GroupScores]]:
        """The rollouts with the requested ones added, the groups these belong to, and their scores."""
        parts, again = self.split_requests(requests), list[Group]()
        with self.rewards.scoring(beside=len(parts) > 1) as scoring:
            for part in parts:
                with stopwatch(times, "rollout"):
                    fresh = write(part)
                rollouts = merge_rollouts(self.policy, rollouts, fresh) if rollouts and rollouts.groups else fresh
                touched = {request.group_id for request in part if request.role != "note"}
                finished = [group for group in rollouts.groups if group.id in touched]
                again += finished
                with stopwatch(times, "reward"):
                    scoring.add(finished)
            with stopwatch(times, "reward"):
                tables = scoring.tables()
        assert rollouts is not None
        return rollouts, again, tables

    def split_requests(self, requests: Sequence[Request]) -> list[list[Request]]:
        """The requests in `rollout_parts` lists of whole groups; equally many on every rank, since ranks sample together.

        Raises ValueError where steps are sampled ahead and the planner asks for other weights than the policy's, or for a view.
        """
        other = [f"the weights {one.model!r}" for one in requests if one.model != "policy"]
        other += [f"the view {one.view!r}" for one in requests if one.view != "plain"]
        if other and self.settings.ahead:
            raise ValueError(
                f"{type(self.planner).__name__} asks for samples of {other[0]}, which the network writes that trains meanwhile: "
                "set ahead = 0"
            )
        ids = list(dict.fromkeys(request.group_id for request in requests))
        count = max(1, self.ranks.most(min(self.settings.rollout_parts, len(ids))))
        part_of = {group_id: i * count // len(ids) for i, group_id in enumerate(ids)}
        return [[request for request in requests if part_of[request.group_id] == part] for part in range(count)]

    def requests_for(self, num_prompts: int) -> list[Request]:
        """This rank's requests for newly drawn prompts; group ids are the same whatever the number of ranks."""
        size, seed = self.algorithm.group_size, self.settings.seed
        requests = self.planner.first(self.draw(num_prompts), size, self.next_group, seed)
        ids = sorted({request.group_id for request in requests})
        self.next_group = max(ids, default=self.next_group - 1) + 1
        mine = set(self.ranks.share_out(ids))
        return [request for request in requests if request.group_id in mine]

    def look_ahead(self) -> None:
        """Let the policy prepare this rank's next prompts while the update runs."""
        policy = with_hooks(self.policy, PolicyHooks)
        if policy.prefetches:
            each = self.settings.prompts_per_step // self.ranks.world
            upcoming = with_hooks(self.sampler, SamplerHooks).peek(self.settings.prompts_per_step)
            policy.prefetch(islice(upcoming, self.ranks.rank * each, (self.ranks.rank + 1) * each))

    def revise(self, rollouts: Rollouts, scores: Scores, round_index: int) -> Revision:
        """The planner's decision over the groups of all ranks."""
        everyone, _ = self.ranks.all_rows(rollouts)
        everywhere = self.ranks.all_scores(scores)
        with_hooks(self.planner, PlannerHooks).inspect(everyone)
        return self.planner.revise(everyone.groups, everywhere, everyone.group_ids, self.settings.prompts_per_step, round_index)

    def requests_of(self, revision: Revision, owned: set[int]) -> list[Request]:
        """More of known groups stay with the rank that sampled them first; fresh prompts are rounded up to the ranks.

        New groups, which a planner names by negative ids, go to the ranks in turn.
        """
        world = self.ranks.world
        fresh = -(-revision.fresh_prompts // world) * world
        more, mine = [request for request in revision.requests if request.group_id >= 0], self.new_groups(revision)
        if more:
            strangers = {request.group_id for request in more}.difference(*self.ranks.gather(owned))
            if strangers:
                raise ValueError(
                    f"{type(self.planner).__name__} asks for more of the groups {sorted(strangers)}, which this step has not "
                    "sampled: new prompts are asked for with Revision.fresh_prompts"
                )
        mine += [request for request in more if request.group_id in owned]
        self.stored |= {one.group_id: one.given.seen for one in mine if one.role == "replayed" and one.given is not None}
        return [*mine, *(self.requests_for(fresh) if fresh else [])]

    def new_groups(self, revision: Revision) -> list[Request]:
        """This rank's requests for new groups, which the planner marked by negative ids."""
        asked = [request for request in revision.requests if request.group_id < 0]
        ids = {old: self.next_group + i for i, old in enumerate(dict.fromkeys(request.group_id for request in asked))}
        self.next_group += len(ids)
        mine = [replace(request, group_id=ids[request.group_id]) for request in asked]
        return [request for request in mine if request.group_id % self.ranks.world == self.ranks.rank]

    def score_probes(self, groups: Sequence[Group]) -> dict[int, ProbeScores]:
        """Group -> view -> the mean of every reward over the probes drawn under it, NaN where it does not apply."""
        found: dict[int, ProbeScores] = {group.id: {} for group in groups}
        shown = [(view, replace(group, samples=drawn, probes={})) for group in groups for view, drawn in group.probes.items()]
        shown = [(view, group) for view, group in shown if group.samples]
        tables = self.rewards.score([group for _, group in shown]) if shown else []
        for (view, group), table in zip(shown, tables, strict=True):
            found[group.id][view] = means(table)
        return found

    def with_probes(self, scores: Scores, rollouts: Rollouts, probed: Mapping[int, ProbeScores]) -> Scores:
        """The scores with a column per reward and view that any rank probed: of no weight, the same for all rows of a group."""
        views = sorted(set().union(*self.ranks.gather({view for found in probed.values() for view in found})))
        nothing = scores.values.new_full((len(self.rewards.names),), math.nan)
        for view in views:
            rows = [probed[group_id].get(view, nothing) for group_id in rollouts.group_ids.tolist()]
            values = torch.stack(rows) if rows else scores.values[:, :0].new_zeros(0, len(nothing))
            status = torch.where(values.isnan(), int(Status.NA), int(Status.OK))
            scores = Scores(
                (*scores.names, *(column(name, view) for name in self.rewards.names)),
                torch.cat([scores.values, values], dim=1),
                torch.cat([scores.status, status], dim=1),
                torch.cat([scores.weights, torch.zeros_like(nothing)]),
            )
        return scores


def means(table: GroupScores) -> Tensor:
    """The mean of every reward over the samples it answered for, NaN where there are none."""
    return torch.where(table.status == Status.OK, table.values, math.nan).nanmean(dim=0)


def merge_rollouts(policy: Policy, old: Rollouts, new: Rollouts) -> Rollouts:
    """Rows of both; a group named in both becomes one, its new samples after the old ones."""
    sizes = {group.id: len(group.samples) for group in old.groups}
    offsets = torch.tensor([sizes.get(group, 0) for group in new.group_ids.tolist()], dtype=torch.long)
    groups = {group.id: group for group in old.groups}
    for group in new.groups:
        known = groups.get(group.id)
        groups[group.id] = group if known is None else join_groups(known, group)
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
        weights_version=min(old.weights_version, new.weights_version),
    )


def begin_replay(planner: Planner, sampler: PromptSampler, policy: Policy) -> None:
    """Give a planner that replays rows the prompts of the run and the policy's tokens.

    Raises ValueError where the sampler does not hold its prompts, or rows that the planner remembers are of other tokens.
    """
    if not defines(planner, PlannerHooks.begin):
        return
    prompts, vocabulary = with_hooks(sampler, SamplerHooks).prompts, with_hooks(policy, PolicyHooks).vocabulary
    if not hasattr(prompts, "__getitem__") or not vocabulary:
        raise ValueError(
            f"{type(planner).__name__} finds the prompts of earlier rows again, but {type(sampler).__name__} does not hold all "
            'prompts: give the run a data set that is a list and leave out sampler.kind = "Streamed"'
        )
    with_hooks(planner, PlannerHooks).begin(cast(Sequence[Prompt], prompts), vocabulary)


def with_shown(light: Rollouts, rollouts: Rollouts, planner: Planner) -> Rollouts:
    """For a planner that replays rows the same with what worlds showed, which comes back with them; it is sent to no process."""
    return replace(light, groups=rollouts.groups) if defines(planner, PlannerHooks.begin) else light


def note_dropped(gone: dict[int, list[float]], rollouts: Rollouts, scores: Scores, revision: Revision) -> None:
    """Remember the totals of rows that a planner drops from groups it keeps, except rows that continued a given prefix."""
    if not revision.drop_samples:
        return
    begun = [any(one.who == "forced" for one in sample.segments) for _, sample in rollouts.samples()]
    for pair, total, goes_on in zip(rollouts.pairs(), scores.total().tolist(), begun, strict=True):
        if pair in revision.drop_samples and not goes_on:
            gone.setdefault(pair[0], []).append(total)


def with_seen(rollouts: Rollouts, scores: Scores, gone: Mapping[int, list[float]], stored: Mapping[int, Seen | None]) -> Rollouts:
    """The rollouts with `Group.seen` set where a group's rows do not tell what all its samples were like."""
    if not gone and not stored:
        return rollouts
    totals, replayed = scores.total(), rollouts.is_replayed()
    groups: list[Group] = []
    for group in rollouts.groups:
        rows = rollouts.group_ids == group.id
        fresh = [*gone.get(group.id, []), *totals[rows & ~replayed].tolist()]
        known = stored.get(group.id) if not bool((rows & ~replayed).any()) else None
        dropped = summary_of(fresh) if group.id in gone else None
        groups.append(replace(group, seen=known or dropped))
    return replace(rollouts, groups=tuple(groups))


def rows_of_now(rollouts: Rollouts, scores: Scores) -> tuple[Rollouts, Scores]:
    """The rows that the current weights sampled in this step, without those of another temperature."""
    heated = torch.tensor([sample.temperature is not None for _, sample in rollouts.samples()], dtype=torch.bool)
    other = rollouts.is_replayed() | heated
    if not bool(other.any()):
        return rollouts, scores
    rows = (~other).nonzero()[:, 0]
    fresh, known = rollouts.take(rows), set(rollouts.group_ids[rows].tolist())
    return replace(fresh, groups=tuple(group for group in rollouts.groups if group.id in known)), scores.take(rows)


def summary_of(totals: Sequence[float]) -> Seen | None:
    """Count, mean and deviation of these totals; None where all are NaN."""
    known = torch.tensor([total for total in totals if not math.isnan(total)], dtype=torch.float64)
    if not len(known):
        return None
    return Seen(len(known), float(known.mean()), float(known.std()) if len(known) > 1 else 0.0)


def join_groups(old: Group, new: Group) -> Group:
    probes = {view: (*old.probes.get(view, ()), *new.probes.get(view, ())) for view in {**old.probes, **new.probes}}
    return Group(old.id, old.prompt, (*old.samples, *new.samples), probes, (*old.notes, *new.notes))


def with_values(rollouts: Rollouts, revision: Revision) -> Rollouts:
    """The rollouts whose samples hold the values that the planner found."""
    if not revision.values:
        return rollouts

    def fill(group: Group) -> Group:
        samples = [replace(one, values=revision.values.get((group.id, i), one.values)) for i, one in enumerate(group.samples)]
        return replace(group, samples=tuple(samples))

    return replace(rollouts, groups=tuple(map(fill, rollouts.groups)))


def without(rollouts: Rollouts, revision: Revision) -> Rollouts:
    """The rows without the groups and samples the planner dropped. A dropped sample stays in its group; only its row goes."""
    if not revision.drop_groups and not revision.drop_samples:
        return rollouts
    gone, dropped = revision.drop_groups, revision.drop_samples
    rows = [i for i, pair in enumerate(rollouts.pairs()) if pair[0] not in gone and pair not in dropped]
    kept = rollouts.take(torch.tensor(rows, dtype=torch.long))
    return replace(kept, groups=tuple(group for group in rollouts.groups if group.id not in revision.drop_groups))


def score_previews(rewards: RewardRunner, rollouts: Rollouts, scores: Scores) -> Rollouts:
    """The rollouts whose samples hold, in place of previews, the total reward after every step (`Sample.values`).

    After the last step it is the sample's own, found in `scores`; NaN where a sample has none.
    """
    own = dict(zip(rollouts.pairs(), scores.total().tolist(), strict=True))
    found: dict[tuple[int, int], list[float]] = {pair: [] for pair in own}
    steps = [(group, step) for group in rollouts.groups for step in range(min(len(one.previews) for one in group.samples))]
    shown = [
        (group, replace(group, samples=tuple(preview_of(one, step) for one in group.samples), probes={})) for group, step in steps
    ]
    tables = rewards.score([one for _, one in shown])
    for (group, _), table in zip(shown, tables, strict=True):
        totals = Scores(rewards.names, table.values, table.status, rewards.weights).total()
        for i, total in enumerate(totals.tolist()):
            if (group.id, i) in found:
                found[group.id, i].append(total)

    def fill(group: Group) -> Group:
        values = [(*found.get((group.id, i), ()), own.get((group.id, i), torch.nan)) for i in range(len(group.samples))]
        samples = [
            replace(one, previews=(), values=tuple(enumerate(each))) for one, each in zip(group.samples, values, strict=True)
        ]
        return replace(group, samples=tuple(samples))

    return replace(rollouts, groups=tuple(map(fill, rollouts.groups)))


def preview_of(sample: Sample, step: int) -> Sample:
    """The sample as a step predicted it."""
    shown = sample.previews[step]
    kind = next((name for name in ("video", "sound") if getattr(sample, name) is not None), "image")
    clip_with_sound = hasattr(shown, "_asdict")
    return replace(sample, previews=(), **(shown._asdict() if clip_with_sound else {kind: shown}))
