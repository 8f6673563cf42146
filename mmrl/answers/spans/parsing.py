"""Parsers and writers of spans and points of time as models write them.

Reading is one pass of one regular expression over the answer, then one look at the text between neighbouring times. Its
repetitions are possessive (`*+`), so that no text, however strange, takes more than linear time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from mmrl.answers.block import answer_block, strip_fence
from mmrl.answers.spans.interval import MOST, Interval, Unit

_NUMBER = r"(?:[0-9]++(?:\.[0-9]++)?+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?+"
_FACTORS: dict[str, tuple[Unit, float]] = {
    "ms": ("seconds", 0.001),
    "millisecond": ("seconds", 0.001),
    "s": ("seconds", 1.0),
    "sec": ("seconds", 1.0),
    "second": ("seconds", 1.0),
    "m": ("seconds", 60.0),
    "min": ("seconds", 60.0),
    "minute": ("seconds", 60.0),
    "h": ("seconds", 3600.0),
    "hour": ("seconds", 3600.0),
    "frame": ("frames", 1.0),
    "%": ("norm", 0.01),
}
_TIME = re.compile(
    r"(?:(?P<sign>(?<![^\s(\[{<,:;=\"'])[-\u2212])|(?<![\w.]))"
    rf"(?:(?P<frame>frames?)\s*+(?:number\s*+|no\.?\s*+|\#)?+(?P<index>{_NUMBER})"
    r"|(?:(?P<hours>[0-9]++):)?(?P<minutes>[0-9]++):(?P<seconds>[0-9]{1,2}(?:\.[0-9]++|,[0-9]{3}(?![0-9]))?)(?![0-9:])"
    rf"|(?P<min>{_NUMBER})\s*+(?:minutes?|mins?|m)\s*+(?:and\s++)?+(?P<sec>{_NUMBER})\s*+(?:seconds?|secs?|s)(?![a-z])"
    rf"|(?P<number>{_NUMBER})(?:(?:st|nd|rd|th)(?=\s*+frame))?"
    r"(?:\s*+(?:(?P<unit>milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|h|frames?)(?![a-z0-9_])|(?P<percent>%)))?+)",
    re.IGNORECASE,
)
_GAP = 48
"""Longer texts between two times do not join them to a span."""
_JOINED = re.compile(
    r"[\s\"'>)\].]*+(?:[-\u2010-\u2015\u2212~\u2192]+>?|(?:to|till|until|through|up to)\b|\.\.+)[\s\"'<(\[]*+"
    r"(?:the|at|about|around)?\s*+",
    re.IGNORECASE,
)
_AND = re.compile(r"[\s\"'>)\]]*+and[\s\"'<(\[]*+", re.IGNORECASE)
_COMMA = re.compile(r"[\"'>\s]*+[,;]?[\"'<\s]*+")
_ENDS = re.compile(r"(?<![a-z])(?:end|stop|finish|until|till)", re.IGNORECASE)


@dataclass(frozen=True)
class _Time:
    """A time in the text. A bare number has no unit: the other end of its span, or the caller, says what it counts."""

    value: float
    unit: Unit | None
    factor: float
    start: int
    end: int


def parse_intervals(text: str, unit: Unit = "seconds") -> list[Interval]:
    """Every span in the answer, in the order written; [] when there is none. Never raises.

    Reads the last complete `<answer>` block if there is one, else the text without its thought. Understands "from 3.2s to 7s",
    "3.2 - 7.0", "between 3 and 7", [3.2, 7.0], objects with start and end, mm:ss, hh:mm:ss, "1m 20s", "frames 12 to 48", "10%
    to 20%" and several of them; of an answer with just two times, these. Spans without length are left out. Numbers without a
    unit count `unit`.
    """
    text = strip_fence(answer_block(text))
    times = list(_times(text))
    found: list[tuple[_Time, _Time]] = []
    taken = -1
    for i, (first, last) in enumerate(pairwise(times)):
        if i > taken and _are_ends(text, first, last):
            found.append((first, last))
            taken = i + 1
    if not found and len(times) == 2:
        found = [(times[0], times[1])]
    return [span for first, last in found if (span := _span(first, last, unit)) is not None]


def parse_times(text: str, unit: Unit = "seconds", wanted: Unit = "seconds") -> list[float]:
    """Every single time in the answer that is counted in `wanted`, such as the key frames a model names; never raises.

    Numbers without a unit count `unit`.
    """
    text = strip_fence(answer_block(text))
    found = [time.value * time.factor for time in _times(text) if (time.unit or unit) == wanted]
    return [time for time in found if 0 <= time <= MOST]


def format_interval(span: Interval, digits: int = 1) -> str:
    """A span as models write it, rounded to n decimals; a span that would vanish keeps one unit of the last decimal."""
    start = round(span.start, digits)
    end = max(round(span.end, digits), round(start + 10.0**-digits, digits))
    return f"{'frames ' if span.unit == 'frames' else ''}{start:.{digits}f} to {end:.{digits}f}"


def _times(text: str) -> Iterator[_Time]:
    for token in _TIME.finditer(text):
        sign = -1.0 if token["sign"] else 1.0
        value, unit, factor = _read(token)
        yield _Time(sign * value, unit, factor, token.start(), token.end())


def _read(token: re.Match[str]) -> tuple[float, Unit | None, float]:
    if token["index"] is not None:
        return float(token["index"]), "frames", 1.0
    if token["minutes"] is not None:
        hours, minutes = float(token["hours"] or 0), float(token["minutes"])
        seconds = float(token["seconds"].replace(",", "."))
        # 1:75 is no time of any clock
        fine = seconds < 60 and (token["hours"] is None or minutes < 60)
        return (3600 * hours + 60 * minutes + seconds if fine else float("nan")), "seconds", 1.0
    if token["min"] is not None:
        return 60 * float(token["min"]) + float(token["sec"]), "seconds", 1.0
    if token["percent"]:
        return float(token["number"]), *_FACTORS["%"]
    if token["unit"] is None:
        return float(token["number"]), None, 1.0
    word = token["unit"].lower()
    return float(token["number"]), *_FACTORS[word if word in _FACTORS else word.removesuffix("s")]


def _are_ends(text: str, first: _Time, last: _Time) -> bool:
    """True where the text between two neighbouring times makes them the two ends of one span."""
    if last.start - first.end > _GAP:
        return False
    gap = text[first.end : last.start]
    if _JOINED.fullmatch(gap) or (first.value < last.value and _ENDS.search(gap)):
        return True
    if _AND.fullmatch(gap):
        return text[max(first.start - 12, 0) : first.start].lower().rstrip(" \"'<([").endswith("between")
    opened = text[max(first.start - 4, 0) : first.start].rstrip(" \"'<")[-1:]
    closed = text[last.end : last.end + 4].lstrip(" \"'>,")[:1]
    return opened in ("[", "(") and closed in ("]", ")") and bool(_COMMA.fullmatch(gap))


def _span(first: _Time, last: _Time, unit: Unit) -> Interval | None:
    """The span between two times; None for different units, the wrong order, or ends that are no times."""
    counted = first.unit or last.unit or unit
    if first.unit is not None and last.unit is not None and first.unit != last.unit:
        return None
    # in "2 to 3 minutes" the unit counts for both numbers
    start = first.value * (last.factor if first.unit is None else first.factor)
    end = last.value * (first.factor if last.unit is None else last.factor)
    try:
        return Interval(start, end, counted)
    except ValueError:
        return None
