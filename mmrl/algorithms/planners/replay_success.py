"""A planner that adds an old success to a group in which all samples failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from torch import Tensor

from mmrl.algorithms.planners.replay import Replay
from mmrl.algorithms.replay import RowBuffer, rows_to_keep
from mmrl.core.types import Credit, Group, Request, Revision, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative, Number


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
