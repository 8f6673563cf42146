"""One GRPO step on a vision-language model, unrolled: everything the trainer does, without the trainer.

Run it: `python examples/one_step.py`. The model is a tiny Qwen3-VL with random weights, so the numbers mean nothing;
the steps are those of every run.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from mmrl import Group, Prompt
from mmrl.algorithms.presets import PRESETS
from mmrl.core.readings import OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Counts, Request
from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.text import Sampling, TextPolicy, TextPolicyConfig
from mmrl.training.rewards.runner import NamedReward, RewardRunner


def many_letters(group: Group) -> list[float]:
    """A reward sees the group: here the number of letters each sample wrote."""
    return [float(sum(letter.isalpha() for letter in sample.text or "")) for sample in group.samples]


def main() -> None:
    model = build("qwen3_vl", Path(tempfile.mkdtemp()) / "model")
    policy = TextPolicy(TextPolicyConfig(model=str(model), sampling=Sampling(max_new_tokens=12)))
    algorithm = replace(PRESETS["dr_grpo"], group_size=6).with_length(12)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    pictures = [Image.new("RGB", (64, 48), color) for color in ("red", "blue")]
    prompts = [Prompt(str(i), f"What is in picture {i}?", media=(picture,)) for i, picture in enumerate(pictures)]

    # 1. sample a group of completions per prompt
    rollouts = policy.rollout([Request(prompt, algorithm.group_size, group_id=i, seed=i) for i, prompt in enumerate(prompts)])
    # 2. score every group, and turn scores into advantages
    runner = RewardRunner([NamedReward("letters", many_letters)])
    tables = dict(zip([group.id for group in rollouts.groups], runner.score(rollouts.groups), strict=True))
    scores = runner.scores(rollouts, tables)
    credit = algorithm.advantage(scores, rollouts)
    # 3. the share of every token in the loss, from counts over the whole batch
    ones = torch.ones_like(credit.values)
    old = {OLD_LOGPROBS: rollouts.recorded[ROLLOUT_LOGPROBS]}
    batch = Batch(rollouts, credit.values, ones, ones, old)
    counts = Counts(rollouts=len(rollouts), actions=int(rollouts.action_mask.sum()), groups=len(prompts))
    share, importance = algorithm.loss_weights(batch, counts)
    # 4. evaluate again with gradient, and step; parts add up to the same gradient whatever the micro-batch
    for part in policy.split(replace(batch, share=share, importance=importance), micro_batch=400, scope=algorithm.scope):
        readings = policy.read(part.rollouts.trace, algorithm.live_reads, part.rollouts.action_mask)
        loss, metrics = algorithm.loss(part, readings)
        loss.backward()
        print(f"part of {len(part)} rollouts: loss {loss.item():+.4f}, measures {sorted(metrics)}")
    optimizer.step()
    print(f"mean reward {scores.total().mean():.3f}")


if __name__ == "__main__":
    main()
