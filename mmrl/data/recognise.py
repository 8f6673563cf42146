"""The data set that reads a file, found by a look at its beginning."""

import csv
import io
import json
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import cast

from mmrl.data.readers import read_rows
from mmrl.data.validate import Report

COLUMNS: dict[str, Collection[str]] = {
    "video_r1": ("problem", "path"),
    "clevrer": ("video_filename", "questions"),
    "prompts": ("prompt",),
}
"""Data set -> columns that its rows have, and no row with boxes has all of."""
GQA = ("video_id", "qid", "a0")


def recognise(path: Path) -> str | None:
    """The name of the data set whose layout a file has; None for rows with boxes, and for what is not recognised.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not what its ending says.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data file {path} does not exist")
    suffix = path.suffix.lower()
    if suffix in (".txt", ".csv"):
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            line = file.readline(10_000)
        if suffix == ".txt":
            return "charades_sta" if "##" in line else "prompts"
        return "next_gqa" if set(GQA) <= set(next(csv.reader(io.StringIO(line)), [])) else None
    if suffix == ".json" and _holds_captions(path):
        return "activitynet_captions"
    rows = list(islice(read_rows(path, Report(str(path))), 1))
    names = set(rows[0].values) if rows else set[str]()
    if names & {"box", "boxes", "bbox"}:
        return None
    return next((name for name, columns in COLUMNS.items() if names >= set(columns)), None)


def _holds_captions(path: Path) -> bool:
    """Is it one object with time stamps per video?"""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    entries = list(islice(cast(dict[str, object], found).values(), 1)) if isinstance(found, dict) else []
    return bool(entries) and isinstance(entries[0], dict) and "timestamps" in entries[0]
