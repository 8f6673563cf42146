"""`messages`, as OpenAI, ms-swift and TRL (whose column is `prompt`) write conversations.

    {"messages": [{"role": "user", "content": "<image>Where is the cat?"}], "images": ["cat.jpg"], "solution": "[1, 2, 30, 40]"}
    {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]}], "images": ["a.png"],
     "answer": 3}
    {"messages": [{"role": "user", "content": "<image>Find <ref-object>"}, {"role": "assistant", "content": "<bbox>"}],
     "images": ["cat.jpg"], "objects": {"ref": ["the cat"], "bbox": [[1, 2, 30, 40]]}}

ms-swift's `objects` hold what `<ref-object>` and `<bbox>` stand for, in order; `bbox_type` is real (pixels) or norm1.
"""

from collections.abc import Iterator

from mmrl.data.layouts.base import ANSWERS, CLIPS, PICTURES, Look, RowLayout
from mmrl.data.layouts.turns import ANSWERS_BACK, ASKS, Turn, role_of, say_turns, text_and_media
from mmrl.data.readers import Cell, Row

REF, BBOX = "<ref-object>", "<bbox>"
COLUMNS = ("messages", "prompt")
SPACES = {"real": "pixel", "norm1": "norm1"}


def is_one(look: Look) -> bool:
    return any(_is_turns(look.example(name)) for name in COLUMNS)


def one(row: Row) -> Iterator[Row]:
    column = next((name for name in COLUMNS if row.values.get(name) is not None), None)
    found: Cell = None if column is None else row.values[column]
    if column is None or not isinstance(found, list) or not found:
        raise ValueError(f"column messages must be a list of turns, not {str(found)[:80]!r}")
    turns = [_turn(item) for item in found]
    completion = row.values.get("completion")
    if completion is not None:
        turns += [_turn(item) for item in completion] if isinstance(completion, list) else [Turn(ANSWERS_BACK, completion)]
    objects = row.values.get("objects")
    if objects is None:
        yield from say_turns(row, turns, (column, "completion"))
        return
    texts, values = _with_objects(turns, objects)
    for said in say_turns(row, texts, (column, "completion", "objects")):
        kept = {name: value for name, value in said.values.items() if name != "answer"}
        yield Row({**kept, **values}, said.source, said.number)


def _turn(item: Cell) -> Turn:
    if not isinstance(item, dict) or "role" not in item or item.get("content") is None:
        raise ValueError(f"a turn must be an object with role and content, not {str(item)[:80]}")
    text, pictures, clips = text_and_media(item["content"])
    return Turn(role_of(item["role"]), text, tuple(pictures), tuple(clips))


def _with_objects(turns: list[Turn], objects: Cell) -> tuple[list[Turn], dict[str, Cell]]:
    """The turns with their references spelled out, and the boxes that are the answer."""
    if not isinstance(objects, dict) or not isinstance(objects.get("bbox"), list) or not objects["bbox"]:
        raise ValueError(f"objects must hold a list bbox, not {str(objects)[:80]}")
    kind, named, boxes = objects.get("bbox_type") or "real", objects.get("ref") or [], objects["bbox"]
    if not isinstance(kind, str) or kind not in SPACES:
        raise ValueError(f"objects.bbox_type is {str(kind)[:80]!r}: only {', '.join(SPACES)} are understood")
    if not isinstance(named, list):
        raise ValueError(f"objects.ref must be a list of texts, not {str(named)[:80]}")
    refs = [*named]
    spelled: list[Turn] = []
    for turn in turns:
        text = str(turn.text)
        if turn.role == ASKS and BBOX in text:
            raise ValueError(f"the question speaks of a box ({BBOX}), and only answers may be boxes: write the box as words")
        if text.count(REF) > len(refs):
            raise ValueError(f"the turns hold more {REF} than objects.ref, which is {named}")
        if turn.role == ASKS:
            while REF in text:
                text = text.replace(REF, str(refs.pop(0)), 1)
        spelled.append(Turn(turn.role, text, turn.pictures, turn.clips))
    written = sum(str(turn.text).count(BBOX) for turn in turns if turn.role == ANSWERS_BACK)
    if written not in (0, len(boxes)):
        raise ValueError(f"the answer holds {written} {BBOX} for {len(boxes)} boxes in objects.bbox")
    # names that are left are those of the answer, one per box
    listed = (
        [{"bbox_2d": box, "label": str(ref)} for box, ref in zip(boxes, refs, strict=True)] if len(refs) == len(boxes) else boxes
    )
    return spelled, {"box": listed[0] if len(listed) == 1 else listed, "space": SPACES[kind]}


def _is_turns(found: Cell) -> bool:
    return isinstance(found, list) and bool(found) and isinstance(found[0], dict) and "role" in found[0]


MESSAGES = RowLayout(
    "messages",
    "conversations as OpenAI, ms-swift and TRL write them",
    (*COLUMNS, "completion", "objects", *PICTURES, *CLIPS, *ANSWERS, "id", "split"),
    is_one,
    one,
)
