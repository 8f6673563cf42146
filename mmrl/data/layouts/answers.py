"""True answers of other people's rows: boxes in any of the usual spellings, or whatever else was written.

Models are taught boxes in tokens of their own:

    cat<loc_52><loc_332><loc_932><loc_774>                                                     Florence-2
    <loc0340><loc0053><loc0793><loc0954> cat                                                   PaliGemma
    <|object_ref_start|>the cat<|object_ref_end|><|box_start|>(52,332),(932,774)<|box_end|>    Qwen2-VL

Florence-2 counts 1,000 steps, of which it means the middles. PaliGemma writes y before x, in 1,024 steps.
"""

import json
import re

from mmrl.answers.block import answer_block, strip_fence
from mmrl.data.layouts.base import Values
from mmrl.data.readers import Cell

BOX_KEYS = ("bbox_2d", "bbox", "box")
_LONGEST = 100_000
"""Characters of an answer that may be JSON."""
_MOST = 1e300
"""Larger numbers are not coordinates; integers in JSON may have thousands of digits."""


def say_answer(answer: Cell, has_picture: bool) -> Values:
    """`box` for an answer that is a box or several, else `answer`: `("[1, 2, 30, 40]", True) -> {"box": [1, 2, 30, 40]}`.

    Four numbers are a box only where there is a picture. Boxes may be JSON in a text, in a code fence or answer tags, or tokens
    that models are taught, with their `space`.
    """
    found = _json(answer) if isinstance(answer, str) else answer
    if has_picture and isinstance(answer, str) and (boxes := token_boxes(answer_block(answer))) is not None:
        return boxes
    items = found if isinstance(found, list) and sides_of(found) is None else [found]
    if not has_picture or not items or any(sides_of(item) is None for item in items):
        return {"answer": answer_block(answer) if isinstance(answer, str) else answer}
    # a list with one box is how models are taught to write a single one
    return {"box": items[0] if len(items) == 1 else found}


def _json(text: str) -> Cell:
    inside = strip_fence(answer_block(text))
    if not inside.startswith(("[", "{")) or len(inside) > _LONGEST:
        return None
    try:
        return json.loads(inside)
    except (ValueError, RecursionError):
        return None


def sides_of(item: Cell) -> list[float] | None:
    """The four numbers of a box, or of an object that is one; None where it is written otherwise."""
    found = next((item[key] for key in BOX_KEYS if item.get(key) is not None), None) if isinstance(item, dict) else item
    if not isinstance(found, list | tuple) or len(found) != 4:
        return None
    sides = [float(x) for x in found if isinstance(x, int | float) and not isinstance(x, bool) and abs(x) <= _MOST]
    return sides if len(sides) == 4 else None


def four_numbers(found: Cell, name: str) -> list[float]:
    """The four numbers of a column; ValueError naming it for anything else."""
    if not isinstance(found, list | tuple) or len(found) != 4 or not all(isinstance(x, int | float) for x in found):
        raise ValueError(f"{name} must be four numbers, not {str(found)[:80]}")
    return [float(x) for x in found]


def corners_of(box: list[float]) -> list[float]:
    """Two corners of a box that is a corner, width and height."""
    x, y, width, height = box
    # 32-bit floats of files, rounded so that a box at the edge stays inside its picture
    return [round(side, 4) for side in (x, y, x + width, y + height)]


_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_FLORENCE = re.compile(r"(?P<label>[^<>]*+)(?P<at>(?:<loc_\d{1,3}>)++)")
_PALIGEMMA = re.compile(r"(?P<at>(?:<loc\d{4}>){4})(?:<seg\d{3}>)*+(?P<label>[^<>;]*+);?\s*+")
_QWEN = re.compile(
    r"(?:<\|object_ref_start\|>(?P<label>[^<>]*+)<\|object_ref_end\|>\s*+)?+"
    r"<\|box_start\|>(?P<at>[^<>]*+)<\|box_end\|>[\s,;.]*+"
)
_FORMS = (
    (_FLORENCE, "norm1000", lambda four: [x + 0.5 for x in four]),
    (_PALIGEMMA, "norm1", lambda four: [four[i] / 1024 for i in (1, 0, 3, 2)]),
    (_QWEN, "norm1000", list[float]),
)
"""Pieces of a text, their space, and the corners that four numbers mean."""


def token_boxes(text: str) -> Values | None:
    """`box` and `space` of an answer that is nothing but boxes in tokens; None for any other text."""
    for pattern, space, meant in _FORMS:
        pieces, label, found, at = list[re.Match[str]](), "", [], 0
        # a search for the pieces would take quadratic time
        while piece := pattern.match(text, at):
            pieces.append(piece)
            at = piece.end()
        if not pieces or at < len(text):
            continue
        for piece in pieces:
            label, numbers = (piece["label"] or "").strip() or label, [float(x) for x in _NUMBERS.findall(piece["at"])]
            if not numbers or len(numbers) % 4:
                raise ValueError(f"{piece[0][:80]!r} holds {len(numbers)} numbers, and a box has four")
            boxes = (meant(numbers[i : i + 4]) for i in range(0, len(numbers), 4))
            found += [{"bbox": box, "label": label} if label else box for box in boxes]
        return {"box": found[0] if len(found) == 1 else found, "space": space}
    return None
