"""Rows of JSONL, JSON, CSV, TSV, parquet and Hugging Face data sets, each with its place."""

import csv
import io
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeVar, overload, runtime_checkable

from mmrl.core.samples import Prompt
from mmrl.data.validate import Report, check_new_id
from mmrl.runtime.near import near
from mmrl.runtime.net.offline import check_hub, offline_note

T = TypeVar("T")
Cell = Any
"""A value of a row, as JSON, parquet or a Hugging Face data set give it: text, number, list, object, picture, nothing."""
loading = logging.getLogger("mmrl.loading")
NUMBERS = ("width", "height")
"""Columns of a table of texts that hold whole numbers."""
OBJECTS, CLASSES = "objects", ("category", "categories", "label", "labels")
"""The column of boxes with their classes, and the names of the classes in it."""
MOST_COLUMNS = 10_000
"""Of a CSV file."""
TRAIN = "train"
"""The split that is read by default."""


@runtime_checkable
class HfDataset(Protocol):
    """The part of a Hugging Face Dataset or IterableDataset that readers use."""

    @property
    def features(self) -> Mapping[str, object] | None: ...
    def __iter__(self) -> Iterator[Cell]: ...
    def cast_column(self, column: str, feature: Cell) -> "HfDataset": ...


@runtime_checkable
class StoredHfDataset(Protocol):
    """The part of a stored Hugging Face Dataset that readers use: rows are looked up by number."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Cell]: ...
    def __getitem__(self, key: int, /) -> Cell: ...


@dataclass(frozen=True)
class Row:
    """One row: `Row({"image": "cat.jpg"}, "boxes.jsonl", 12)`; numbers count from 1, as editors do."""

    values: Mapping[str, Cell]
    source: str
    number: int

    @property
    def place(self) -> str:
        return f"{self.source}:{self.number}"

    @property
    def split(self) -> str:
        """The split it belongs to by its column; ValueError without one."""
        if self.values.get("split") is None:
            raise ValueError("column split is missing or empty: leave `split` out, or say which split the row belongs to")
        return str(self.values["split"])


def as_list(value: Cell) -> list[Cell]:
    """The values of a cell that holds one, several or none."""
    return value if isinstance(value, list) else [] if value is None else [value]


def read_rows(path: str | Path, report: Report) -> Iterator[Row]:
    """Rows of a .jsonl, .json (a list of objects), .csv, .tsv or .parquet file; rows that cannot be read go into the report.

    Raises FileNotFoundError, or ValueError for another kind of file.
    """
    path = existing(path)
    match path.suffix.lower():
        case ".jsonl":
            refuse_wide_text(path)
            yield from _read_jsonl(path, report)
        case ".json":
            yield from _read_json(path, report)
        case ".csv" | ".tsv":
            yield from csv_rows(path, report)
        case ".parquet":
            yield from _read_parquet(path)
        case suffix:
            raise ValueError(f"data file {path} ends in {suffix!r}: give a .jsonl, .json, .csv, .tsv or .parquet file")


def prompts_of(rows: Iterable[Row], report: Report, make: Callable[[Row], Prompt | None]) -> Iterator[Prompt]:
    """The prompts that `make` makes of rows, without None; rows that lack something go into the report."""
    for row in rows:
        report.num_rows += 1
        with report.collecting(row.place):
            if (prompt := make(row)) is not None:
                yield prompt


def prompts_from(
    rows: Iterable[Row], report: Report, make: Callable[[Row], Prompt | None], most: int | None = None
) -> list[Prompt]:
    """At most so many of `prompts_of`; ValueError listing the first bad rows, or where there are none."""
    ids = set[str]()

    def new(row: Row) -> Prompt | None:
        if (prompt := make(row)) is not None:
            check_new_id(prompt, ids)
        return prompt

    prompts = list(islice(prompts_of(rows, report, new), most))
    report.raise_if_bad()
    return prompts


def existing(path: str | Path) -> Path:
    """The path, if there is such a file; else FileNotFoundError."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"data file {path} does not exist{near(path)}: check the path")
    return Path(path)


def read_text(path: Path) -> str:
    """The text of a file in UTF-8; FileNotFoundError, or ValueError naming file and line."""
    refuse_wide_text(existing(path))
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(_not_utf8(path, data.count(b"\n", 0, error.start) + 1)) from None


def _not_utf8(path: Path, line: int) -> str:
    return (
        f"data file {path} is no text in UTF-8 from line {line} on: save it as UTF-8, or, if it comes from Windows, run "
        f"iconv -f CP1252 -t UTF-8 {path.name} > new{path.suffix}"
    )


def parse_json(data: str | bytes, what: str) -> Cell:
    """The value of a JSON text; ValueError, which calls it `what`, for any other."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        remedy = ": save the file as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise ValueError(f"{what} is not JSON: {error}{remedy}") from None


def read_json(path: Path) -> Cell:
    """The value that a JSON file holds; FileNotFoundError, or ValueError naming the file."""
    data = existing(path).read_bytes()
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:
        raise ValueError(_not_utf8(path, data.count(b"\n", 0, error.start) + 1)) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"data file {path} is not JSON: {error}") from None


def csv_rows(path: Path, report: Report) -> Iterator[Row]:
    """Rows of a CSV or TSV file with a header; numbers count lines, the header's included.

    A cell with a list or an object is read as JSON, an empty one as None. Rows that cannot be read go into the report;
    ValueError for a header that names a column twice.
    """
    text = read_text(path)
    head = text.partition("\n")[0]
    separator = "\t" if path.suffix.lower() == ".tsv" else ";" if ";" in head and "," not in head else ","
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    names: list[str] = []
    while True:
        number = lines.line_num + 1
        try:
            cells = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            said = f"the row cannot be read ({error}): {_QUOTED.format(separator)}"
            report.add(f"{path.name}:{number}", said, counts=True)
            continue
        if not cells:
            continue
        if not names:
            names = [name.strip() for name in cells]
            if len(names) > MOST_COLUMNS:
                raise ValueError(
                    f"data file {path} has {len(names):,} columns, more than {MOST_COLUMNS:,}: keep those that are used"
                )
            twice, count = Counter(names).most_common(1)[0]
            if count > 1:
                raise ValueError(f"data file {path} names the column {twice!r} twice in line {number}: rename one of them")
        elif len(cells) == len(names):
            yield Row({name: _cell(name, cell) for name, cell in zip(names, cells, strict=True)}, path.name, number)
        else:
            said = f"the row has {len(cells)} cells, and the header names {len(names)} columns: {_QUOTED.format(separator)}"
            report.add(f"{path.name}:{number}", said, counts=True)


_QUOTED = 'write a text that holds {!r} as "..", and a quote in it twice'


def _cell(name: str, text: str) -> Cell:
    if name in NUMBERS and text.strip().isdecimal() and len(text) < 10:
        return int(text)
    if not text.lstrip().startswith(("[", "{")):
        return text if text.strip() else None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def refuse_wide_text(path: Path) -> None:
    """Raise ValueError for a text in UTF-16 or UTF-32, as some editors of Windows save it."""
    with path.open("rb") as file:
        first = file.read(4)
    if first[:2] in (b"\xff\xfe", b"\xfe\xff") or (len(first) > 1 and 0 in first[:2]):
        raise ValueError(
            f"data file {path} is text in UTF-16 or UTF-32, and lines are read as UTF-8: save it as UTF-8 in the editor, or run "
            f"iconv -f UTF-16 -t UTF-8 {path.name} > new{path.suffix}"
        )


@overload
def open_hf(name: str, split: str | None = None, streaming: Literal[False] = False) -> StoredHfDataset: ...
@overload
def open_hf(name: str, split: str | None, streaming: Literal[True]) -> HfDataset: ...
def open_hf(name: str, split: str | None = None, streaming: bool = False) -> HfDataset | StoredHfDataset:
    """Open a Hugging Face Dataset or IterableDataset, pictures undecoded, from a hub id, a folder or a parquet file.

    Folders may come from `save_to_disk` or hold data files; loose parquet files are the split "train". Of several splits, `train`
    is read unless `split` names another; ValueError where there is no such split.
    """
    # without the package, `import datasets` finds any folder of that name
    hf, path = import_extra("datasets", "load_dataset"), Path(name)
    broken = (import_extra("pyarrow", "ArrowInvalid").ArrowInvalid, hf.exceptions.DatasetGenerationError, OSError)
    try:
        data = _open_hf(hf, path, name, split, streaming)
    except broken as error:
        if isinstance(error, FileNotFoundError) or not path.exists():
            raise
        raise ValueError(f"data set {name} is broken: write or download its files again ({error.__cause__ or error})") from None
    for column, feature in (data.features or {}).items():
        if isinstance(feature, hf.Image | hf.Audio):
            data = data.cast_column(column, type(feature)(decode=False))
        elif isinstance(feature, hf.List) and isinstance(feature.feature, hf.Image):
            data = data.cast_column(column, hf.List(hf.Image(decode=False)))
    return data


def _open_hf(hf: Cell, path: Path, name: str, split: str | None, streaming: bool) -> Cell:
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        found = hf.load_from_disk(name)
        if split is not None and not (isinstance(found, Mapping) and split in found):
            raise ValueError(f"data set {name} was saved without a split {split!r}; it holds {_splits(found)}")
        data = _only_split(found, name) if split is None else found[split]
        return data.to_iterable_dataset() if streaming else data
    if path.suffix == ".parquet":
        if not any(path.parent.glob(path.name)):
            raise FileNotFoundError(f"data file {name} does not exist{near(name)}")
        return hf.load_dataset("parquet", data_files=name, split=split or "train", streaming=streaming)
    check_hub(name)
    try:
        return _only_split(hf.load_dataset(name, split=split, streaming=streaming), name)
    except OSError as error:
        if path.is_dir() and not isinstance(error, FileNotFoundError):
            raise
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FileNotFoundError(
            f"data set {name!r} is neither a folder nor one the hub gave us ({said}){offline_note()}"
        ) from None
    except RuntimeError as error:
        said = (str(error).strip().splitlines() or ["no reason"])[0]
        raise ValueError(
            f"data set {name!r} cannot be read ({said}): give its data files alone, without Python beside them"
        ) from None


def hf_rows(data: Iterable[Cell], name: str) -> Iterator[Row]:
    """The rows of a data set that `open_hf` opened; ValueError where its files are broken."""
    number = 0
    try:
        for number, values in enumerate(data, start=1):
            yield hf_row(data, values, name, number)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} is broken after row {number}: write or download it again ({error})") from None


def hf_row(data: Cell, values: Cell, name: str, number: int) -> Row:
    features: Cell = getattr(data, "features", None) or {}
    return Row(name_classes(values, features.to_dict() if OBJECTS in features else {}), name, number)


def name_classes(values: dict[str, Cell], features: Mapping[str, Cell]) -> dict[str, Cell]:
    """A row whose `objects` hold classes by their names, where the features of a Hugging Face data set, as JSON, tell them."""
    names, objects = _names_of(features.get(OBJECTS)), values.get(OBJECTS)

    def named(found: Cell, key: str = "") -> Cell:
        if isinstance(found, list):
            return [named(one, key) for one in found]
        if isinstance(found, dict):
            return {name: named(one, name) for name, one in found.items()}
        return names[found] if names and key in CLASSES and isinstance(found, int) and 0 <= found < len(names) else found

    return {**values, OBJECTS: named(objects)} if names and objects else values


def _names_of(feature: Cell) -> list[str] | None:
    """The names of the first ClassLabel within a feature."""
    if not isinstance(feature, dict):
        return None
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    return names if isinstance(names, list) else next(filter(None, map(_names_of, feature.values())), None)


def _only_split(found: T | Mapping[str, T], name: str) -> T:
    if not isinstance(found, Mapping):
        return found
    if len(found) > 1 and TRAIN in found:
        loading.info("%s holds %s: %s is read; split = NAME reads another", name, _splits(found), TRAIN)
        return found[TRAIN]
    if len(found) != 1:
        raise ValueError(f"data set {name} holds {_splits(found)}: choose one with `split`")
    return next(iter(found.values()))


def _splits(found: object) -> str:
    return "the splits " + ", ".join(map(str, found)) if isinstance(found, Mapping) else "no splits"


def _read_jsonl(path: Path, report: Report) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            with report.collecting(f"{path.name}:{number}", counts=True):
                if not line.strip():
                    continue
                values = parse_json(line.removeprefix(b"\xef\xbb\xbf"), "this")
                if not isinstance(values, dict):
                    whole = ": call a file that is one JSON list .json" if isinstance(values, list) else ""
                    raise ValueError(f"a line must be one JSON object, not {type(values).__name__}{whole}")
                yield Row(values, path.name, number)


def _read_json(path: Path, report: Report) -> Iterator[Row]:
    rows = read_json(path)
    if not isinstance(rows, list):
        raise ValueError(f"data file {path} must hold a list of objects, not {type(rows).__name__}")
    for number, values in enumerate(rows, start=1):
        if isinstance(values, dict):
            yield Row(values, path.name, number)
        else:
            report.add(f"{path.name}:{number}", f"a row must be a JSON object, not {type(values).__name__}", counts=True)


def _read_parquet(path: Path) -> Iterator[Row]:
    parquet, number = import_extra("pyarrow.parquet", "ParquetFile"), 0
    try:
        file = parquet.ParquetFile(path)
        features = _features(file.schema_arrow.metadata)
        for batch in file.iter_batches(batch_size=256):
            for values in batch.to_pylist():
                number += 1
                yield Row(name_classes(values, features), path.name, number)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is broken after row {number}: write or download it again ({error})") from None


def _features(metadata: Cell) -> dict[str, Cell]:
    """The features of its columns that a parquet file of Hugging Face notes."""
    try:
        return dict(json.loads(metadata[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}


def import_extra(module_name: str, proof: str) -> ModuleType:
    """Import a module of an extra; ValueError unless it really holds the name `proof`."""
    hint = f"this needs the package {module_name.partition('.')[0]!r}: pip install 'mmrl[data]'"
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ValueError(f"{hint} ({error})") from None
    if not hasattr(module, proof):
        where = list(getattr(module, "__path__", []))
        raise ValueError(f"{hint} (found only a folder of that name: {where})")
    return module
