"""Closeness of a text to the true one: ROUGE, and the error rate of words or characters."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol, runtime_checkable

_TOKEN = re.compile(
    # scripts that write no blanks between words give one token per character
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0002ffff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)
ROUGE_KINDS = ("rouge1", "rouge2", "rougeL")


def rouge(text: str, truth: str, kinds: Sequence[str] = ROUGE_KINDS, stem: bool = True) -> dict[str, float]:
    """F-measures in [0, 1] of n-grams (rouge1, rouge2, ..) and of the longest common subsequence (rougeL).

    Raises ValueError if the package rouge-score is missing or a kind is unknown.
    """
    scores = _scorer(tuple(kinds), stem).score(truth, text)
    return {kind: float(scores[kind].fmeasure) for kind in kinds}


def error_rate(text: Sequence[str], truth: Sequence[str]) -> float:
    """(insertions + deletions + replacements that turn one sequence into the other) / length of the true one; may exceed 1.

    Of an empty truth: 0 if the other is empty too, else 1. Raises ValueError if the package rapidfuzz is missing.
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise ValueError(f"word error rates need the package rapidfuzz: pip install 'mmrl[rewards]' ({error})") from None
    return Levenshtein.distance(list(text), list(truth)) / len(truth) if truth else float(bool(text))


@runtime_checkable
class _Stemmer(Protocol):
    def stem(self, word: str) -> str: ...


class _Tokens:
    """Tokens as rouge-score cuts them; scripts other than ASCII, where it would see nothing, give words of their own letters."""

    def __init__(self, stemmer: _Stemmer | None) -> None:
        self._stemmer = stemmer

    def tokenize(self, text: str) -> list[str]:
        words: list[str] = _TOKEN.findall(text.lower())
        if self._stemmer is None:
            return words
        return [self._stemmer.stem(word) if len(word) > 3 and word.isascii() else word for word in words]


@cache
def _scorer(kinds: tuple[str, ...], stem: bool) -> Any:
    unknown = [kind for kind in kinds if not re.fullmatch(r"rouge[1-9]|rougeL", kind)]
    if unknown or not kinds:
        raise ValueError(f"ROUGE has no kinds {', '.join(unknown) or '(none given)'}: use rouge1, rouge2, .. or rougeL")
    try:
        from nltk.stem.porter import PorterStemmer  # pyright: ignore[reportMissingTypeStubs] - it ships no types
        from rouge_score.rouge_scorer import RougeScorer  # pyright: ignore[reportMissingTypeStubs] - it ships no types
    except ImportError as error:
        raise ValueError(f"ROUGE needs the package rouge-score: pip install 'mmrl[rewards]' ({error})") from None
    return RougeScorer(list(kinds), tokenizer=_Tokens(PorterStemmer() if stem else None))
