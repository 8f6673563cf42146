"""The folders that trainers of generators read: pictures or clips, each with its text in a file of the same name beside it.

001.png  001.txt      a red fox
"""

from collections.abc import Iterator
from pathlib import Path

from mmrl.core.samples import VIDEO, kind_of
from mmrl.data.files.paths import path_below
from mmrl.data.files.pictures import PICTURE_SUFFIXES
from mmrl.data.readers import Row, read_text
from mmrl.data.validate import Report

TEXTS = (".txt", ".caption")


def shown_files(folder: Path) -> list[Path]:
    """The pictures and clips of a folder, by name."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURE_SUFFIXES | VIDEO.suffixes)


def is_paired(folder: Path, by_labels: bool = False) -> bool:
    """Has any picture or clip a text beside it, or a label file of YOLO?"""
    texts = (text for file in shown_files(folder) if (text := _text_of(file)) is not None)
    return (first := next(texts, None)) is not None and _is_label(first) == by_labels


def paired_rows(folder: Path, report: Report, below: str = "") -> Iterator[Row]:
    """A row per picture or clip, its path as seen from above `below`; one without a text goes into the report."""
    for number, file in enumerate(shown_files(folder / below), start=1):
        with report.collecting(str(Path(below, file.name)), counts=True):
            text = _text_of(file)
            if text is None:
                raise ValueError(f"it has no text: write it into {file.stem}.txt next to it, or list all in metadata.jsonl")
            written = read_text(Path(path_below(folder, str(Path(below, text.name)), "data.path"))).strip()
            yield Row({"text": written, kind_of(file).name: str(Path(below, file.name))}, file.name, number)


def _text_of(file: Path) -> Path | None:
    return next((text for ending in TEXTS if (text := file.with_suffix(ending)).is_file()), None)


def _is_label(file: Path) -> bool:
    with file.open("rb") as text:
        words = text.readline(1000).split()
    return len(words) > 4 and all(word.replace(b".", b"").isdigit() for word in words)
