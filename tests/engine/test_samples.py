"""vLLM's samples have the distribution of the policy's own: counts of tokens by the two, from the same prompts."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency

from mmrl.core.types import Prompt, Request
from mmrl.policies.text.policy import Sampling, TextPolicy
from tests.engine.servers import server_of
from tests.support.text_policies import ids_of

pytestmark = pytest.mark.engine
COUNT = 1024
"""Samples of a prompt, by each of the two."""
RARE = 10
"""Tokens that both wrote less often than so, together, count as one."""


def tokens_of(policy: TextPolicy, prompt: Prompt, temperature: float, seed: int) -> list[tuple[int, ...]]:
    """The first two tokens of every sample."""
    sampling = Sampling(temperature=temperature, max_new_tokens=2)
    (group,) = policy.rollout([Request(prompt, COUNT, group_id=0, seed=seed)], sampling).groups
    return [ids_of(sample) for sample in group.samples]


def probability(one: Sequence[int], other: Sequence[int]) -> float:
    """p of a chi-square test that both lists were drawn from one distribution."""
    counts = [Counter(one), Counter(other)]
    often = [token for token in sorted(set(one) | set(other)) if sum(count[token] for count in counts) >= RARE]
    rows = [[*(count[token] for token in often), sum(n for token, n in count.items() if token not in often)] for count in counts]
    table = np.array(rows)
    found: Any = chi2_contingency(table[:, table.sum(0) > 0])
    return float(found.pvalue)


@pytest.mark.parametrize("name", ["text", "picture"])
def test_samples_are_equal_in_distribution(name: str, join: Callable[..., TextPolicy], asked: Sequence[Prompt]):
    policy = join()
    with torch.no_grad():
        policy.net.model.get_output_embeddings().weight.mul_(2.0)  # far from even, so that a difference has where to show
    (prompt,) = (prompt for prompt in asked if prompt.id == name)
    there = tokens_of(policy, prompt, 1.0, seed=31)
    cold = tokens_of(policy, prompt, 0.7, seed=31)
    policy.generator = server_of(policy).local
    here = tokens_of(policy, prompt, 1.0, seed=32)
    for place in (0, 1):
        mine, theirs = ([tokens[place] for tokens in rows if len(tokens) > place] for rows in (here, there))
        assert probability(mine, theirs) > 1e-4
    assert probability([tokens[0] for tokens in here], [tokens[0] for tokens in cold]) < 1e-8, "another temperature would be seen"
