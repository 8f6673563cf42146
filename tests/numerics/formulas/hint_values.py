"""What a hint is worth to the model that writes it (HiLL), which nothing trains yet."""

import math
from collections.abc import Sequence


def hint_value(rewards: Sequence[float], reliance: float, temperature: float = 0.3) -> float:
    """(1 - p^n - (1 - p)^n) exp(min(reliance, 0) / temperature): a hint that splits a group and that answers do not lean on.

    HiLL, arXiv:2604.00698. p is the share of right answers of n, reliance the mean over right ones of the difference between
    their mean log-probabilities without and with the hint.
    """
    n, p = len(rewards), sum(rewards) / len(rewards)
    return (1 - p**n - (1 - p) ** n) * leaning(reliance, temperature)


def hint_variance(rewards: Sequence[float], reliance: float, temperature: float = 0.3) -> float:
    """p (1 - p) exp(min(reliance, 0) / temperature): the other form of `hint_value` (HiLL, arXiv:2604.00698)."""
    p = sum(rewards) / len(rewards)
    return p * (1 - p) * leaning(reliance, temperature)


def leaning(reliance: float, temperature: float) -> float:
    """exp(min(reliance, 0) / temperature): 1 where answers are as likely without the hint, less where they lean on it."""
    return math.exp(min(reliance, 0.0) / temperature)
