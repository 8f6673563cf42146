"""`messages` and what ms-swift and TRL write into other columns: `completion`, and `objects`.

    {"messages": [{"role": "user", "content": "<image>Where is the cat?"}], "images": ["cat.jpg"], "solution": "[1, 2, 30, 40]"}
    {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]}], "images": ["a.png"],
     "answer": 3}
    {"messages": [{"role": "user", "content": "<image>Find <ref-object>"}, {"role": "assistant", "content": "<bbox>"}],
     "images": ["cat.jpg"], "objects": {"ref": ["the cat"], "bbox": [[1, 2, 30, 40]]}}
    {"chosen": [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Three."}], "rejected": [..]}

Conversations `chosen` and `rejected` without a prompt begin with it, the same one. ms-swift's `objects` hold what `<ref-object>`
and `<bbox>` stand for, in order; `bbox_type` is real (pixels) or norm1, and
`image_id` must name the first picture, 0.
"""

from collections.abc import Iterator

from mmrl.data.layouts.turns import ANSWERS_BACK, ASKS, Conversation, LayoutTurn, say_turns
from mmrl.data.readers import Cell, Row

PAIR = ("chosen", "rejected")
"""Two completions of a prompt, of which the first is preferred; of generators two pictures."""
REF, BBOX = "<ref-object>", "<bbox>"
MESSAGES = Conversation(("messages", "prompt"), "role", "content", in_parts=True)
OBJECTS = ("ref", "bbox", "bbox_type", "image_id")
"""The keys of `objects` that are read."""
SPACES = {"real": "pixel", "norm1": "norm1"}


def messages_row(row: Row) -> Iterator[Row]:
    if MESSAGES.column(row) is None and all(isinstance(row.values.get(name), list) for name in PAIR):
        row = _with_prompt(row)
    column, turns = MESSAGES.turns(row)
    completion = row.values.get("completion")
    if completion is not None:
        turns += (
            [MESSAGES.turn(item) for item in completion]
            if isinstance(completion, list)
            else [LayoutTurn(ANSWERS_BACK, completion)]
        )
    objects = row.values.get("objects")
    if objects is None:
        yield from say_turns(row, turns, (column, "completion"))
        return
    texts, values = _with_objects(turns, objects)
    for said in say_turns(row, texts, (column, "completion", "objects")):
        kept = {name: value for name, value in said.values.items() if name != "answer"}
        yield Row({**kept, **values}, said.source, said.number)


def _with_prompt(row: Row) -> Row:
    """The row with a prompt of its own: all turns but the last one of two conversations; ValueError where they differ."""
    (*asked, _), (*other, _) = (row.values[name] or [None] for name in PAIR)
    if asked != other or not asked:
        raise ValueError(
            f"{' and '.join(PAIR)} must begin with the same turns and end with a completion each: or write the prompt into a "
            "column of its own"
        )
    return Row({**row.values, "prompt": asked}, row.source, row.number)


def _with_objects(turns: list[LayoutTurn], objects: Cell) -> tuple[list[LayoutTurn], dict[str, Cell]]:
    """The turns with their references spelled out, and the boxes that are the answer."""
    if not isinstance(objects, dict) or not isinstance(objects.get("bbox"), list) or not objects["bbox"]:
        raise ValueError(f"objects must hold a list bbox, not {str(objects)[:80]}")
    _check_pictures(objects.get("image_id"))
    kind, named, boxes = objects.get("bbox_type") or "real", objects.get("ref") or [], objects["bbox"]
    if not isinstance(kind, str) or kind not in SPACES:
        raise ValueError(f"objects.bbox_type is {str(kind)[:80]!r}: only {', '.join(SPACES)} are understood")
    if not isinstance(named, list):
        raise ValueError(f"objects.ref must be a list of texts, not {str(named)[:80]}")
    refs = [*named]
    spelled: list[LayoutTurn] = []
    for turn in turns:
        text = str(turn.text)
        if turn.role == ASKS and BBOX in text:
            raise ValueError(f"the question speaks of a box ({BBOX}), and only answers may be boxes: write the box as words")
        if text.count(REF) > len(refs):
            raise ValueError(f"the turns hold more {REF} than objects.ref, which is {named}")
        if turn.role == ASKS:
            first, *others = text.split(REF)
            text = first + "".join(str(refs.pop(0)) + other for other in others)
        spelled.append(LayoutTurn(turn.role, text, turn.pictures, turn.clips))
    written = sum(str(turn.text).count(BBOX) for turn in turns if turn.role == ANSWERS_BACK)
    if written not in (0, len(boxes)):
        raise ValueError(f"the answer holds {written} {BBOX} for {len(boxes)} boxes in objects.bbox")
    # names that are left are those of the answer, one per box
    listed = (
        [{"bbox_2d": box, "label": str(ref)} for box, ref in zip(boxes, refs, strict=True)] if len(refs) == len(boxes) else boxes
    )
    return spelled, {"box": listed[0] if len(listed) == 1 else listed, "space": SPACES[kind]}


def _check_pictures(numbers: Cell) -> None:
    """Raise ValueError where a box lies in another picture than the first; `numbers` are as ms-swift writes them."""
    listed = numbers if isinstance(numbers, list) else [0 if numbers is None else numbers]
    later = next((number for number in listed if number != 0), None)
    if later is not None:
        raise ValueError(
            f"objects.image_id says that a box lies in picture {str(later)[:40]}, counted from 0, and boxes are compared in the "
            "first one: put that picture first, or write a row for each"
        )
