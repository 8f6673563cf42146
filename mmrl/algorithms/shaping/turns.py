"""Bonuses for the use of tools that depend on the group: where they help, or are seldom used."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.algorithms.statistics import PlainShaping, by_group, totals_and_keep, with_column
from mmrl.algorithms.turns import uses
from mmrl.core.types import Reading, Rollouts, Scores
from mmrl.runtime.ranges import NonNegative, Share


@dataclass(frozen=True)
class WhereToolsHelp(PlainShaping):
    """Adds a reward `tools_help` to samples that used a tool: the sign of mean(r that did) - mean(r that did not) beyond `least`.

    The contrast of GeometryZero's GCPO, arXiv:2506.07160, from summaries. The two sides of a group are those that the policy
    chose, or with `asked`, as there, those that the planner AskedHalves asked for; a group without one of them gets 0.
    """

    weight: NonNegative = 0.5
    """Weight of the reward in the total; ours."""
    least: NonNegative = 0.1
    """Differences up to this, in units of the total reward, say nothing; ours."""
    fact: str = "tool"
    """The fact of an observation that says that a tool was used."""
    asked: bool = False
    """Compare the halves that were asked with and without the tool, in place of those that used it and did not."""

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError when a reward has its name already."""
        totals, keep = totals_and_keep(scores)
        used = uses(rollouts, self.fact)
        side = first_halves(rollouts) if self.asked else used
        found = by_group(rollouts, keep, totals, self._contrast, used, side)
        return with_column(scores, self, "tools_help", found, self.weight)

    def _contrast(self, totals: Tensor, used: Tensor, side: Tensor) -> Tensor:
        if side.all() or not side.any():
            return torch.zeros_like(totals)
        lead = totals[side].mean() - totals[~side].mean()
        return torch.where(used, lead.sign() * (lead.abs() > self.least), 0.0)


@dataclass(frozen=True)
class SeldomTools(PlainShaping):
    """Adds a reward `seldom_tools` to samples that used a tool: max(wanted - share of the group that did, 0) (VR-Thinker).

    The reward for exploration of arXiv:2510.10518, from summaries.
    """

    weight: NonNegative = 1.0
    """Weight of the reward in the total; ours."""
    wanted: Share = 0.5
    """The share of a group from which using tools brings nothing more; ours."""
    fact: str = "tool"
    """The fact of an observation that says that a tool was used."""

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError when a reward has its name already."""
        totals, keep = totals_and_keep(scores)
        used = uses(rollouts, self.fact).to(totals)
        found = by_group(rollouts, keep, used, lambda group: group * (self.wanted - group.mean()).clamp(min=0))
        return with_column(scores, self, "seldom_tools", found, self.weight)


def first_halves(rollouts: Rollouts) -> Tensor:
    """True for the first half of every group's samples, which AskedHalves asks to use a tool."""
    sizes = {group.id: len(group.samples) for group in rollouts.groups}
    half = torch.tensor([sizes[group_id] // 2 for group_id in map(int, rollouts.group_ids)])
    return rollouts.sample_ids < half.to(rollouts.sample_ids.device)
