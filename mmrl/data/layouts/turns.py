"""Turns of a conversation as one question with its answer, whoever wrote them down.

`messages` may have other columns beside them, as ms-swift and TRL write `completion` and `objects`:

    {"messages": [{"role": "user", "content": "<image>Where is the cat?"}], "images": ["cat.jpg"], "solution": "[1, 2, 30, 40]"}
    {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]}], "images": ["a.png"],
     "answer": 3}
    {"messages": [{"role": "user", "content": "<image>Find <ref-object>"}, {"role": "assistant", "content": "<bbox>"}],
     "images": ["cat.jpg"], "objects": {"ref": ["the cat"], "bbox": [[1, 2, 30, 40]]}}
    {"chosen": [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Three."}], "rejected": [..]}

Conversations `chosen` and `rejected` without a prompt begin with it, the same one. ms-swift's `objects` hold what `<ref-object>`
and `<bbox>` stand for, in order; `bbox_type` is real (pixels) or norm1, and `image_id` must name the first picture, 0.
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmrl.core.samples import AUDIO, VIDEO
from mmrl.data.files.videos import WISHES
from mmrl.data.layouts.answers import say_answer
from mmrl.data.layouts.base import CLIPS, MEDIA, PICTURES, Values, answers_in, one_of, row_like
from mmrl.data.readers import Cell, Row, as_list

ASKS, ANSWERS_BACK, SETS = "user", "assistant", "system"
"""The three roles."""
PICTURE_SOURCES, CLIP_SOURCES = ("image", "image_url", "url", "path"), ("video", "video_url", "url", "path")
"""Keys of a part that name its file."""
PART = ("type", "text", *dict.fromkeys((*PICTURE_SOURCES, *CLIP_SOURCES)), *WISHES)
"""All keys of a part that are read."""
REFUSED = {
    "tool_calls": "write the call in the turn's content, as the model is to write it",
    **dict.fromkeys(
        [f"content.{key}_{what}" for key in ("min", "max", "total") for what in ("pixels", "frames")]
        + [f"content.resized_{side}" for side in ("height", "width")],
        "leave it out: one rule holds for all, policy.max_pixels, of clips policy.video",
    ),
}
"""Keys of a turn that would change what it means -> what to do instead."""
_DATA_URL = "data:image/"
_FILE_URL = "file://"
REMEDY = (
    "write one row per question, or let `mmrl data convert FILE OUT --turns each` do so; the data set dialogues keeps it whole, "
    "for a stage that teaches"
)


@dataclass(frozen=True)
class LayoutTurn:
    """One turn: `LayoutTurn("user", "<image>\\nWhere is the cat?", ("cat.jpg",))`."""

    role: str
    text: Cell
    """What was said; of an answer perhaps a list of numbers."""
    pictures: tuple[Cell, ...] = ()
    """Pictures that the turn itself names, in the order of their markers."""
    clips: tuple[Cell, ...] = ()


@dataclass(frozen=True)
class Conversation:
    """Turns in a column, each an object with a role and what was said: `Conversation(("conversations",), "from", "value")`."""

    columns: tuple[str, ...]
    role: str
    text: str
    in_parts: bool = False
    """May a turn list texts, pictures and clips?"""

    def __call__(self, row: Row) -> Iterator[Row]:
        column, turns = self.turns(row)
        yield from say_turns(row, turns, (column,))

    def column(self, row: Row) -> str | None:
        """The column that holds the turns."""
        return next((name for name in self.columns if row.values.get(name) is not None), None)

    def turns(self, row: Row) -> tuple[str, list[LayoutTurn]]:
        """The column that holds the turns, and the turns; ValueError for a row without any."""
        column = self.column(row) or self.columns[0]
        found: Cell = row.values.get(column)
        if not isinstance(found, list) or not found:
            raise ValueError(f"column {self.columns[0]} must be a list of turns, not {str(found)[:80]!r}")
        return column, [self.turn(item) for item in found]

    def turn(self, item: Cell) -> LayoutTurn:
        if not isinstance(item, dict) or self.role not in item or item.get(self.text) is None:
            raise ValueError(f"a turn must be an object with {self.role} and {self.text}, not {str(item)[:80]}")
        text, pictures, clips = text_and_media(item[self.text]) if self.in_parts else (item[self.text], [], [])
        name = item[self.role]
        role = ROLES.get(name.lower()) if isinstance(name, str) else None
        if role is None:
            raise ValueError(f"a turn is by {name!r}: only {', '.join(ROLES)} are understood")
        return LayoutTurn(role, text, tuple(pictures), tuple(clips))


def refused_of(columns: Sequence[str]) -> dict[str, str]:
    """The keys that are refused of the turns in these columns -> what to do instead."""
    return {f"{column}.{key}": why for column in columns for key, why in REFUSED.items()}


def say_turns(row: Row, turns: Sequence[LayoutTurn], used: tuple[str, ...]) -> Iterator[Row]:
    """The row's one question in our words, with its answer: that of a column, else the last turn.

    Raises ValueError for turns that are not one question, and for a part that is neither text, picture nor clip.
    """
    system = "\n".join(str(turn.text) for turn in turns if turn.role == SETS) or None
    spoken = [turn for turn in turns if turn.role != SETS]
    asked = [turn for turn in spoken if turn.role == ASKS]
    if not asked:
        raise ValueError(f"no turn is by the user (the roles are {', '.join(turn.role for turn in turns) or 'none'})")
    if len(asked) > 1:
        raise ValueError(f"the conversation has {len(asked)} questions, and a prompt is one: {REMEDY}")
    if spoken[0].role != ASKS or len(spoken) > 2:
        raise ValueError(
            f"the turns are {', '.join(turn.role for turn in spoken)}: write a question and at most one answer after it"
        )
    if not isinstance(asked[0].text, str) or not asked[0].text.strip():
        raise ValueError(f"the question is {str(asked[0].text)[:80]!r}: it must be a text that is not empty")
    answers = answers_in(row)
    answer = one_of(row, *answers)
    if answer is None and len(spoken) > 1:
        answer = spoken[1].text
    pictures, clips = _media(row, PICTURES, asked[0].pictures), _media(row, CLIPS, asked[0].clips)
    said = {"question": asked[0].text.strip(), "system": system, "image": pictures or None, "video": clips or None}
    said["audio"] = one_of(row, *AUDIO.columns)
    true = say_answer(answer, bool(pictures))
    whole = spoken[1].text if len(spoken) > 1 else None
    if isinstance(whole, str) and whole.strip() and whole != true.get("answer"):
        said["completion"] = whole.strip()
    yield row_like(row, (*used, *MEDIA, *answers), {**said, **true})


def each_question(row: Row, column: str) -> Iterator[Row]:
    """A row per question of a conversation with several, each with its own answer and the pictures of the whole row.

    A `<image>` marker of the first question goes to all, so that each asks about the pictures again.
    """
    turns: Cell = row.values.get(column)
    questions = [i for i, turn in enumerate(turns if isinstance(turns, list) else ()) if _role(turn) == ASKS]
    if len(questions) < 2 or not all(isinstance(turn, dict) for turn in turns):
        yield row
        return
    before = [turn for turn in turns[: questions[0]] if _role(turn) == SETS]
    name = row.values.get("id", f"{row.source}-{row.number}")
    for number, (start, end) in enumerate(zip(questions, [*questions[1:], len(turns)], strict=True)):
        values = {**row.values, column: [*before, *_with_markers(turns, questions[0], start, end)], "id": f"{name}-{number}"}
        yield Row(values, row.source, row.number)


def _with_markers(turns: Cell, first: int, start: int, end: int) -> list[Cell]:
    """The turns from start to end; where the first question shows media by markers or parts, this one does too."""
    chosen: list[Cell] = [dict(turn) for turn in turns[start:end]]
    if start == first:
        return chosen
    key = "value" if "value" in chosen[0] else "content"
    shown, text = turns[first].get(key), chosen[0].get(key)
    if isinstance(shown, list):
        own = text if isinstance(text, list) else [{"type": "text", "text": text}]
        if all(_type(part) == "text" for part in own):
            chosen[0][key] = [part for part in shown if _type(part) != "text"] + own
    elif isinstance(text, str) and isinstance(shown, str) and "<image>" not in text and "<video>" not in text:
        chosen[0][key] = "<image>" * shown.count("<image>") + "<video>" * shown.count("<video>") + text
    return chosen


def _role(turn: Cell) -> str | None:
    if not isinstance(turn, dict):
        return None
    return ROLES.get(str(turn.get("role", turn.get("from"))).lower())


def _type(part: Cell) -> str:
    return str(part.get("type", "text")) if isinstance(part, dict) else "text"


ROLES = {
    "user": ASKS,
    "human": ASKS,
    "assistant": ANSWERS_BACK,
    "gpt": ANSWERS_BACK,
    "model": ANSWERS_BACK,
    "system": SETS,
    "developer": SETS,
}
"""How files call the three roles, in small letters."""


def _media(row: Row, names: tuple[str, ...], own: tuple[Cell, ...]) -> list[Cell]:
    """The row's media: those of its column, or those that its turn names; ValueError where both do."""
    listed = as_list(one_of(row, *names))
    sources = [source for source in own if source is not None]
    if listed and sources:
        raise ValueError(f"both the turn and a column name {names[0]}s: leave one of them out")
    if sources and len(sources) < len(own):
        raise ValueError(f"{len(own) - len(sources)} of {len(own)} {names[0]}s in the turn have no source: name all or none")
    return [decode_source(source) for source in sources or listed]


def decode_source(source: Cell) -> Cell:
    """A path, without `file://`, or the bytes that a `data:image/..;base64,` text holds; anything else as it is."""
    if not isinstance(source, str):
        return source
    if source.startswith(_FILE_URL):
        return source.removeprefix(_FILE_URL)
    if not source.startswith(_DATA_URL):
        return source
    head, _, body = source.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError("it does not say base64")
        return {"bytes": base64.b64decode(body, validate=True), "path": None}
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"the picture {source[:40]!r}.. is not base64: {error}") from None


def text_and_media(content: Cell) -> tuple[Cell, list[Cell], list[Cell]]:
    """Text with markers, pictures and clips of a turn that is a text or a list of parts; a part without source gives None."""
    if not isinstance(content, list) or not any(isinstance(part, dict) and "type" in part for part in content):
        return content, [], []
    text, pictures, clips = list[str](), list[Cell](), list[Cell]()
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text"):
            text.append(str(part.get("text", "")))
        elif kind in ("image", "image_url", "input_image"):
            text.append("<image>")
            pictures.append(_source(part, PICTURE_SOURCES))
        elif kind in ("video", "video_url"):
            text.append("<video>")
            clips.append(_clip(part))
        else:
            raise ValueError(f"a part of a turn is {str(part)[:80]}: only text, image and video are understood")
    return "".join(text), pictures, clips


def _clip(part: Values) -> Cell:
    """A clip's source, with what is to be shown of it where the part says so; None without a source."""
    source, wishes = _source(part, CLIP_SOURCES), {name: part[name] for name in WISHES if part.get(name) is not None}
    if wishes and source is None:
        raise ValueError(f"a part of a turn has {', '.join(wishes)} and names no clip: write the clip's path into the part")
    return {VIDEO.name: decode_source(source), **wishes} if wishes else source


def _source(part: Values, names: tuple[str, ...]) -> Cell:
    found = next((part[name] for name in names if part.get(name) is not None), None)
    return found.get("url") if isinstance(found, dict) and "url" in found else found


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
