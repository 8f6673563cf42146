"""Planners that sample every prompt once, or draw new prompts until groups are informative, and the base of those with rounds."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from mmrl.algorithms.statistics import place_of, values_at
from mmrl.core.hooks import PlannerHooks
from mmrl.core.protocols import State
from mmrl.core.types import Group, Prompt, Request, Revision, Scores
from mmrl.runtime.ranges import Count, Factor, NonNegative


def one_request_each(prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> list[Request]:
    """One group of plain samples per prompt; its seed depends only on the step's seed and the group's id."""
    return [
        Request(prompt, group_size, group_id, seed=seed_of(seed, group_id)) for group_id, prompt in enumerate(prompts, first_id)
    ]


def seed_of(seed: int, group_id: int) -> int:
    """A seed of 63 bits, so that no two groups of a run draw the same noise."""
    digest = hashlib.blake2b(f"{seed}/{group_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class PromptByPrompt(PlannerHooks):
    """A planner that asks for the samples of every prompt by itself."""

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        """The requests of a step begin with these; a step may call this several times, for fresh prompts."""
        return [one for request in one_request_each(prompts, group_size, first_id, seed) for one in self.asked(request)]

    def asked(self, request: Request) -> Sequence[Request]:
        """The requests of one prompt, in place of this one for its whole group."""
        return (request,)


@dataclass(frozen=True)
class Once(PromptByPrompt):
    """Every prompt is sampled once, whatever the scores say."""

    max_rounds = 1

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        return Revision()


@dataclass(frozen=True)
class DynamicSampling(Once):
    """Draw new prompts until enough groups are informative: max - min of the rewards > min_spread (DAPO, arXiv:2503.14476).

    Uninformative groups are dropped, and so are surplus ones. After `max_rounds` the step trains on the groups it
    has. The rows of a group must come in the order of its samples; only those of role `policy` are compared.
    """

    max_rounds: Count = 10
    min_spread: NonNegative = 1e-6
    """Spread that a group must exceed; above 0, so that rewards which differ only by rounding do not count."""
    reward: str | None = None
    """Compare this reward alone instead of the weighted total: name the accuracy, or format noise keeps uninformative groups."""
    oversample: Factor = 1.0
    """Fresh prompts per missing group."""

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        """Round indices count from 0.

        Raises ValueError if `reward` names no reward, or no group is informative after the last round.
        """
        rewards = scores.total()
        if self.reward is not None:
            rewards = values_at(scores, place_of(scores, self.reward, "DynamicSampling.reward"))
        informative = [group.id for group in groups if self._spread(group, rewards[group_ids == group.id]) > self.min_spread]
        kept = frozenset(informative[:wanted])
        drop = frozenset(group.id for group in groups) - kept
        missing = wanted - len(kept)
        if missing > 0 and round_index + 1 < self.max_rounds:
            return Revision(fresh_prompts=math.ceil(missing * self.oversample), drop_groups=drop)
        if not kept:
            what = "total reward" if self.reward is None else f"reward {self.reward!r}"
            raise ValueError(
                f"after {round_index + 1} rounds of dynamic sampling no group is informative: in each of the {len(groups)} "
                f"groups last looked at, the {what} differs by at most {self.min_spread} between samples; look at completions "
                "and scores (`mmrl reward test`), give prompts the model sometimes solves, or raise the sampling temperature"
            )
        return Revision(drop_groups=drop)

    def _spread(self, group: Group, rewards: Tensor) -> float:
        rows = zip(group.samples, (float(reward) for reward in rewards), strict=True)
        by_policy = [value for sample, value in rows if sample.role == "policy" and not math.isnan(value)]
        return max(by_policy) - min(by_policy) if by_policy else 0.0


@dataclass(frozen=True)
class Remembering(PromptByPrompt, ABC):
    """A planner that samples every prompt once, and can look up these requests in later rounds of the step.

    The groups that it sees have no media, these requests do.
    """

    requests: dict[int, Request] = field(default_factory=dict[int, Request], init=False, compare=False, repr=False)
    """Group -> its first request, of this step."""

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        self.requests.update({one.group_id: one for one in one_request_each(prompts, group_size, first_id, seed)})
        return super().first(prompts, group_size, first_id, seed)

    def again(self, group_id: int, count: int, draw: int, **changes: Any) -> Request:
        """More samples of a group. Requests of a group with different `draw` (1, 2, ...) have random numbers of their own."""
        first = self.requests[group_id]
        return replace(first, count=count, seed=seed_of(first.seed, draw), **changes)

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        """Calls `look` with the groups and their total rewards."""
        for dropped in self.requests.keys() - {group.id for group in groups}:
            del self.requests[dropped]
        totals = scores.total().double()
        rewards = {group.id: [float(total) for total in totals[group_ids == group.id]] for group in groups}
        return self.look(groups, rewards, round_index)

    @abstractmethod
    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Decide after a round. `rewards` are totals in the order of the samples that were not dropped, NaN where one failed."""

    def state_dict(self) -> State:
        """Nothing: requests are those of the step that is sampled."""
        return {}

    def load_state_dict(self, state: State) -> None:
        self.requests.clear()


@dataclass(frozen=True)
class Twice(Remembering, ABC):
    """A planner that samples a second time, after a beginning that is given or under another prompt."""

    max_rounds = 2
    samples_plainly = False


def right_ones(rewards: Iterable[float], success_at: float) -> list[bool]:
    """True for samples that reach the reward; False where the reward is missing."""
    return [not math.isnan(reward) and reward >= success_at for reward in rewards]
