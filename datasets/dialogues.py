"""Conversations that a model is taught turn by turn: LLaVA's and ShareGPT's `conversations`, OpenAI's and ms-swift's `messages`.

    {"image": "cat.jpg", "conversations": [{"from": "human", "value": "<image>What is it?"}, {"from": "gpt", "value": "A cat."},
     {"from": "human", "value": "Where?"}, {"from": "gpt", "value": "On the left."}]}
    {"images": ["cat.jpg", "part.png"], "messages": [{"role": "user", "content": "<image>How old is it?"},
     {"role": "assistant", "content": "<tool_call>..</tool_call>"}, {"role": "tool", "content": "<image>"},
     {"role": "assistant", "content": "A year."}]}

The first question is the prompt, and what follows is the column `completion`, for a stage of the kind `sft`: the model's turns
are taught, what users and tools say in between is shown. Pictures stand at their <image> markers, in the order of the row's list,
or first without any; clips only in the first question. System messages are refused, for the policy has its own.
Rows may be JSONL, JSON, parquet, tar files or data of Hugging Face. Licence: that of your data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrl import Prompt
from mmrl.core.samples import IMAGE, VIDEO
from mmrl.data.files.paths import cell_below
from mmrl.data.files.pictures import open_picture, picture_size
from mmrl.data.files.videos import check_video, video_of
from mmrl.data.layouts.base import CLIPS, PICTURES, one_of, refuse_keys
from mmrl.data.layouts.files import prompts_in
from mmrl.data.layouts.turns import ANSWERS_BACK, ASKS, BBOX, REF, ROLES, SETS, decode_source, refused_of, text_and_media
from mmrl.data.readers import Cell, Row, as_list
from mmrl.data.validate import FILE_ROW
from mmrl.runtime.ranges import Count

__all__ = ["load"]
COLUMNS = ("messages", "conversations", "conversation")
TOOLS = ("tool", "function", "observation", "tool_response", "ipython")
"""How files call what a tool answers."""
ANSWERED = "tool"


@dataclass
class Shelf:
    """The pictures and clips of a row that no turn has shown yet."""

    root: Path
    anywhere: bool
    pictures: list[Cell]
    clips: list[Cell]

    def turn(self, item: Cell, number: int) -> tuple[str, str, tuple[object, ...]]:
        """Who speaks, the text with its markers, and the media at them."""
        role, content = _role_and_content(item)
        text, pictures, clips = text_and_media(content)
        if not isinstance(text, str) or not (text.strip() or role == ANSWERED):
            raise ValueError(f"turn {number + 1}, of {role}, is {str(text)[:80]!r}: it must be a text that is not empty")
        if REF in text or BBOX in text:
            raise ValueError(
                f"turn {number + 1}, of {role}, has {REF} or {BBOX}, and these words would be taught in place of boxes: take the "
                "data set grounding_jsonl, with written = 'truth' in the stage"
            )
        own, moving = [one for one in pictures if one is not None], [one for one in clips if one is not None]
        if role == ANSWERS_BACK and (IMAGE.marker in text or VIDEO.marker in text):
            raise ValueError(
                f"turn {number + 1}, of {role}, shows a picture or clip, which this model does not write: leave it out"
            )
        if number and VIDEO.marker in text:
            raise ValueError(f"turn {number + 1}, of {role}, shows a clip: clips may stand in the first question alone")
        media: list[object] = []
        for piece in text.split("<")[1:]:
            if f"<{piece}".startswith(IMAGE.marker):
                media.append(self.picture(_next(own or self.pictures, IMAGE.noun)))
            elif f"<{piece}".startswith(VIDEO.marker):
                media.append(self.clip(_next(moving or self.clips, VIDEO.noun)))
        if not number and VIDEO.marker not in text:
            media += [self.clip(self.clips.pop(0)) for _ in range(len(self.clips))]
        return role, text.strip(), tuple(media)

    def picture(self, cell: Cell) -> object:
        picture_size(shown := cell_below(self.root, decode_source(cell), self.anywhere))
        return shown if isinstance(shown, str) else open_picture(shown)

    def clip(self, cell: Cell) -> object:
        check_video(video := video_of(self.root, cell, self.anywhere), decode=False)
        return video


def dialogue(row: Row, root: Path, anywhere: bool) -> Prompt:
    """The row, whose relative paths start at the root; ValueError for turns that are no dialogue, or media that do not fit."""
    refuse_keys(row.values, refused_of(COLUMNS))
    shelf = Shelf(root, anywhere, *(list(as_list(one_of(row, *names))) for names in (PICTURES, CLIPS)))
    said = [shelf.turn(item, number) for number, item in enumerate(_turns(row))]
    roles = [role for role, _, _ in said]
    if roles[0] != ASKS or len(roles) % 2 or set(roles[1::2]) != {ANSWERS_BACK} or ANSWERS_BACK in roles[::2]:
        raise ValueError(
            f"the turns are by {', '.join(roles)[:200]}: {ASKS} begins, {ANSWERS_BACK} answers every turn of others and has the "
            "last word"
        )
    (_, question, shown), *rest = said
    if shelf.pictures and not any(IMAGE.marker in text for _, text, _ in said):
        shown, shelf.pictures = (*map(shelf.picture, shelf.pictures), *shown), []
    if shelf.pictures or shelf.clips:
        left = f"{len(shelf.pictures)} pictures and {len(shelf.clips)} clips"
        raise ValueError(f"the row lists {left} that no turn shows: write a marker {IMAGE.marker} or {VIDEO.marker} for each")
    later = [{"role": role, "content": text, "images": media} for role, text, media in rest]
    columns = {"completion": later[0]["content"] if len(later) == 1 else later, FILE_ROW: row.place}
    return Prompt(str(row.values.get("id", row.number)), question, shown, columns=columns)


def _turns(row: Row) -> list[Cell]:
    """The row's turns, with those of a column `completion` behind them."""
    column = next((name for name in COLUMNS if row.values.get(name) is not None), COLUMNS[0])
    found, more = row.values.get(column), row.values.get("completion")
    if not isinstance(found, list) or not found:
        there = ", ".join(map(str, row.values)) or "no columns"
        raise ValueError(f"column {column} must be a list of turns, not {str(found)[:80]!r} (the row has {there})")
    return [*found, *(more if isinstance(more, list) else [])]


def _role_and_content(item: Cell) -> tuple[str, Cell]:
    if not isinstance(item, dict):
        raise ValueError(f"a turn must be an object with role and content, or from and value, not {str(item)[:80]}")
    name, content = item.get("role", item.get("from")), item.get("content", item.get("value"))
    role = ANSWERED if str(name).lower() in TOOLS else ROLES.get(str(name).lower())
    if role is None:
        raise ValueError(f"a turn is by {name!r}: only {', '.join((*ROLES, *TOOLS))} are understood")
    if role == SETS:
        raise ValueError("a turn is a system message, of which a run has one for all: set policy.system_prompt, and leave it out")
    return role, content


def _next(shelf: list[Cell], noun: str) -> Cell:
    if not shelf:
        raise ValueError(f"the turns show more {noun}s than the row lists: list one for each marker")
    return shelf.pop(0)


def load(
    path: str | Path, split: str | None = None, image_root: str | Path | None = None, size: Count | None = None
) -> Sequence[Prompt]:
    """The file's dialogues, in its order.

    Args:
        path: a JSONL, JSON, parquet or tar file; or a folder: with `<split>.jsonl`, of Hugging Face, or of pictures.
        split: of a folder the one to read; of a file, keep the rows whose column `split` says so.
        image_root: where relative paths start and which none leaves; the file's folder by default, and then absolute paths may
            name any file.
        size: how many rows are read; None: all.

    Raises:
        ValueError: listing the first bad rows with file and line.
    """
    return prompts_in(path, split, image_root, dialogue, size)
