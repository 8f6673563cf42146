"""Formulas of prompts that ask the same in several ways, which nothing runs yet: it stands here with their checks."""

from collections import Counter
from collections.abc import Sequence


def token_f1(one: str, other: str) -> float:
    """2 shared / (words of one + words of the other), each word as often as both have it."""
    first, second = one.split(), other.split()
    shared = sum((Counter(first) & Counter(second)).values())
    return 2 * shared / (len(first) + len(second)) if shared else 0.0


def agreement(answers: Sequence[Sequence[str]]) -> list[list[float]]:
    """r_ij = mean similarity of answer j to paraphrase i with all answers to the other paraphrases (arXiv:2510.04392).

    PS-GRPO, from its abstract; the similarity, F1 of words, is ours. It rewards nonsense that is consistent.
    """
    others = [[text for k, texts in enumerate(answers) if k != i for text in texts] for i in range(len(answers))]
    if any(not texts for texts in others):
        raise ValueError("agreement compares the answers to at least two paraphrases: give every set two that were answered")
    return [
        [sum(token_f1(text, other) for other in others[i]) / len(others[i]) for text in texts] for i, texts in enumerate(answers)
    ]
