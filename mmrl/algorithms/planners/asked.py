"""The first requests of a step, kept for its later rounds: the groups a planner sees have no media, these requests do."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from mmrl.algorithms.planners.base import one_request_each, seed_of
from mmrl.core.hooks import PlannerHooks
from mmrl.core.protocols import State
from mmrl.core.types import Group, Prompt, Request, Revision, Scores


@dataclass
class Asked:
    """Group -> its first request, for the groups of the current step."""

    requests: dict[int, Request] = field(default_factory=dict[int, Request])

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        """One request per prompt, which is remembered; a step may call this several times, for fresh prompts."""
        requests = one_request_each(prompts, group_size, first_id, seed)
        self.requests.update({request.group_id: request for request in requests})
        return requests

    def forget_others(self, groups: Iterable[Group]) -> None:
        """Keep only the requests of this step's groups, except those it dropped."""
        known = {group.id for group in groups}
        for group_id in self.requests.keys() - known:
            del self.requests[group_id]

    def again(self, group_id: int, count: int, draw: int, **changes: Any) -> Request:
        """More samples of a group. Requests of a group with different `draw` (1, 2, ...) have random numbers of their own."""
        first = self.requests[group_id]
        return replace(first, count=count, seed=seed_of(first.seed, draw), **changes)


@dataclass(frozen=True)
class Remembering(PlannerHooks, ABC):
    """A planner that samples every prompt once, and can look up these requests in later rounds of the step."""

    asked: Asked = field(default_factory=Asked, init=False, compare=False, repr=False)
    """This step's first requests."""

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        return self.asked.first(prompts, group_size, first_id, seed)

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        """Calls `look` with the groups and their total rewards."""
        self.asked.forget_others(groups)
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
        self.asked.requests.clear()


def right_ones(rewards: Iterable[float], success_at: float) -> list[bool]:
    """True for samples that reach the reward; False where the reward is missing."""
    return [not math.isnan(reward) and reward >= success_at for reward in rewards]
