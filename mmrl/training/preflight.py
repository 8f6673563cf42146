"""Refuse a run that would train on nonsense."""

import torch
from torch import Tensor

from mmrl.core.types import Rollouts


class TrainingStoppedError(ValueError):
    """Training cannot go on; the message says at which step, why, and what to look at."""


def check_ratio(rollouts: Rollouts, sampled: Tensor, evaluated: Tensor, bound: float, mean_bound: float) -> float:
    """Largest |log ratio| before the first update; it must vanish, for the weights are still those that sampled.

    Raises:
        TrainingStoppedError: beyond `bound`, or beyond `mean_bound` on average; names the worst row's prompt.
    """
    known = rollouts.action_mask & sampled.isfinite()
    difference = torch.where(known, (evaluated - sampled).abs(), 0.0)
    worst = float(difference.max()) if difference.numel() else 0.0
    average = float(difference.sum() / known.sum().clamp(min=1))
    if not (worst <= bound and average <= mean_bound):
        row = int(difference.amax(1).argmax())
        group = next(group for group in rollouts.groups if group.id == int(rollouts.group_ids[row]))
        action = int(difference[row].argmax())
        raise TrainingStoppedError(
            f"before the first update the log-probability of action {action} of prompt {group.prompt.id!r} is "
            f"{float(evaluated[row, action]):.6f}, but the sampler noted {float(sampled[row, action]):.6f}: "
            f"|log ratio| is {worst:.2e} at most and {average:.2e} on average, beyond ratio_bound = {bound:g} or "
            f"mean_ratio_bound = {mean_bound:g}. Sampling and training disagree about the same weights (precision, attention "
            "implementation, pictures, positions or mask); training on would be wrong"
        )
    return worst
