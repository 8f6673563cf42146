"""Numbers as models write them, and how far they are from the true one."""

import re
from math import isfinite
from typing import NamedTuple

from mmrl.answers.block import answer_block, strip_fence

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?+|\.[0-9]++"
_ONE = rf"(?:{_DIGITS})(?:[eE][-+]?[0-9]++)?+"
_FRACTION = r"\\[dt]?frac\{(?P<above>-?[0-9.]{1,20})\}\{(?P<below>[0-9.]{1,20})\}"
_NUMBER = re.compile(
    rf"(?P<sign>(?<![\w.)])[-+\u2212]\s*+)?(?:{_FRACTION}|(?<![\w.])(?P<first>{_ONE})(?:\s*+/\s*+(?P<second>{_ONE}))?+)"
    r"(?P<percent>\s*+(?:\\?%|percent\b))?"
)
_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_WORDS = {name: float(value) for value, name in enumerate(_NAMES)}
_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b", re.IGNORECASE)
_STATED = re.compile(r"(?:answer|total|result)\s*+(?:is|:|=)|=|\\boxed", re.IGNORECASE)


class Number(NamedTuple):
    """A number of an answer: `Number(0.5, percent=True)` is 50 %."""

    value: float
    percent: bool = False


def parse_number(text: str) -> Number | None:
    """The one number of an answer: `<answer>1,250.5 kg</answer>` -> 1250.5. None if there is none or it is not clear which.

    Reads the last complete `<answer>` block if there is one, else the text without its thought. Understands units, thousands
    (1,000), 1e3, 3/4, LaTeX fractions, 50 %, and the words zero to twelve. Of several different numbers the one after the last
    "=", "answer is" or LaTeX box counts; without such a word none does, so that listing guesses does not pay.
    """
    text = strip_fence(answer_block(text))
    stated = list(_STATED.finditer(text))
    if stated:
        after = _numbers(text[stated[-1].end() :])
        if after:
            return after[0]
    different = list(dict.fromkeys(_numbers(text)))
    return different[0] if len(different) == 1 else None


def is_close(number: Number, truth: Number, relative: float = 0.0, absolute: float = 0.0) -> bool:
    """|x - y| <= max(absolute, relative |y|), up to rounding; a percent sign that only one side has may mean / 100 or nothing."""
    allowed = max(absolute, relative * abs(truth.value), 1e-9 * abs(truth.value), 1e-12)
    return _error(number, truth) <= allowed


def regression_score(number: Number, truth: Number) -> float:
    """1 - min(1, |x - y| / |y|); for a truth of 0: 1 if it is met, else 0."""
    if truth.value == 0:
        return float(number.value == 0)
    return 1 - min(1.0, _error(number, truth) / abs(truth.value))


def relative_accuracy(number: Number, truth: Number) -> float:
    """Mean over thresholds t = .5, .55, .. .95 of [|x - y| / |y| < 1 - t] (mean relative accuracy, arXiv:2412.14171)."""
    if truth.value == 0:
        return float(number.value == 0)
    error = _error(number, truth) / abs(truth.value)
    return sum(error < 1 - (50 + 5 * i) / 100 for i in range(10)) / 10


def _error(number: Number, truth: Number) -> float:
    found = abs(number.value - truth.value)
    if number.percent == truth.percent:
        return found
    # 50 % beside a truth of 50, or 50 beside a truth of 50 %: the sign is read as a unit
    other = 100 * number.value if number.percent else number.value / 100
    return min(found, abs(other - truth.value))


def _numbers(text: str) -> list[Number]:
    found = [(match.start(), number) for match in _NUMBER.finditer(text) if (number := _number(match)) is not None]
    found += [(match.start(), Number(_WORDS[match[0].lower()])) for match in _WORD.finditer(text)]
    return [number for _, number in sorted(found, key=lambda pair: pair[0])]


def _number(match: re.Match[str]) -> Number | None:
    first, second = (match["above"], match["below"]) if match["above"] else (match["first"], match["second"])
    try:
        value = float(first.replace(",", "")) / (float(second.replace(",", "")) if second else 1.0)
    except (ValueError, ZeroDivisionError):
        return None
    if match["sign"] and match["sign"][0] != "+":
        value = -value
    percent = match["percent"] is not None
    return Number(value / 100 if percent else value, percent) if isfinite(value) else None
