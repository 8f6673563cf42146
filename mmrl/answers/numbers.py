"""Numbers as models write them, and how far they are from the true one."""

import re
from math import inf, isfinite
from typing import NamedTuple

from mmrl.answers.block import answer_block, strip_fence

_DIGITS = (
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})++|[0-9]{1,3}(?:[ \u00a0\u2009\u202f][0-9]{3})++)(?![0-9])|[0-9]++)(?:\.[0-9]++)?+|\.[0-9]++"
)
_ONE = rf"(?:{_DIGITS})(?:[eE][-+]?[0-9]++)?+"
_EXPONENT = r"\s*+\^\s*+\{?+(?P<%s>[-+\u2212]?[0-9]{1,3})\}?+"
_SCALES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "dozen": 12.0}
_UNITS = {
    "length": {"mm": 1e-3, "cm": 1e-2, "m": 1.0, "km": 1e3, "inch": 0.0254, "ft": 0.3048, "yd": 0.9144, "mi": 1609.344},
    "mass": {"mg": 1e-6, "g": 1e-3, "kg": 1.0, "lb": 0.45359237, "oz": 0.028349523125},
    "time": {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0},
    "volume": {"ml": 1e-3, "l": 1.0},
}
_WRITTEN = {
    "met(?:er|re)s?": "m", "centimet(?:er|re)s?": "cm", "millimet(?:er|re)s?": "mm", "kilomet(?:er|re)s?": "km", "inches": "inch",
    "foot|feet": "ft", "yards?": "yd", "miles?": "mi", "grams?": "g", "kilograms?": "kg", "pounds?|lbs": "lb", "ounces?": "oz",
    "seconds?|secs?": "s", "minutes?|mins": "min", "hours?|hrs?": "h", "days": "day", "lit(?:er|re)s?|L": "l", "mL": "ml",
}  # fmt: skip
_UNIT = "|".join([*_WRITTEN, *(unit for units in _UNITS.values() for unit in units)])
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)])[-+\u2212]\s*+)?(?:"
    r"(?:(?<![\w.])(?P<whole>[0-9]++)\s*+)?\\[dt]?frac\{(?P<above>-?[0-9.]{1,20})\}\{(?P<below>[0-9.]{1,20})\}"
    r"|(?<![\w.])(?P<mixed>[0-9]++)\s++(?P<over>[0-9]++)\s*+/\s*+(?P<under>[0-9]++)"
    rf"|(?<![\w.])(?P<first>{_ONE})(?:{_EXPONENT % 'power'})?+(?:\s*+/\s*+(?P<second>{_ONE}))?+)"
    rf"(?:\s*+(?:[x\u00d7*\u00b7]|\\times|\\cdot)\s*+10{_EXPONENT % 'ten'})?+"
    rf"(?:\s*+(?P<scale>{'|'.join(_SCALES)})s?+\b)?+"
    # what follows makes it a part of something else: 3,5 and 1.2.3 and 12:30 and 3x4 and 2/3/2024, 2 pi, 3\u00bd, 300K
    r"(?P<odd>[,.:^_xX](?=[0-9])|[\u00bc-\u00be\u2150-\u215e]|\s*+/\s*+(?=[0-9])|\s*+(?:\\pi\b|\u03c0)|[kKMB](?!\w))?+"
    rf"(?P<percent>\s*+(?:\\?%|percent\b))?+(?:\s*+(?P<unit>{_UNIT})(?![A-Za-z])(?P<dimension>\^?\{{?[23]\}}?|[\u00b2\u00b3])?+(?!\s*+/))?+"
)
_BELOW_20 = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_WORDS = {name: float(i) for i, name in enumerate(_BELOW_20)} | {name: 20.0 + 10 * i for i, name in enumerate(_TENS)}
_BELOW_100 = rf"(?:(?:{'|'.join(_TENS)})(?:[\s-](?:{'|'.join(_BELOW_20[1:10])})\b)?|(?:{'|'.join(_BELOW_20)})\b)"
_BELOW_1000 = rf"(?:(?:a\s|{_BELOW_100}\s)hundred\b(?:\s(?:and\s)?{_BELOW_100})?|{_BELOW_100})"
_LARGE = rf"(?:{'|'.join(name for name in _SCALES if name != 'hundred')})\b"
_WORD = re.compile(
    rf"\b(?:{_BELOW_1000}|a\s(?={_LARGE}))(?:\s?{_LARGE}(?:,?\s(?:and\s)?{_BELOW_1000})?){{0,4}}"
    r"(?P<part>[\s-](?:and\sa\s|a\s)?(?:half|halves|thirds?|quarters?|fourths?|fifths?|tenths?)\b)?",
    re.IGNORECASE,
)
_STATED = re.compile(r"(?:answer|total|result)\s*+(?:is|:|=)|=|\\boxed", re.IGNORECASE)
_JOINED = re.compile(
    r"(?:\s*+[A-Za-z%]{1,20}){0,2}?\s*+(?:[,;/+\-\u2013~*x\u00d7&]|\\times|\\cdot|or|and|to)?(?:\s+(?:or|and|maybe))?\s*",
    re.IGNORECASE,
)
_CLEANED = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{|\\[,;! ]|\*\*|~|\\left|\\right")
_RAISED = re.compile(r"(?<=[0-9])[\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_LOWERED = str.maketrans("\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "-0123456789")


class Number(NamedTuple):
    """A number of an answer: `Number(0.5, percent=True)` is 50 %, `Number(5.0, unit="cm")` 5 cm."""

    value: float
    percent: bool = False
    unit: str = ""
    """Empty where none is written that is known; cm2 and m3 for areas and volumes."""


def parse_number(text: str) -> Number | None:
    """The one number of an answer: `<answer>1,250.5 kg</answer>` -> 1250.5. None if there is none or it is not clear which.

    Reads the last complete `<answer>` block if there is one, else the text without its thought. Understands units, thousands
    (1,000 and 1 000), 1e3, 2 x 10^5, 1.5 million, 3/4, 3 1/2, LaTeX fractions, 50 %, and words. Of several different numbers the
    one after the last "=", "answer is" or LaTeX box counts, unless others are named beside it ("3 or 4"); without such a word
    none does, so that listing guesses does not pay. A part of something else is none: 3,5 and 12:30 and 2 pi are unclear.
    """
    text = _CLEANED.sub(" ", strip_fence(answer_block(text)))
    text = _RAISED.sub(lambda found: f"^{found[0].translate(_LOWERED)}", text)
    stated = list(_STATED.finditer(text))
    if stated:
        after = _numbers(text[stated[-1].end() :])
        if after:
            (_, stop, number), *others = after
            beside = bool(others) and _JOINED.fullmatch(text[stated[-1].end() :], stop, others[0][0])
            return None if beside and others[0][2] != number else number
    found = [number for _, _, number in _numbers(text)]
    clear = [number for number in found if number is not None]
    is_one = len(clear) == len(found) > 0 and len({number.value for number in clear}) == 1
    return max(clear, key=lambda number: len(number.unit)) if is_one and len({n.unit for n in clear} - {""}) <= 1 else None


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
    if number.unit and truth.unit and number.unit != truth.unit:
        (kind, factor), (other, own) = _size_of(number.unit), _size_of(truth.unit)
        return abs(number.value * factor / own - truth.value) if kind == other else inf
    found = abs(number.value - truth.value)
    if number.percent == truth.percent:
        return found
    # 50 % beside a truth of 50, or 50 beside a truth of 50 %: the sign is read as a unit
    other = 100 * number.value if number.percent else number.value / 100
    return min(found, abs(other - truth.value))


def _size_of(unit: str) -> tuple[str, float]:
    """The kind of a unit, and its size: `_size_of("cm2")` -> ("length2", 1e-4)."""
    name, power = unit.rstrip("23"), unit[-1] if unit[-1] in "23" else ""
    kind = next(kind for kind, units in _UNITS.items() if name in units)
    return kind + power, _UNITS[kind][name] ** int(power or 1)


def _numbers(text: str) -> list[tuple[int, int, Number | None]]:
    """Where each number begins and ends, and its value; None for one that is a part of something else."""
    found = [(match.start(), match.end(), _number(match)) for match in _NUMBER.finditer(text)]
    taken = {at for start, stop, _ in found for at in range(start, stop)}
    found += [(m.start(), m.end(), _worded(m)) for m in _WORD.finditer(text) if m.start() not in taken]
    return sorted(found, key=lambda one: one[0])


def _worded(match: re.Match[str]) -> Number | None:
    if match["part"]:
        return None
    total = current = 0.0
    for word in re.findall("[a-z]+", match[0].lower()):
        if word == "hundred":
            current = max(current, 1.0) * 100
        elif word in _SCALES:
            total, current = total + max(current, 1.0) * _SCALES[word], 0.0
        else:
            current += _WORDS.get(word, 0.0)
    return Number(total + current)


def _number(match: re.Match[str]) -> Number | None:
    before = match.string[max(0, match.start() - 8) : match.start()].rstrip()
    if match["odd"] or before.endswith(("\u221a", "sqrt{", "sqrt(")):
        return None
    try:
        value = _value(match)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    if match["sign"] and match["sign"][0] != "+":
        value = -value
    percent, unit = match["percent"] is not None, match["unit"] or ""
    unit = next((short for written, short in _WRITTEN.items() if re.fullmatch(written, unit)), unit)
    power = (match["dimension"] or "").translate(_LOWERED).strip("^{}")
    return Number(value / 100 if percent else value, percent, unit + power) if isfinite(value) else None


def _value(match: re.Match[str]) -> float:
    """The size of a match, its sign aside; ValueError for a mixed number whose fraction is 1 or more."""
    whole, above, below = match.group(*(("whole", "above", "below") if match["above"] else ("mixed", "over", "under")))
    if above:
        value = float(above) / float(below)
        if whole and not 0 <= value < 1:
            raise ValueError(whole)
        value += float(whole or 0)
    else:
        value = _plain(match["first"]) ** _exponent(match["power"], 1) / (_plain(match["second"]) if match["second"] else 1.0)
    return value * 10.0 ** _exponent(match["ten"], 0) * _SCALES.get(match["scale"] or "", 1.0)


def _plain(digits: str) -> float:
    return float(re.sub(r"[,\s]", "", digits))


def _exponent(written: str | None, default: int) -> int:
    return int(written.replace("\u2212", "-")) if written else default
