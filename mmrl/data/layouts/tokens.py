"""Boxes in the tokens of models that are taught by them, in the answers of any layout.

    cat<loc_52><loc_332><loc_932><loc_774>                                                     Florence-2
    <loc0340><loc0053><loc0793><loc0954> cat                                                   PaliGemma
    <|object_ref_start|>the cat<|object_ref_end|><|box_start|>(52,332),(932,774)<|box_end|>    Qwen2-VL

Florence-2 counts 1,000 steps, of which it means the middles. PaliGemma writes y before x, in 1,024 steps.
"""

import re
from collections.abc import Iterator

from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.data.layouts.base import Values
from mmrl.data.readers import Cell

_NUMBERS = re.compile(r"\d+")
_FLORENCE = re.compile(r"([^<>]*+)((?:<loc_\d{1,3}>)++)")
_PALIGEMMA = re.compile(r"((?:<loc\d{4}>){4})(?:<seg\d{3}>)*+([^<>;]*+);?\s*+")
_QWEN = re.compile(r"<\|(?:object_ref|box)_start\|>[^<>]*+<\|(?:object_ref|box)_end\|>[\s,;.]*+")


def token_boxes(text: str) -> Values | None:
    """`box` and `space` of an answer that is nothing but boxes in tokens; None for any other text."""
    for pattern, read, space in (
        (_FLORENCE, _florence, "norm1000"),
        (_PALIGEMMA, _paligemma, "norm1"),
        (_QWEN, _qwen, "norm1000"),
    ):
        pieces = list(pattern.finditer(text))
        if pieces and sum(len(piece[0]) for piece in pieces) == len(text):
            found = [{"bbox": box, "label": label} if label else box for label, box in read(text, pieces)]
            return {"box": found[0] if len(found) == 1 else found, "space": space}
    return None


def _florence(text: str, pieces: list[re.Match[str]]) -> Iterator[tuple[str, Cell]]:
    label = ""
    for piece in pieces:
        label, numbers = piece[1].strip() or label, [int(x) + 0.5 for x in _NUMBERS.findall(piece[2])]
        if len(numbers) % 4:
            raise ValueError(f"{piece[0][:80]!r} holds {len(numbers)} numbers, and a box has four")
        yield from ((label, numbers[i : i + 4]) for i in range(0, len(numbers), 4))


def _paligemma(text: str, pieces: list[re.Match[str]]) -> Iterator[tuple[str, Cell]]:
    for piece in pieces:
        y1, x1, y2, x2 = (int(x) / 1024 for x in _NUMBERS.findall(piece[1]))
        yield piece[2].strip(), [x1, y1, x2, y2]


def _qwen(text: str, pieces: list[re.Match[str]]) -> Iterator[tuple[str, Cell]]:
    boxes, num = parse_boxes(text, "norm1000"), text.count("<|box_start|>")
    if len(boxes) != num:
        raise ValueError(f"{text[:80]!r} holds {num} boxes, of which {len(boxes)} can be read")
    return ((box.label or "", list(box.corners)) for box in boxes)
