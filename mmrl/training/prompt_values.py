"""Asks a policy's value head what it expects of prompts that are not drawn yet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmrl.core.hooks import PolicyHooks, with_hooks
from mmrl.core.protocols import Policy
from mmrl.core.ranks import Ranks
from mmrl.core.readings import VALUE
from mmrl.core.types import Prompt, Request

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
