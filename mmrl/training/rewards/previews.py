"""Rewards of what the steps of a sample predicted on the way."""

from dataclasses import replace

import torch

from mmrl.core.types import Group, Rollouts, Sample, Scores
from mmrl.training.rewards.runner import RewardRunner


def score_previews(rewards: RewardRunner, rollouts: Rollouts, scores: Scores) -> Rollouts:
    """The rollouts whose samples hold, in place of previews, the total reward after every step (`Sample.values`).

    After the last step it is the sample's own, found in `scores`; NaN where a sample has none.
    """
    own = dict(zip(rollouts.pairs(), scores.total().tolist(), strict=True))
    found: dict[tuple[int, int], list[float]] = {pair: [] for pair in own}
    steps = [(group, step) for group in rollouts.groups for step in range(min(len(one.previews) for one in group.samples))]
    shown = [(group, replace(group, samples=previews_of(group, step), probes={})) for group, step in steps]
    tables = rewards.score([one for _, one in shown])
    for (group, _), table in zip(shown, tables, strict=True):
        totals = Scores(rewards.names, table.values, table.status, rewards.weights).total()
        for i, total in enumerate(totals.tolist()):
            if (group.id, i) in found:
                found[group.id, i].append(total)

    def fill(group: Group) -> Group:
        values = [(*found.get((group.id, i), ()), own.get((group.id, i), torch.nan)) for i in range(len(group.samples))]
        samples = [
            replace(one, previews=(), values=tuple(enumerate(each))) for one, each in zip(group.samples, values, strict=True)
        ]
        return replace(group, samples=tuple(samples))

    return replace(rollouts, groups=tuple(map(fill, rollouts.groups)))


def previews_of(group: Group, step: int) -> tuple[Sample, ...]:
    """A group's samples as a step predicted them."""
    return tuple(preview_of(sample, step) for sample in group.samples)


def preview_of(sample: Sample, step: int) -> Sample:
    """The sample as a step predicted it."""
    shown = sample.previews[step]
    kind = next((name for name in ("video", "sound") if getattr(sample, name) is not None), "image")
    clip_with_sound = hasattr(shown, "_asdict")
    return replace(sample, previews=(), **(shown._asdict() if clip_with_sound else {kind: shown}))
