"""The layout of a file or folder, guessed from its beginning: `guess("llava.json").layout == "llava"`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from mmrl.data.layouts.base import ANSWERS, BOX, DataLayout, Look
from mmrl.data.layouts.files import look_at
from mmrl.data.layouts.table import LAYOUTS

NO_COLUMNS: Mapping[str, str] = MappingProxyType({})


class UnknownLayoutError(ValueError):
    """The file has none of the known layouts."""


@dataclass(frozen=True)
class Guess:
    """The layout that a file has, and the data set that reads it: `Guess("llava", "qa_jsonl", "LLaVA's conversations", True)`."""

    layout: str
    data_set: str
    summary: str
    is_guess: bool
    """False if the user named the layout."""

    def __str__(self) -> str:
        how = "guessed, --as NAME says otherwise" if self.is_guess else "as you say"
        return f"read as {self.layout}: {self.summary}; {how}"


def guess(
    path: str | Path,
    columns: Mapping[str, str] = NO_COLUMNS,
    name: str | None = None,
    split: str | None = None,
) -> Guess:
    """The layout of a file or folder and the data set that reads it; `columns` are our name -> the file's.

    Raises FileNotFoundError, or ValueError where it is not what its ending says, has none of the layouts or several, or there is
    no layout called `name`.
    """
    layout = None if name is None else layout_called(name)
    # a layout that needs the whole file reads it once, by itself
    look = Look(Path(path)) if layout is not None and layout.read is not None else look_at(Path(path), columns, split)
    layout = layout or choose(look)
    return Guess(layout.name, layout.data_set(look), layout.summary, name is None)


def layout_called(name: str) -> DataLayout:
    """The layout of that name; ValueError listing all where there is none."""
    if name not in LAYOUTS:
        raise ValueError(f"no layout is called {name!r}: choose one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def choose(look: Look, among: Collection[str] = LAYOUTS) -> DataLayout:
    """The one layout that a file may have; ValueError for none or several."""
    fitting = candidates(look, among)
    if len(fitting) > 1:
        names = [layout.name for layout in fitting]
        raise ValueError(
            f"{look.path} may be {' or '.join(names)}: say which, with --as {' or --as '.join(names)} "
            f'(in a config layout = "{names[0]}")'
        )
    if not fitting:
        there = ", ".join(sorted(map(str, look.columns or look.keys))[:12]) or "no rows"
        if look.has("question") and not look.has_one(*BOX, *ANSWERS):
            raise UnknownLayoutError(
                f"{look.path} has questions, and neither boxes nor answers that are called so ({there}): name that column, as in "
                "columns.box=NAME or columns.answer=NAME (the sides of a box in four columns are xmin, ymin, xmax, ymax)"
            )
        raise UnknownLayoutError(
            f"{look.path} has none of the layouts that are known ({there}): call its columns by our names, as in "
            f"columns.question=NAME, or say its layout with --as, one of {', '.join(LAYOUTS)}"
        )
    return fitting[0]


def candidates(look: Look, among: Collection[str] = LAYOUTS) -> list[DataLayout]:
    """The layouts that fit, without those that give way to another one of them."""
    fitting = [layout for name, layout in LAYOUTS.items() if name in among and layout.fits(look)]
    beaten = {name for layout in fitting for name in layout.beats}
    return [layout for layout in fitting if layout.name not in beaten]
