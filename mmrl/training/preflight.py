"""Refuse a run that would train on nonsense, and say early when one goes wrong."""

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from mmrl.core.types import Rollouts

log = logging.getLogger("mmrl")


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


class Health:
    """Plain-language warnings about a run, each said once until it is over."""

    def __init__(self, max_unparsed: float = 0.2) -> None:
        self.max_unparsed = max_unparsed
        self.active: set[str] = set()

    def look(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """The sentences that became true with this step."""
        found = dict(self._findings(metrics))
        new = [f"step {step}: {sentence}" for key, sentence in found.items() if key not in self.active]
        self.active = set(found)
        for sentence in new:
            log.warning(sentence)
        return new

    def _findings(self, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
        findings: list[tuple[str, str]] = []
        if metrics.get("reward/no_spread", 0.0) >= 1.0:
            findings.append(
                (
                    "no_spread",
                    "every group's samples got the same reward, so there is nothing to learn from: raise the temperature "
                    "(of pictures, the schedule's level), choose prompts of middling difficulty, or check the reward "
                    "with its own ground truth",
                )
            )
        for name, value in metrics.items():
            if name.endswith("/unparsed") and value > self.max_unparsed:
                findings.append(
                    (
                        name,
                        f"{value:.0%} of the completions could not be parsed by {name.split('/')[1]!r} and scored 0: look at the "
                        "samples; the prompt's answer format and the reward's may differ",
                    )
                )
        if metrics.get("rollout/truncated", 0.0) > 0.5:
            findings.append(
                (
                    "truncated",
                    f"{metrics['rollout/truncated']:.0%} of the completions never stopped and were cut: raise "
                    "policy.sampling.max_new_tokens, or check that the chat template teaches the stop token",
                )
            )
        return findings
