"""Prompts from rows with a picture, a question and boxes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

from mmrl.answers.boxes.box import SPACES, Box, Space, check_inside, extent
from mmrl.core.types import MediaSize, Prompt
from mmrl.data.files.paths import cell_below
from mmrl.data.files.pictures import TURNED, open_picture, orientation_of, picture_size
from mmrl.data.layouts.answers import sides_of
from mmrl.data.layouts.habits import BoxHabits
from mmrl.data.layouts.load import Measured
from mmrl.data.readers import Cell, Row
from mmrl.data.validate import FILE_ROW, check_markers, check_shape, check_tokens, strip_markers

BoxFormat = Literal["xyxy", "xywh"]
"""Four numbers as two corners, or as the upper left corner, width and height."""
WRITTEN = "write [10, 20, 200, 180], numbers in brackets and no text"
_USUAL_NAMES = {
    "image": ("image", "images"),
    "question": ("question",),
    "box": ("boxes", "box", "bbox"),
    "size": ("size",),
    "space": ("space",),
    "id": ("id",),
    "split": ("split",),
}
"""The columns of a grounding row, and their names in files unless the user says otherwise."""


@dataclass(frozen=True)
class GroundingLayout:
    """The layout of grounding rows: `GroundingLayout(Path("photos"), columns={"box": "bbox"}, box_format="xywh")`.

    A box may be four numbers, an object with `bbox`, `bbox_2d` or `box` and perhaps `label`, or a list of either.
    """

    image_root: Path = Path()
    space: Space = "pixel"
    """Space of the boxes; a row's own column `space` takes precedence."""
    box_format: BoxFormat = "xyxy"
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Our name -> the file's: image, question, box, size, space, id, split."""
    template: str = "{question}"
    """The prompt's text; must contain {question}."""
    decode: bool = False
    """True: decode every picture when checking it, not only suspicious ones."""
    anywhere: bool = True
    """True lets rows name any file by its absolute path; relative paths never leave image_root."""
    habits: BoxHabits = field(default_factory=BoxHabits, compare=False)
    """How the boxes of rows that were read fit their pictures, where rows do not say their space."""
    notes: Counter[str] = field(default_factory=Counter[str], compare=False)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.columns) - set(_USUAL_NAMES))
        if unknown:
            raise ValueError(
                f"columns maps {', '.join(unknown)}, which grounding rows do not have: use {', '.join(_USUAL_NAMES)}"
            )
        if "{question}" not in self.template:
            raise ValueError(f"template {self.template!r} must contain {{question}}")
        self._check_space(self.space)

    def measure(self, row: Row) -> Measured:
        """A row's pictures, as paths or what holds them, and their sizes; threads may ask together. Errors as in `prompts`."""
        media = self._media(row)
        return media, [picture_size(picture, self.decode) for picture in media]

    def prompts(self, row: Row, measured: Callable[[], Measured] | None = None) -> list[Prompt]:
        """One prompt, or one per question where the row lists several; their ids then end in -0, -1, ...

        `measured` gives what `measure(row)` gave before.
        Raises ValueError or FileNotFoundError, without the row's place, for anything wrong with the row.
        """
        questions = self._questions(row)
        media, sizes = self.measure(row) if measured is None else measured()
        drawn_on, orientation = self._drawn_on(row, media[0], sizes[0])
        for box in self._raw_boxes(row) if row.values.get("space") is None else ():
            self.habits.add(box, drawn_on)
        for size in sizes:
            check_shape(size)
        if len({*sizes}) > 1:
            self.notes["rows with pictures of several sizes, whose boxes are read as the first one's"] += 1
        answer = self._boxes(row, drawn_on)
        if orientation != 1:
            self.notes["rows whose boxes were turned with their pictures, as EXIF notes"] += 1
            boxes = answer if isinstance(answer, tuple) else (answer,)
            upright = tuple(_upright(box, MediaSize(*drawn_on, *drawn_on), orientation) for box in boxes)
            answer = upright if isinstance(answer, tuple) else upright[0]
        used = {name for key in _USUAL_NAMES if (name := self._name(row, key)) is not None}
        columns = {name: value for name, value in row.values.items() if name not in used}
        columns |= {FILE_ROW: row.place, "size": sizes[0]}
        columns |= {} if (split := self._optional(row, "split")) is None else {"split": str(split)}
        given = self._optional(row, "id")
        name = f"{Path(row.source).stem}-{row.number}" if given is None else str(given)
        ids = [name] if len(questions) == 1 else [f"{name}-{i}" for i in range(len(questions))]
        texts = [self.template.replace("{question}", strip_markers(question, media)) for question in questions]
        for text in texts:
            check_markers(text, media)
            check_tokens(text)
        # a path stays a path, so that pictures are opened when they are needed; anything else has no shorter form
        shown = tuple(picture if isinstance(picture, str) else open_picture(picture) for picture in media)
        return [Prompt(i, text, shown, answer, columns) for i, text in zip(ids, texts, strict=True)]

    def split_of(self, row: Row) -> str:
        """The split a row belongs to."""
        return str(self._require(row, "split"))

    def _questions(self, row: Row) -> list[str]:
        found = self._require(row, "question")
        listed = cast(list[object], found) if isinstance(found, list) else [found]
        questions = [question for question in listed if isinstance(question, str) and question.strip()]
        if not questions or len(questions) < len(listed):
            raise ValueError(f"column {self._name(row, 'question')!r} must be a text that is not empty, not {found!r}")
        return questions

    def _media(self, row: Row) -> list[object]:
        found = self._require(row, "image")
        pictures = cast(list[object], found) if isinstance(found, list) else [found]
        if not pictures:
            raise ValueError(f"column {self._name(row, 'image')!r} holds no picture")
        return [cell_below(self.image_root, picture, self.anywhere) for picture in pictures]

    def _boxes(self, row: Row, size: tuple[int, int]) -> Box | tuple[Box, ...]:
        found = self._require(row, "box")
        space = self._optional(row, "space") or self.space
        self._check_space(space)
        single = _is_single(found)
        items = [found] if single else found
        if not isinstance(items, list | tuple):
            raise ValueError(f"column {self._name(row, 'box')!r} must be a list of boxes, not {str(found)[:80]!r}: {WRITTEN}")
        seen = MediaSize(*size, *size)
        boxes = tuple(self._box(item, space, seen) for item in cast(Sequence[object], items))
        for box in boxes:
            _check_place(box, seen)
        return boxes[0] if single else boxes

    def _raw_boxes(self, row: Row) -> list[list[float]]:
        """The four numbers of each box of a row as they are written; those that cannot be read are left out."""
        found = self._optional(row, "box")
        items = found if isinstance(found, list | tuple) and not _is_single(found) else [found]
        return [sides for item in cast(Sequence[object], items) if (sides := sides_of(item)) is not None]

    def _box(self, item: object, space: Space, size: MediaSize) -> Box:
        label = cast(dict[str, object], item).get("label") if isinstance(item, dict) else None
        sides = sides_of(item)
        if sides is None:
            raise ValueError(f"a box must be four numbers, not {str(item)[:80]}: {WRITTEN}")
        x1, y1, x2, y2 = sides
        corners = (x1, y1, x1 + x2, y1 + y2)
        if self.box_format == "xywh":
            return Box(*corners, space, None if label is None else str(label))
        try:
            return Box(x1, y1, x2, y2, space, None if label is None else str(label))
        except ValueError as error:
            most = extent(space, size) * 2
            if min(sides) < 0 or min(x2, y2) == 0 or any(at > end for at, end in zip(corners, most, strict=True)):
                raise
            raise ValueError(f"{error}; as x, y, width, height it would fit the picture: give box_format = xywh") from None

    def _drawn_on(self, row: Row, picture: object, real: tuple[int, int]) -> tuple[tuple[int, int], int]:
        """The size on which the row's boxes were drawn, and the EXIF orientation by which they are still to be turned.

        A row that says the size of its picture as it is stored has boxes of that. ValueError for a row with another size.
        """
        said = self._optional(row, "size")
        if said is None or (isinstance(said, list | tuple) and tuple(cast(Sequence[object], said)) == real):
            return real, 1
        orientation = orientation_of(picture) if said in (list(real[::-1]), real[::-1]) else 1
        if orientation not in TURNED:
            raise ValueError(f"the row says its picture has size {str(said)[:80]}, but it has {list(real)} (width, height)")
        return (real[1], real[0]), orientation

    def _check_space(self, space: object) -> None:
        if space not in SPACES or space == "resized":
            raise ValueError(
                f"boxes of a data set cannot be in space {space!r}: use pixel, norm1000 or norm1 "
                "(resized depends on the model, not on the data)"
            )

    def _name(self, row: Row, key: str) -> str | None:
        """The row's own name of our column `key`; None if it has no such column."""
        names = (self.columns[key],) if key in self.columns else _USUAL_NAMES[key]
        present = [name for name in names if name in row.values]
        if len(present) > 1:
            raise ValueError(f"columns {', '.join(present)} all look like the {key}: choose with columns = {{{key} = ..}}")
        return present[0] if present else None

    def _optional(self, row: Row, key: str) -> Cell:
        name = self._name(row, key)
        return None if name is None else row.values[name]

    def _require(self, row: Row, key: str) -> Cell:
        value = self._optional(row, key)
        if value is None:
            wanted = self.columns.get(key, " or ".join(_USUAL_NAMES[key]))
            there = ", ".join(row.values) or "no columns"
            raise ValueError(f"column {wanted} is missing or empty (the row has {there}): map it with columns = {{{key} = ..}}")
        return value


def _is_single(found: object) -> bool:
    """Is it one box, not a list of boxes?"""
    return isinstance(found, dict) or (isinstance(found, list) and len(found) == 4 and not isinstance(found[0], dict | list))


def _upright(box: Box, stored: MediaSize, orientation: int) -> Box:
    """A box of a picture as it is stored, on the picture as EXIF's orientation (5 to 8) turns it."""
    width, height = extent(box.space, stored)
    xs, ys = (box.x1, box.x2), (box.y1, box.y2)
    across = sorted(height - y if orientation in (6, 7) else y for y in ys)
    down = sorted(width - x if orientation in (7, 8) else x for x in xs)
    return replace(box, x1=across[0], y1=down[0], x2=across[1], y2=down[1])


def _check_place(box: Box, size: MediaSize) -> None:
    """Raise ValueError for a box outside its picture, or one whose numbers must be shares; it names the space that would fit."""
    if box.space == "pixel" and max(box.corners) <= 1:
        raise ValueError(f"{box} lies within the first pixel: where boxes are shares of the picture, give space = norm1")
    try:
        check_inside(box, size)
    except ValueError as error:
        if box.space != "pixel" and min(box.corners) >= 0 and box.x2 <= size.width and box.y2 <= size.height:
            raise ValueError(f"{error}; where boxes are pixels of the picture, give space = pixel") from None
        if box.space != "pixel" or min(box.corners) < 0 or max(box.corners) > 1000:
            raise
        raise ValueError(f"{error}; where boxes are thousandths of the picture, give space = norm1000") from None
