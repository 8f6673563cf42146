"""Planners that train rows of earlier steps again, from a buffer that checkpoints hold."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan

from torch import Tensor

from mmrl.algorithms.planners.base import one_request_each
from mmrl.algorithms.replay import RowBuffer, rows_to_keep
from mmrl.core.hooks import PlannerHooks
from mmrl.core.protocols import State
from mmrl.core.types import Credit, Group, Prompt, Request, Revision, Rollouts, Scores
from mmrl.runtime.ranges import BelowOne, Count, Large, LargeOrNone, NonNegative, Number, Positive, check_ranges


@dataclass(frozen=True)
class Replay(PlannerHooks):
    """The buffer of rows, common to the planners that replay."""

    capacity: Count = 4096
    """Most rows in the buffer; the oldest leave."""
    picture_mib: Count = 1024
    """Most MiB of the pictures that worlds showed in these rows, of a byte per pixel and colour; the oldest rows leave."""
    keep_old: bool = True
    """True: ratios of replayed rows are to the weights that sampled them. False: to the weights before the update, as if the row
    were new."""
    buffer: RowBuffer = field(init=False, compare=False, repr=False)
    seeds: list[int] = field(default_factory=list[int], init=False, compare=False, repr=False)
    """The run's seed, once it is known."""

    def __post_init__(self) -> None:
        check_ranges(self)
        object.__setattr__(self, "buffer", RowBuffer(self.capacity, picture_mib=self.picture_mib))

    max_rounds = 2

    def begin(self, prompts: Sequence[Prompt], vocabulary: str) -> None:
        """Raises ValueError when rows of other tokens are held."""
        self.buffer.begin(prompts, vocabulary)

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        self.seeds[:] = [seed]
        return one_request_each(prompts, group_size, first_id, seed)

    def generator(self, groups: Sequence[Group]) -> random.Random:
        """The random numbers of this step, the same on all ranks."""
        return random.Random(f"{self.seeds}/{max((group.id for group in groups), default=0)}/replay")

    def state_dict(self) -> State:
        return {"buffer": self.buffer.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the rows are of another vocabulary than the policy's."""
        self.buffer.load_state_dict(state["buffer"])


@dataclass(frozen=True)
class ReplayInformative(Replay):
    """Where groups have no spread, rows of the last steps take their place, drawn with P ~ (|A| + eps)^power (SSR).

    Selective sample replay of VL-Rethinker, arXiv:2504.08837; the weights are its code's, where the power is 1. As many rows are
    drawn, with replacement, as groups without spread have, at most the size of the buffer. A replayed row is a separate group
    that remembers the statistics of its first group: take the advantage AmongSeen with it. The code refills from the rows of the
    step under way only; the paper keeps a buffer, as here.
    """

    max_age: Large = 8
    """Rows older than this number of steps leave the buffer."""
    power: NonNegative = 1.0
    """How much large advantages are preferred; 0: all alike."""
    eps: Positive = 1e-4
    """Added to |A|."""
    min_spread: NonNegative = 1e-6
    """A group whose totals differ by no more has no advantage."""

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        if round_index or not self.buffer.rows:
            return Revision()
        totals = scores.total()
        lost = sum(len(own) for own in (totals[group_ids == group.id] for group in groups) if self.is_flat(own))
        count = min(lost, len(self.buffer.rows))
        weights = [(abs(kept.advantage) + self.eps) ** self.power for kept in self.buffer.rows]
        chosen = self.generator(groups).choices(self.buffer.rows, weights=weights, k=count)
        return Revision([self.buffer.request(kept, -1 - i, self.keep_old) for i, kept in enumerate(chosen)])

    def is_flat(self, totals: Tensor) -> bool:
        """True if the rewards of these samples have no spread."""
        known = totals[~totals.isnan()]
        return len(known) > 0 and float(known.max() - known.min()) <= self.min_spread

    def watch(self, step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> None:
        rows = [kept for kept in rows_to_keep(step, rollouts, scores, credit) if kept.advantage != 0]
        self.buffer.add(rows, step, self.max_age)


@dataclass(frozen=True)
class ReplayGroups(Replay):
    """A share of a step's rows comes from the policies of the last `window` steps, in whole groups (ReMix, arXiv:2507.06892).

    As many old groups are added as make up `share` with the new ones, drawn without replacement. Their stored rewards are used
    again, so that their advantages are those of their first group.
    """

    share: BelowOne = 0.4
    """Share of a step's groups that are old."""
    window: Count = 2
    """Groups of the last n steps may come back."""
    until: LargeOrNone = 0
    """The last step in which old groups come back; 0: they always do."""

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        if round_index or 0 < self.until <= self.buffer.step:
            return Revision()
        old = self.buffer.groups()
        count = min(len(old), round(self.share / (1 - self.share) * len(groups)))
        chosen = self.generator(groups).sample(sorted(old), count)
        return Revision([self.buffer.request(kept, -1 - i, self.keep_old) for i, one in enumerate(chosen) for kept in old[one]])

    def watch(self, step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> None:
        rows = [] if 0 < self.until <= step else rows_to_keep(step, rollouts, scores, credit)
        alive = {kept.group for kept in rows if kept.advantage != 0}
        self.buffer.add([kept for kept in rows if kept.group in alive], step, self.window)


@dataclass(frozen=True)
class ReplaySuccess(Replay):
    """Where deviation < std_below and mean < mean_below, an old success of the prompt takes the first sample's place (ARPO).

    ARPO for GUI agents, arXiv:2505.16282. Deviation and mean are of the group's total rewards, the deviation divides by their
    number. The success is drawn from the prompt's last `per_prompt`, which the policy sampled itself with a total above
    `success_above`; those that came back are not kept again.
    """

    per_prompt: Count = 8
    """Successes that are kept of a prompt, the newest."""
    success_above: Number = 0.1
    """Total reward above which a sample is kept."""
    std_below: NonNegative = 0.05
    """Deviation of a group's totals below which it teaches nothing."""
    mean_below: Number = 0.2
    """Mean total below which a group failed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "buffer", RowBuffer(self.capacity, self.per_prompt, self.picture_mib))

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        """Raises ValueError where a kept row's prompt is no longer in the data."""
        if round_index:
            return Revision()
        totals, draw = scores.total().double(), self.generator(groups)
        requests, dropped = list[Request](), set[tuple[int, int]]()
        for group in groups:
            known = self.buffer.of(group.prompt.id)
            if known and self.fails([float(total) for total in totals[group_ids == group.id]]):
                requests.append(self.buffer.request(draw.choice(known), group.id, self.keep_old))
                dropped.add((group.id, 0))
        return Revision(requests, drop_samples=frozenset(dropped))

    def fails(self, totals: Sequence[float]) -> bool:
        """True if the group failed as a whole; False if none of its samples has a reward."""
        known = [total for total in totals if not isnan(total)]
        mean = sum(known) / max(1, len(known))
        deviation = (sum((total - mean) ** 2 for total in known) / max(1, len(known))) ** 0.5
        return bool(known) and deviation < self.std_below and mean < self.mean_below

    def watch(self, step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> None:
        """Keep the successes of a step."""
        rows = rows_to_keep(step, rollouts, scores, credit)
        self.buffer.add([kept for kept in rows if kept.reward > self.success_above], step)
