"""Letters of a multiple choice as models write them, and how well they fit the right ones."""

import re
from collections.abc import Sequence

from mmrl.answers.block import answer_block, strip_fence

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MARKED = r"[(\[{]?[A-Z][)\]}]?[.:]?"
_LIST = re.compile(rf"{_MARKED}(?:\s*+(?:[,;/&+]|and\b|or\b)?\s*+{_MARKED})*+")
_TOGETHER = re.compile(r"[A-Z]{2,26}")
_LABELLED = re.compile(r"[(\[]?([A-Z])(?:[)\]][.:]?|[.:])(?=\s|\Z)")
_STATED = re.compile(
    rf"(?:answers?|options?|choices?|correct)\s*+(?:is|are|:|=)?+:?+\s*+(?:options?|choices?|letters?)?+\s*+[*\"']*+"
    rf"(?P<list>{_MARKED}(?:\s*+(?:[,;/&]|and\b)\s*+{_MARKED})*+)(?![\w'])",
    re.IGNORECASE,
)


def parse_choices(text: str, options: Sequence[str] = ()) -> frozenset[str]:
    """The letters an answer names: `<answer>A, C</answer>` -> {A, C}; none when there are none. Never raises.

    Reads the last complete `<answer>` block if there is one, else the text without its thought. Understands "A", "(A)", "A.",
    "A, C", "A and C", "ACD" in ascending order, "B. a dog", one such line per letter, "the answer is B", and the wording of an
    option. A lone capital inside other words is no answer. Small letters are none, except in the wording of `options`, whose
    number bounds the letters.
    """
    text = strip_fence(answer_block(text)).strip(" \t\n*\"'`")
    known = LETTERS[: len(options)] if options else LETTERS
    found = _letters(text) or _by_wording(text, options)
    return frozenset(found) if set(found) <= set(known) else frozenset()


def choice_score(predicted: frozenset[str], truth: frozenset[str], soft: bool) -> float:
    """1 if the letters are the right ones, else 0; soft: |predicted| / |truth| while no letter is wrong (TW-GRPO)."""
    if not predicted or not predicted <= truth:
        return 0.0
    return len(predicted) / len(truth) if soft else float(predicted == truth)


def _letters(text: str) -> list[str]:
    if _TOGETHER.fullmatch(text) and list(text) == sorted(set(text)):
        return list(text)
    if _LIST.fullmatch(text) and not _TOGETHER.search(text):
        return re.findall("[A-Z]", text)
    pieces = [piece.strip() for piece in re.split(r"[\n;]", text) if piece.strip()]
    labelled = [_LABELLED.match(piece) for piece in pieces]
    if labelled and all(labelled):
        return [match[1] for match in labelled if match]
    stated = [match["list"] for match in _STATED.finditer(text) if match["list"].upper() == match["list"].replace("and", "AND")]
    return re.findall("[A-Z]", stated[-1].replace("and", "")) if stated else []


def _by_wording(text: str, options: Sequence[str]) -> list[str]:
    plain = _plain(text)
    return [letter for letter, option in zip(LETTERS, options, strict=False) if _plain(option) == plain][:1] if plain else []


def _plain(text: str) -> str:
    return " ".join(text.lower().rstrip(".!").split())
