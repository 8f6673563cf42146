"""Prompts that cannot be shown are counted, skipped up to the limit, and replaced; what a value head expects of those to come."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from mmrl.core.hooks import PolicyHooks, with_hooks
from mmrl.core.protocols import Policy, PromptSampler
from mmrl.core.ranks import Ranks
from mmrl.core.readings import VALUE
from mmrl.core.types import Prompt, Request
from mmrl.training.stopping import TrainingStoppedError

log = logging.getLogger("mmrl")
MOST_DRAWS = 1000
"""Attempts to draw one step's prompts, in case none of the data can be read."""


@dataclass
class Drawing:
    """Draws prompts that the policy can read; the same ones on all ranks."""

    sampler: PromptSampler
    policy: Policy
    ranks: Ranks
    limit: int
    """Prompts that may be skipped in a run."""
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """Prompt id -> what was wrong with it."""

    def __call__(self, count: int) -> list[Prompt]:
        """So many readable prompts; TrainingStoppedError, with the last one, where more than the limit cannot be read."""
        found: list[Prompt] = []
        for _ in range(MOST_DRAWS):
            if len(found) == count:
                return found
            drawn = list(self.sampler.draw(count - len(found)))
            wrong = self.wrong(drawn)
            self.note({drawn[place].id: error for place, error in wrong.items()})
            found += [prompt for place, prompt in enumerate(drawn) if place not in wrong]
        raise TrainingStoppedError(f"no readable prompt in {MOST_DRAWS} draws; the data set holds hardly any: {self.latest}")

    @property
    def latest(self) -> str:
        return next(reversed(self.skipped.values()), "nothing was skipped")

    def wrong(self, drawn: list[Prompt]) -> Mapping[int, str]:
        """Place -> what is wrong, of the prompts of all ranks; every rank looks at its part."""
        start, stop = (len(drawn) * rank // self.ranks.world for rank in (self.ranks.rank, self.ranks.rank + 1))
        known = {place: self.skipped[prompt.id] for place, prompt in enumerate(drawn) if prompt.id in self.skipped}
        fresh = [place for place in range(start, stop) if place not in known]
        mine = with_hooks(self.policy, PolicyHooks).unreadable([drawn[place] for place in fresh])
        found = self.ranks.gather({fresh[i]: error for i, error in mine.items()})
        return known | {place: error for part in found for place, error in sorted(part.items())}

    def note(self, wrong: Mapping[str, str]) -> None:
        """Count and say what is skipped for the first time."""
        for prompt_id, error in wrong.items():
            if prompt_id in self.skipped:
                continue
            self.skipped[prompt_id] = error
            if len(self.skipped) > self.limit:
                raise TrainingStoppedError(
                    f"{len(self.skipped)} prompts could not be read, and max_skipped is {self.limit}; the last: {error}. "
                    "Mend the data (`mmrl data check` lists every bad row), or raise max_skipped"
                )
            log.warning("skipped %d of at most %d prompts that cannot be read: %s", len(self.skipped), self.limit, error)


AT_ONCE = 8
"""Prompts that one forward looks at."""


@dataclass(frozen=True)
class PromptValues:
    """The head's value at the end of each prompt, read in front of a text that nobody sampled; the same on all ranks.

    NaN where a prompt cannot be shown.
    """

    policy: Policy
    ranks: Ranks

    def __call__(self, prompts: Sequence[Prompt]) -> list[float]:
        found: list[float] = []
        for start in range(0, len(prompts), AT_ONCE):
            some = prompts[start : start + AT_ONCE]
            wrong, values = with_hooks(self.policy, PolicyHooks).unreadable(some), [math.nan] * len(some)
            asked = [Request(one, 1, i, role="injected", written=".") for i, one in enumerate(some) if i not in wrong]
            if asked:
                rows = self.policy.rollout(asked)
                with torch.no_grad():
                    read = self.policy.read(rows.trace, (VALUE,), rows.action_mask)[VALUE]
                for i, value in zip(rows.group_ids.tolist(), read[:, 0].tolist(), strict=True):
                    values[i] = value
            found += values
        return self.ranks.gather(found)[0]
