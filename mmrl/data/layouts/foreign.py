"""Files in other people's words, for commands that otherwise take rows as they are."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mmrl.data.layouts.files import look_at
from mmrl.data.layouts.guess import NO_COLUMNS, Guess, candidates, guess
from mmrl.data.layouts.source import NAMES, OWN, Source, open_source


def foreign(
    path: str | Path, name: str | None = None, columns: Mapping[str, str] = NO_COLUMNS, split: str | None = None
) -> Guess | None:
    """The layout of a file whose rows are not in our words; None where they are, or where no layout is known.

    Args:
        name: the layout, where somebody says it.
        columns: our name -> the file's.
        split: of a folder with several.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: it is not what its ending says, has several layouts, or `name` is none.
    """
    own = {layout.name for layout in OWN.values()}
    if name is None and {layout.name for layout in candidates(look_at(Path(path), columns, split))} <= own:
        return None
    found = guess(path, columns, name, split)
    return None if found.layout in own else found


def open_foreign(path: str | Path, found: Guess, columns: Mapping[str, str] = NO_COLUMNS, split: str | None = None) -> Source:
    """The file as rows in our words.

    Raises:
        ValueError: a data set of its own reads the layout, whose rows cannot be said in our words.
    """
    if found.data_set not in NAMES:
        raise ValueError(
            f"{path} is {found.layout} ({found.summary}), which only the data set {found.data_set} reads: this command takes "
            f"rows with boxes or with questions and answers, as {', '.join(dict.fromkeys(sum(NAMES.values(), ())))} write them"
        )
    return replace(open_source(path, found.data_set, found.layout, columns, split), guess=found)
