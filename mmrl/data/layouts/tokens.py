"""Boxes in the tokens of models that are taught by them, in the answers of any layout.

    cat<loc_52><loc_332><loc_932><loc_774>                                                     Florence-2
    <loc0340><loc0053><loc0793><loc0954> cat                                                   PaliGemma
    <|object_ref_start|>the cat<|object_ref_end|><|box_start|>(52,332),(932,774)<|box_end|>    Qwen2-VL

Florence-2 counts 1,000 steps, of which it means the middles. PaliGemma writes y before x, in 1,024 steps.
"""

import re

from mmrl.data.layouts.base import Values

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
    for pattern, space, corners_of in _FORMS:
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
            boxes = (corners_of(numbers[i : i + 4]) for i in range(0, len(numbers), 4))
            found += [{"bbox": box, "label": label} if label else box for box in boxes]
        return {"box": found[0] if len(found) == 1 else found, "space": space}
    return None
