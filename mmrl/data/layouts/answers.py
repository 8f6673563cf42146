"""True answers of other people's rows: boxes in any of the usual spellings, or whatever else was written."""

import json

from mmrl.answers.block import answer_block, strip_fence
from mmrl.data.layouts.base import Values
from mmrl.data.layouts.tokens import token_boxes
from mmrl.data.readers import Cell

BOX_KEYS = ("bbox_2d", "bbox", "box")
_LONGEST = 100_000
"""Characters of an answer that may be JSON."""


def say_answer(answer: Cell, has_picture: bool) -> Values:
    """`box` for an answer that is a box or several, else `answer`: `("[1, 2, 30, 40]", True) -> {"box": [1, 2, 30, 40]}`.

    Four numbers are a box only where there is a picture. Boxes may be JSON in a text, in a code fence or answer tags, or tokens
    that models are taught, with their `space`.
    """
    found = _json(answer) if isinstance(answer, str) else answer
    if has_picture and isinstance(answer, str) and (boxes := token_boxes(answer_block(answer))) is not None:
        return boxes
    if not has_picture or not _is_boxes(found):
        return {"answer": answer_block(answer) if isinstance(answer, str) else answer}
    several = isinstance(found, list) and not _is_four(found)
    # a list with one box is how models are taught to write a single one
    return {"box": found[0] if several and len(found) == 1 else found}


def _json(text: str) -> Cell:
    inside = strip_fence(answer_block(text))
    if not inside.startswith(("[", "{")) or len(inside) > _LONGEST:
        return None
    try:
        return json.loads(inside)
    except (ValueError, RecursionError):
        return None


def _is_boxes(found: Cell) -> bool:
    if _is_four(found) or _is_object(found):
        return True
    return isinstance(found, list) and bool(found) and all(_is_four(item) or _is_object(item) for item in found)


def _is_four(found: Cell) -> bool:
    is_list = isinstance(found, list | tuple) and len(found) == 4
    return is_list and all(isinstance(x, int | float) and not isinstance(x, bool) for x in found)


def _is_object(found: Cell) -> bool:
    return isinstance(found, dict) and any(_is_four(found.get(key)) for key in BOX_KEYS)


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
