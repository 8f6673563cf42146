"""A sampler that is not the policy, in expectation: three arms, rewards 1, 0.6 and 0, and a sampler that prefers the second.

Advantages are rewards less their mean under the sampler, as those of a group of samples are.
"""

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.core.readings import OLD_LOGPROBS, ROLLOUT_LOGPROBS
from tests.support.rows import counts_of, make_batch

REWARDS = torch.tensor([1.0, 0.6, 0.0], dtype=torch.float64)
BIAS = torch.tensor([-3.0, 3.0, 0.0], dtype=torch.float64)
LOST = torch.tensor([-2.5, 0.7, 0.0], dtype=torch.float64).log_softmax(0)
MASK = torch.ones(3, 1, dtype=torch.bool)


def reward_after(correction: RolloutCorrection | None, is_lost: bool, steps: int = 500, lr: float = 4.0) -> float:
    """The policy's expected reward after so many steps along expected gradients."""
    logits = torch.zeros(3, dtype=torch.float64)
    for _ in range(steps):
        policy = logits.log_softmax(0)
        sampler = LOST if is_lost else (logits + BIAS).log_softmax(0)
        advantages = REWARDS - (sampler.exp() * REWARDS).sum()
        pull = sampler.exp() * advantages * weights_of(correction, policy, sampler)
        logits = logits + lr * (pull - policy.exp() * pull.sum())
    return float((logits.softmax(0) * REWARDS).sum())


def weights_of(correction: RolloutCorrection | None, policy: Tensor, sampler: Tensor) -> Tensor:
    if correction is None:
        return torch.ones(3, dtype=torch.float64)
    frozen = {OLD_LOGPROBS: policy[:, None].float(), ROLLOUT_LOGPROBS: sampler[:, None].float()}
    batch = make_batch(MASK, torch.zeros(3), frozen)
    return correction(batch, counts_of(batch))[:, 0].double()


@pytest.mark.parametrize("is_lost", [False, True], ids=["bias", "weights lost"])
def test_without_a_correction_training_ends_at_the_wrong_arm(is_lost: bool):
    assert reward_after(None, is_lost) < 0.7


def test_truncated_weights_mend_a_bias_and_masks_do_not():
    assert reward_after(RolloutCorrection(mode="token_truncate", high=3.0), is_lost=False) > 0.95
    assert reward_after(RolloutCorrection(mode="token_mask", high=3.0), is_lost=False) < 0.7


def test_no_truncation_mends_lost_weights():
    """So they are refused by their version."""
    assert reward_after(RolloutCorrection(mode="token_truncate", high=3.0), is_lost=True) < 0.8
