"""Your own advantage: a frozen dataclass with `__call__`. Run it with `python examples/my_advantage.py`.

In a config: `[algorithm.advantage]` with `use = "examples/my_advantage.py:RelativeToMean"`.
"""

from dataclasses import dataclass, replace

import torch

from mmrl import presets
from mmrl.core.types import Credit, Group, Prompt, Rollouts, Sample, Scores, Status


@dataclass(frozen=True)
class RelativeToMean:
    """A = (r - group mean) / (group mean + eps): rare successes on hard prompts count most (rewards must be >= 0)."""

    eps: float = 0.05

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        total = scores.total()  # NaN where nothing answered, or a reward failed: such rows must not be kept
        keep = ~total.isnan()
        values = torch.zeros_like(total)
        for group_id in rollouts.group_ids.unique():
            rows = keep & (rollouts.group_ids == group_id)
            mean = total[rows].mean()
            values[rows] = (total[rows] - mean) / (mean + self.eps)
        return Credit(values[:, None] * rollouts.action_mask, keep)


@dataclass(frozen=True)
class NoTrace:
    """An advantage never looks at what the policy recorded."""

    def take(self, rows: torch.Tensor, steps: slice) -> "NoTrace":
        return self


def main() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, torch.nan])  # a hard prompt, then an easy one with a failed reward
    status = torch.where(rewards.isnan(), int(Status.FAILED), int(Status.OK))
    scores = Scores(("accuracy",), rewards[:, None], status[:, None], weights=torch.tensor([1.0]))
    groups = tuple(Group(i, Prompt(name), (Sample(),) * 4) for i, name in enumerate(("hard", "easy")))
    rollouts = Rollouts(
        groups,
        group_ids=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
        sample_ids=torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]),
        action_mask=torch.ones(8, 3, dtype=torch.bool),
        trace=NoTrace(),
    )
    grpo = presets["grpo"]
    for algorithm in (grpo, replace(grpo, advantage=RelativeToMean())):
        credit = algorithm.advantage(scores, rollouts)
        print(
            type(algorithm.advantage).__name__, [round(x, 2) for x in credit.values[:, 0].tolist()], "kept", credit.keep.tolist()
        )


if __name__ == "__main__":
    main()
