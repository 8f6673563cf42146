"""Boxes and points as models write them, and back.

Reading is one pass of one regular expression over the answer. Its repetitions are possessive (`*+`), so that no text,
however strange, takes more than linear time; nothing is evaluated and nothing recurses.
"""

import json
import re
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

from mmrl.answers.block import answer_block, strip_fence
from mmrl.answers.boxes.box import Box, Corners, Space, as_written, extent
from mmrl.core.samples import MediaSize

DIGITS: dict[Space, int] = {"pixel": 0, "resized": 0, "norm1000": 0, "norm1": 3, "norm1000_yx": 0}
"""Decimals that families write in each space."""

_NUMBER = r"[-+]?(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?+"
_COMMA = r"(?:\s*+[,;]\s*+|\s++)"
_OPEN, _CLOSE = r"[\[(]\s*+", r"\s*+,?+\s*+[\])]"
_TWO = rf"({_NUMBER}){_COMMA}({_NUMBER})"
_FOUR = rf"{_TWO}{_COMMA}{_TWO}"
_PAIR = rf"{_OPEN}{_TWO}{_CLOSE}"
_NAMES = {"x1": 0, "y1": 1, "x2": 2, "y2": 3, "xmin": 0, "ymin": 1, "xmax": 2, "ymax": 3}
_TOKEN = re.compile(
    rf"(?P<four>{_OPEN}{_FOUR}{_CLOSE})"
    rf"|(?P<pairs>{_PAIR}\s*+,?+\s*+{_PAIR})"
    rf"|<(?:box|\|box_start\|)>\s*+(?P<bare>{_FOUR})\s*+<(?:/box|\|box_end\|)>"
    rf"|(?P<named>[\"']?\b(?P<name>{'|'.join(_NAMES)})[\"']?\s*+[:=]\s*+(?P<value>{_NUMBER}))"
    r"|[\"'](?:label|name|class|category)[\"']\s*+:\s*+(?P<label>\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+')"
    r"|<(?:ref|\|object_ref_start\|)>(?P<ref>[^<]*+)<"
    r"|(?P<open>\{)|(?P<close>\})"
)
_ONLY_FOUR = re.compile(_FOUR)
_ONLY_TWO = re.compile(_TWO)
_POINT = re.compile(_PAIR)
_PLACES = re.compile(
    rf"{_TOKEN.pattern}|(?P<point>{_PAIR})|(?:\A|(?<=<answer>))\s*+(?:(?P<only>{_FOUR})|(?P<two>{_TWO}))\s*+(?:\Z|(?=</answer>))"
)
"""The tokens of boxes, points, and answers that are bare numbers."""
_NOTHING = {"[]", "{}", "none", "null", "nothing", "no object", "no objects", "not found"}


@dataclass
class _Frame:
    """A `{...}` that is being read: its boxes wait for its label."""

    label: str | None = None
    boxes: list[int] = field(default_factory=list[int])
    """Places in the list of all boxes."""
    named: dict[int, float] = field(default_factory=dict[int, float])


def parse_boxes(text: str, space: Space) -> list[Box]:
    """Every box in the answer, in the order written; [] when there is none. Never raises.

    Reads the last complete `<answer>` block if there is one, else the text without its thought. Understands `bbox_2d` and
    other JSON or Python objects with labels, lists and tuples of four numbers, pairs of corners, `<box>` tags of InternVL
    and Qwen, and x1=.., y1=.., x2=.., y2=... Boxes without area are left out.
    """
    text = strip_fence(answer_block(text))
    only = _ONLY_FOUR.fullmatch(text)
    if only:
        return _boxes([(as_written(_floats(only, 1), space), None)], space)
    frames, found, labels = [_Frame()], list[Corners](), dict[int, str | None]()
    for token in _TOKEN.finditer(text):
        frame = frames[-1]
        corners = _corners(token, frame)
        if corners is not None:
            frame.boxes.append(len(found))
            labels[len(found)] = frames[0].label
            found.append(corners if token["named"] is not None else as_written(corners, space))
        elif token["label"] is not None:
            frame.label = _unquote(token["label"])
        elif token["ref"] is not None:
            frames[0].label = token["ref"].strip()
        elif token["open"]:
            frames.append(_Frame())
        elif token["close"] and len(frames) > 1:
            _close(frames.pop(), frames[-1], labels)
    while len(frames) > 1:
        _close(frames.pop(), frames[-1], labels)
    return _boxes([(corners, labels[i]) for i, corners in enumerate(found)], space)


def parse_points(text: str, space: Space = "pixel") -> list[tuple[float, float]]:
    """Every point in the answer, (x, y), as `[x, y]`, `(x, y)` or two bare numbers; [] when there is none. Never raises.

    In the space norm1000_yx the text holds y first.
    """
    text = strip_fence(answer_block(text))
    only = _ONLY_TWO.fullmatch(text)
    matches = [only] if only else _POINT.finditer(text)
    x, y = (2, 1) if space == "norm1000_yx" else (1, 2)
    points = [(float(match[x]), float(match[y])) for match in matches]
    return [point for point in points if isfinite(point[0]) and isfinite(point[1])]


def says_nothing(text: str) -> bool:
    """True if the answer states that there is no object: an empty list, None and the like."""
    return strip_fence(answer_block(text)).rstrip(".").lower() in _NOTHING


def format_box(box: Box, style: Literal["json", "list"] = "json", digits: int | None = None) -> str:
    """One box as Qwen2.5-VL writes it, or as plain numbers, rounded to the decimals usual in its space (or to `digits`)."""
    digits = DIGITS[box.space] if digits is None else digits
    numbers = ", ".join(_format_number(x, digits) for x in as_written(box.rounded(digits).corners, box.space))
    label = "" if box.label is None else f', "label": {json.dumps(box.label)}'
    return f"[{numbers}]" if style == "list" else f'{{"bbox_2d": [{numbers}]{label}}}'


def kept_apart(low: float, high: float, most: float, digits: int) -> tuple[float, float]:
    """Two rounded ends of a side, of which a thin one keeps one unit of the last decimal, and stays within its picture."""
    low = low if low < high else min(low, round(most - 10.0**-digits, digits))
    return low, max(high, round(low + 10.0**-digits, digits))


def convert_boxes(text: str, space: Space, target: Space, size: MediaSize | None) -> str:
    """A completion whose boxes and points are written in `space`, with them written in `target`; all other text stays.

    Raises ValueError for a box or point if a space counts pixels and the size is None.
    """
    digits = DIGITS[target]

    def scaled(x: float, axis: int) -> float:
        return round(x * extent(target, size)[axis] / extent(space, size)[axis], digits)

    def rewritten(token: re.Match[str]) -> str:
        if token["named"] is not None:
            first, values = _PLACES.groupindex["value"], [scaled(float(token["value"]), _NAMES[token["name"]] % 2)]
        else:
            kind = next((name for name in ("four", "pairs", "bare", "only", "point", "two") if token[name] is not None), None)
            if kind is None:
                return token[0]
            count, first = 2 if kind in ("point", "two") else 4, _PLACES.groupindex[kind] + 1
            # a point is the first corner of a box whose other one does not matter
            read = [float(token[first + i % count]) for i in range(4)]
            x1, y1, x2, y2 = (scaled(x, i % 2) for i, x in enumerate(as_written((read[0], read[1], read[2], read[3]), space)))
            if count == 4:
                right, bottom = extent(target, size)
                (x1, x2), (y1, y2) = kept_apart(x1, x2, right, digits), kept_apart(y1, y2, bottom, digits)
            values = [*as_written((x1, y1, x2, y2), target)][:count]
        said, start = token[0], token.start()
        for i in reversed(range(len(values))):
            at, end = (place - start for place in token.span(first + i))
            said = said[:at] + _format_number(values[i], digits) + said[end:]
        return said

    return text if space == target else _PLACES.sub(rewritten, text)


def _corners(token: re.Match[str], frame: _Frame) -> Corners | None:
    """The four numbers that this token completes, if it does."""
    for kind in ("four", "pairs", "bare"):
        if token[kind] is not None:
            return _floats(token, _TOKEN.groupindex[kind] + 1)
    if token["named"] is not None:
        frame.named[_NAMES[token["name"]]] = float(token["value"])
        if len(frame.named) == 4:
            corners = (frame.named[0], frame.named[1], frame.named[2], frame.named[3])
            frame.named.clear()
            return corners
    return None


def _close(frame: _Frame, outer: _Frame, labels: dict[int, str | None]) -> None:
    """Give an object's label to its boxes; boxes without one wait for the label of the object around."""
    if frame.label is not None:
        labels.update(dict.fromkeys(frame.boxes, frame.label))
        return
    # the shorter list moves: deep nesting around many boxes would take quadratic time otherwise
    few, many = sorted((frame.boxes, outer.boxes), key=len)
    many.extend(few)
    outer.boxes = many


def _boxes(found: list[tuple[Corners, str | None]], space: Space) -> list[Box]:
    boxes: list[Box] = []
    for (x1, y1, x2, y2), label in found:
        try:
            boxes.append(Box(x1, y1, x2, y2, space, label))
        except ValueError:  # no area, or a number too large to be finite
            continue
    return boxes


def _floats(match: re.Match[str], first_group: int) -> Corners:
    a, b, c, d = (float(x) for x in match.groups()[first_group - 1 : first_group + 3])
    return a, b, c, d


def _unquote(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return quoted[1:-1].replace("\\'", "'")


def _format_number(x: float, digits: int) -> str:
    text = f"{x:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
