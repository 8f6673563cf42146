"""Masks that look at whether a rollout came to its end."""

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from mmrl.core.types import Rollouts


@dataclass(frozen=True)
class DropTruncated:
    """No action of a rollout that was cut at max_new_tokens trains; its reward still counts in the baseline.

    TRL's `mask_truncated_completions`, ms-swift's `overlong_filter`, DAPO's overlong filtering (arXiv:2503.14476). A mean over
    rollouts here divides by those that are left, TRL's by all.
    """

    def __call__(self, rollouts: Rollouts) -> Bool[Tensor, "n t"]:
        complete = ~rollouts.truncated().to(rollouts.action_mask.device)
        return rollouts.action_mask & complete[:, None]
