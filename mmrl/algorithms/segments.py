"""Credit by segments of a completion, whose values are those of continuations from where they end (SPO, arXiv:2505.23564).

The formulas of its chain form. Not to be confused with single-stream SPO.
"""

from collections.abc import Sequence

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts

SURE = 0.9
"""The probability from which on an action is no decision."""


def cutpoints(probabilities: Sequence[float], interval: int = 5, sure: float = SURE) -> list[int]:
    """The last actions of the prefixes to value: those before every `interval`-th unsure action; -1 is the prompt alone."""
    return [i - 1 for i, probability in enumerate(probabilities) if probability < sure][::interval]


def segment_advantages(
    probabilities: Sequence[float], cuts: Sequence[int], values: Sequence[float], reward: float, sure: float = SURE
) -> list[float]:
    """Value at the end of an action's segment less that at its beginning; 0 before the first cut and for sure actions.

    Args:
        probabilities: of a completion's actions when they were sampled.
        cuts: rising, as from `cutpoints`.
        values: mean rewards of the continuations from each cut; the last segment ends at `reward`.
    """
    found = [0.0] * len(probabilities)
    if not cuts:
        return found
    ends, after = [*cuts[1:], len(probabilities) - 1], [*values[1:], reward]
    for begin, end, before, then in zip(cuts, ends, values, after, strict=True):
        for i in range(begin + 1, end + 1):
            found[i] = then - before if probabilities[i] < sure else 0.0
    return found


def probabilities_of(rollouts: Rollouts) -> list[list[float]]:
    """How likely each row's actions were when they were sampled, in order; NaN where the row was not sampled as it is trained.

    Raises ValueError if the policy notes no probabilities of actions that could be told apart by them.
    """
    noted = rollouts.recorded.get(ROLLOUT_LOGPROBS)
    if noted is None or any(sample.token_ids is None for _, sample in rollouts.samples()):
        raise ValueError(
            "segments of an answer end where the sampler noted an unlikely token, and this policy's samples have no tokens: "
            "take a text policy"
        )
    return [list(map(float, row[mask].double().exp())) for row, mask in zip(noted, rollouts.action_mask, strict=True)]
