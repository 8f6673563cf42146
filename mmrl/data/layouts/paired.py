"""The folders that trainers of generators read: pictures or clips with their texts beside them, 001.png and 001.txt."""

from collections.abc import Iterator
from pathlib import Path

from mmrl.core.samples import AUDIO, VIDEO, kind_of
from mmrl.data.files.paths import path_below
from mmrl.data.files.pictures import PICTURE_SUFFIXES
from mmrl.data.readers import Row, read_text
from mmrl.data.validate import Report


def pairs(folder: Path) -> Iterator[tuple[Path, Path | None]]:
    """The pictures and clips of a folder, by name, each with the text beside it."""
    for file in sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURE_SUFFIXES | VIDEO.suffixes):
        yield file, next((text for ending in (".txt", ".caption") if (text := file.with_suffix(ending)).is_file()), None)


def is_paired(folder: Path, by_labels: bool = False) -> bool:
    """Has any picture or clip a text beside it, or a label file of YOLO?"""
    has_text = False
    for _, text in pairs(folder) if folder.is_dir() else ():
        has_text = has_text or text is not None
        # YOLO's file of a picture without boxes is empty
        if text is not None and text.stat().st_size:
            with text.open("rb") as file:
                words = file.readline(1000).split()
            return by_labels == (len(words) > 4 and not any(word.strip(b"0123456789.e+-") for word in words))
    return has_text and not by_labels


def refuse_sounds(folder: Path) -> None:
    """Raise ValueError for a folder of sounds with texts beside them."""
    found = sorted(file for file in folder.iterdir() if file.suffix.lower() in AUDIO.suffixes)
    if told := [file.name for file in found if file.with_suffix(".txt").is_file()]:
        raise ValueError(
            f"{folder} holds sounds with texts beside them ({told[0]}), which nothing reads: list them in metadata.jsonl, as in "
            f'{{"file_name": "{told[0]}", "question": "What is heard?", "answer": "a beep"}}'
        )


def paired_rows(folder: Path, report: Report, below: str = "") -> Iterator[Row]:
    """A row per picture or clip, its path as seen from above `below`; one without a text goes into the report."""
    refuse_sounds(folder / below)
    for number, (file, text) in enumerate(pairs(folder / below), start=1):
        shown = Path(below, file.name)
        with report.collecting(str(shown), counts=True):
            if text is None:
                raise ValueError(f"it has no text: write it into {file.stem}.txt next to it, or list all in metadata.jsonl")
            written = read_text(Path(path_below(folder, str(shown.with_name(text.name)), "data.path")))
            yield Row({"text": written.strip(), kind_of(file).name: str(shown)}, file.name, number)
