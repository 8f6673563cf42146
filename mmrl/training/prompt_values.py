"""Asks a policy's value head what it expects of prompts that are not drawn yet."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmrl.core.protocols import Policy
from mmrl.core.ranks import Ranks
from mmrl.core.readings import VALUE
from mmrl.core.types import Prompt, Request

AT_ONCE = 8
"""Prompts that one forward looks at."""


@dataclass(frozen=True)
class PromptValues:
    """The head's value at the end of each prompt, read in front of a text that nobody sampled; the same on all ranks."""

    policy: Policy
    ranks: Ranks

    def __call__(self, prompts: Sequence[Prompt]) -> list[float]:
        found: list[float] = []
        for start in range(0, len(prompts), AT_ONCE):
            some = enumerate(prompts[start : start + AT_ONCE])
            rows = self.policy.rollout([Request(prompt, 1, i, role="injected", written=".") for i, prompt in some])
            with torch.no_grad():
                values = self.policy.read(rows.trace, (VALUE,), rows.action_mask)[VALUE]
            found += values[rows.group_ids.argsort(), 0].tolist()
        return self.ranks.gather(found)[0]
