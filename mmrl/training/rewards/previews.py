"""Rewards of what the steps of a sample predicted on the way."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from mmrl.core.types import Group, Rollouts, Sample, Scores
from mmrl.training.rewards.runner import RewardRunner


def score_previews(rewards: RewardRunner, rollouts: Rollouts, scores: Scores) -> Rollouts:
    """The rollouts whose samples hold, in place of previews, the total reward after every step (`Sample.values`).

    After the last step it is the sample's own, found in `scores`; NaN where a sample has none.
    """
    own = dict(zip(pairs_of(rollouts), scores.total().tolist(), strict=True))
    found: dict[tuple[int, int], list[float]] = {pair: [] for pair in own}
    shown = [(group, as_predicted(group, step)) for group in rollouts.groups for step in range(most_previews(group))]
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


def pairs_of(rollouts: Rollouts) -> Iterator[tuple[int, int]]:
    """Group and sample of every row."""
    return zip(rollouts.group_ids.tolist(), rollouts.sample_ids.tolist(), strict=True)


def most_previews(group: Group) -> int:
    """The steps of which there are previews; all samples of a group have equally many."""
    return min(len(sample.previews) for sample in group.samples)


def as_predicted(group: Group, step: int) -> Group:
    """The group as if its samples were what a step predicted."""
    return replace(group, samples=tuple(preview_of(sample, step) for sample in group.samples), probes={})


def preview_of(sample: Sample, step: int) -> Sample:
    """The sample as a step predicted it."""
    shown = sample.previews[step]
    kind = next((name for name in ("video", "sound") if getattr(sample, name) is not None), "image")
    clip_with_sound = hasattr(shown, "_asdict")
    return replace(sample, previews=(), **(shown._asdict() if clip_with_sound else {kind: shown}))
