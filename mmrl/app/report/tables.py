"""Tables of numbers: on a terminal no number is broken, and into a pipe go tab-separated lines with every digit."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmrl.app.errors import printable


def table(texts: Mapping[str, int | None], numbers: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """Columns of texts, folded at their greatest width, and then of numbers, to the right; nothing in a row is markup."""
    grid = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for heading, width in texts.items():
        grid.add_column(heading, overflow="fold", max_width=width)
    for heading in numbers:
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))
    return grid


def write_tsv(console: Console, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Tab-separated lines, past rich, which makes blanks of tabs; None is empty, and tabs and line ends in words are blanks."""

    def word(value: object) -> str:
        text = "" if value is None else repr(value) if isinstance(value, float) else str(value)
        return " ".join(text.split("\t")).replace("\n", " ").replace("\r", " ")

    console.file.write(printable("".join("\t".join(map(word, row)) + "\n" for row in (header, *rows))))
