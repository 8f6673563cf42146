"""Files and folders that hold rows, whatever the rows say: JSONL, JSON, CSV, TSV, parquet, tar, folders of Hugging Face, and of
pictures with a list or with texts beside them.

Of Webdataset's tar files members of one name are a row, 0001.jpg with 0001.json or 0001.txt:

    0001.jpg  0001.json {"question": "How many?", "answer": 3}      0002.png  0002.txt a red fox

Members are read one by one inside the tar; nothing is unpacked, and no file is opened by their names. The whole tar is refused if
a member is a link, leads out by `..` or is larger than any picture.
"""

import tarfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath

from mmrl.core.samples import AUDIO, IMAGE, VIDEO, Prompt, kind_of
from mmrl.data.files.paths import path_below
from mmrl.data.files.pictures import PICTURE_SUFFIXES
from mmrl.data.layouts.base import Look, rename_columns
from mmrl.data.readers import (
    TRAIN,
    Cell,
    Row,
    existing,
    hf_rows,
    import_extra,
    open_hf,
    parse_json,
    prompts_from,
    read_json,
    read_rows,
    read_text,
)
from mmrl.data.validate import Report

FIRST = 16
"""Rows that a look reads."""
LISTS = ("metadata.jsonl", "metadata.csv")
"""The files that describe the pictures of a folder: `file_name`, and any other columns."""
FILE_NAMES = {"file_name": "image", "file_names": "images", "image_file_name": "image", "image_file_names": "images"}
SAVED = ("state.json", "dataset_dict.json")
TABLES = (".parquet", ".arrow")
SPLITS = (TRAIN, "test", "val", "valid", "validation", "eval", "held_out")
"""The usual names of splits, as folders and lists have them; `test` goes before the others to hold prompts out."""
VOC_LISTS = "ImageSets/Main"
"""Where Pascal VOC lists the pictures of its splits."""
YAML = (".yaml", ".yml")


def is_stored(path: Path) -> bool:
    """True for a folder that Hugging Face's `datasets` reads: from `save_to_disk`, or with parquet or arrow files."""
    return path.is_dir() and not has_metadata(path) and (any((path / name).is_file() for name in SAVED) or bool(tables(path)))


def tables(folder: Path) -> list[Path]:
    """The parquet and arrow files in a folder and two levels of folders below it, by name; not the caches of maps."""
    found = (file for above in ("", "*/", "*/*/") for suffix in TABLES for file in folder.glob(f"{above}*{suffix}"))
    return sorted(file for file in found if not file.name.startswith("cache-"))


def is_flat(folder: Path) -> bool:
    """Is there one list for all splits of a folder of pictures?"""
    return any((folder / name).is_file() for name in LISTS)


def is_whole(folder: Path) -> bool:
    """Is a folder one list of rows, and not one of several splits?"""
    return is_flat(folder) or bool(shards(folder)) or is_paired(folder)


def has_metadata(folder: Path) -> bool:
    """Is it a folder of pictures, or of splits with pictures?"""
    return is_flat(folder) or any(any(folder.glob(f"*/{name}")) for name in LISTS)


def metadata_file(folder: Path, split: str | None = None) -> Path | None:
    """The list of a folder of pictures, or of its split, `train` unless one is named; None without one.

    Raises ValueError where several splits have a list and none is `train`.
    """
    for name in LISTS:
        if (folder / name).is_file():
            return folder / name
    found = sorted(file for name in LISTS for file in folder.glob(f"*/{name}"))
    if split is not None or (len(found) > 1 and any(file.parent.name == TRAIN for file in found)):
        found = [file for file in found if file.parent.name == (split or TRAIN)]
    if len(found) > 1:
        names = ", ".join(file.parent.name for file in found)
        raise ValueError(f"folder {folder} holds the splits {names}: choose one with `split`")
    return found[0] if found else None


def splits_of(folder: Path) -> list[str]:
    """The splits of a folder: of files `<split>.jsonl`, of Hugging Face on disk, or of folders and lists named after them."""
    saved = read_json(folder / SAVED[1]) if (folder / SAVED[1]).is_file() else None
    listed = saved.get("splits") if isinstance(saved, dict) else None
    found = [
        *(listed if isinstance(listed, list) else []),
        *(file.stem for file in folder.glob("*.jsonl") if file.name not in LISTS),
    ]
    found += [file.parent.name for name in LISTS for file in folder.glob(f"*/{name}")]
    found += [file.stem.partition("-")[0] for file in tables(folder)]
    # YOLO's and LabelMe's folders, and Pascal VOC's lists
    found += [name for above in ("", "labels") for name in SPLITS if (folder / above / name).is_dir()]
    found += [name for name in SPLITS if (folder / VOC_LISTS / f"{name}.txt").is_file()]
    return sorted(set(map(str, found)))


def rows_of(path: Path, report: Report, split: str | None = None) -> Iterator[Row]:
    """The rows of a file, or of a folder of pictures with its list; rows that cannot be read go into the report.

    Raises FileNotFoundError, or ValueError for a file or folder that holds no rows.
    """
    if not path.is_dir():
        yield from tar_rows(path, report) if path.suffix.lower() == TAR else read_rows(path, report)
        return
    if shards(path):
        for file in shards(path):
            yield from tar_rows(file, report)
        return
    if is_stored(path):
        yield from hf_rows(open_hf(str(path), split), path.name)
        return
    listed, inside = metadata_file(path, split), path / (split or "")
    if listed is None and is_paired(inside):
        yield from paired_rows(path, report, split or "")
        return
    if listed is None:
        refuse_sounds(inside if inside.is_dir() else path)
        raise ValueError(
            f"{path} is a folder without {' or '.join(LISTS)}, data of Hugging Face, <split>.jsonl or texts beside its pictures: "
            "give a file"
        )
    below = listed.parent.relative_to(path).as_posix()
    chosen = split is None and len(splits_of(path)) > 1
    for row in read_rows(listed, report):
        report.notes.update([f"rows of the split {below}: split = NAME reads another"] if chosen else [])
        values = dict(row.values)
        for theirs, ours in FILE_NAMES.items():
            name = values.pop(theirs, None)
            ours = kind_of(name).name if isinstance(name, str) and ours == IMAGE.name else ours
            if name is not None and ours not in values:
                values[ours] = [f"{below}/{one}" for one in name] if isinstance(name, list) else f"{below}/{name}"
        yield Row(values, row.source, row.number)


def split_rows(path: Path, report: Report, split: str | None) -> Iterator[Row]:
    """The rows of a split: of a folder that holds several, or those of a file whose column `split` says so; None: all rows."""
    if path.is_dir() and split is not None and (path / f"{split}.jsonl").is_file():
        path, split = path / f"{split}.jsonl", None
    in_folder = path.is_dir() and not is_whole(path)
    for row in rows_of(path, report, split if in_folder else None):
        with report.collecting(row.place, counts=True):
            if in_folder or split is None or row.split == split:
                yield row


def prompts_in(
    path: str | Path,
    split: str | None,
    image_root: str | Path | None,
    make: Callable[[Row, Path, bool], Prompt | None],
    most: int | None = None,
) -> list[Prompt]:
    """The prompts of a file or folder in its order, at most so many; errors are those of `prompts_from`.

    `make` is given a row, where its relative paths start (None: the file's folder), and whether it may name any file by its
    absolute path; None leaves the row out.
    """
    file = Path(path)
    root = Path(image_root) if image_root is not None else file if file.is_dir() else file.parent
    report = Report(file.name)
    return prompts_from(split_rows(file, report, split), report, lambda row: make(row, root, image_root is None), most)


def look_at(path: Path, columns: Mapping[str, str], split: str | None = None) -> Look:
    """The beginning of a file or folder, with its columns called as the user says.

    Raises FileNotFoundError, or ValueError where it is not what its ending says.
    """
    if path.is_dir():
        names = frozenset(file.name for file in path.iterdir())
        found = _table_rows(path) if is_stored(path) else ()
        if not found and (has_metadata(path) or shards(path) or is_paired(path / (split or ""))):
            found = tuple(islice(rows_of(path, Report(str(path)), split), FIRST))
        return _look(path, found, columns, names)
    if existing(path).suffix.lower() == ".txt":
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return Look(path, line=file.readline(10_000))
    if path.suffix.lower() in (".p", ".xml", *YAML):
        return Look(path)
    if path.suffix.lower() == ".json":
        return _look_at_json(path, columns)
    return _look(path, tuple(islice(rows_of(path, Report(str(path))), FIRST)), columns)


def _look(path: Path, rows: tuple[Row, ...], columns: Mapping[str, str], keys: frozenset[str] = frozenset()) -> Look:
    return Look(path, tuple(rename_columns(row, columns).values for row in rows), keys)


def _look_at_json(path: Path, columns: Mapping[str, str]) -> Look:
    found = read_json(path)
    if isinstance(found, list):
        rows = [Row(values, path.name, i) for i, values in enumerate(found[:FIRST], start=1) if isinstance(values, dict)]
        return _look(path, tuple(rows), columns)
    if not isinstance(found, dict):
        return Look(path)
    keys = set(found)
    images, entry = found.get("images"), next(iter(found.values()), None)
    if isinstance(images, list) and images and isinstance(images[0], dict) and "caption" in images[0]:
        keys.add("caption")
    # an object with time stamps per video
    keys |= {"timestamps"} if isinstance(entry, dict) and "timestamps" in entry else set()
    return Look(path, keys=frozenset(keys))


def _table_rows(folder: Path) -> tuple[Row, ...]:
    """The first rows of the first table of a folder, read without a copy into a cache."""
    files = tables(folder)
    if not files:
        return ()
    file = files[0]
    try:
        if file.suffix == ".parquet":
            batch = next(
                iter(import_extra("pyarrow.parquet", "ParquetFile").ParquetFile(file).iter_batches(batch_size=FIRST)), None
            )
        else:
            with import_extra("pyarrow", "memory_map").memory_map(str(file)) as memory:
                reader = import_extra("pyarrow.ipc", "open_stream").open_stream(memory)
                batch = next(iter(reader), None)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is broken: write or download it again ({error})") from None
    rows = [] if batch is None else batch.slice(0, FIRST).to_pylist()
    return tuple(Row(values, file.name, number) for number, values in enumerate(rows, start=1))


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


TAR = ".tar"
TOLD = (".json", ".txt")
MOST_BYTES = {".json": 2**24, ".txt": 2**20}
"""Bytes of a member by its ending; pictures may have `MOST_PICTURE`."""
MOST_PICTURE = 2**28
_END = bytes(512)
"""A block of zeros ends a whole tar file."""


def shards(folder: Path) -> list[Path]:
    """The tar files of a folder, by name."""
    return sorted(folder.glob(f"*{TAR}"))


def tar_rows(path: Path, report: Report) -> Iterator[Row]:
    """The rows of a tar file in its order, pictures as bytes; what is neither picture, .json nor .txt is counted in the notes.

    Raises FileNotFoundError, or ValueError for an incomplete tar, or one with a member that is refused.
    """
    number, key, values = 0, "", dict[str, Cell]()
    try:
        with existing(path).open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.isdir():
                    continue
                name = _safe_name(member, path)
                if str(name.parent / _stem(name)) != key:
                    if values:
                        number += 1
                        yield Row({"id": key, **values}, path.name, number)
                    key, values = str(name.parent / _stem(name)), {}
                with report.collecting(f"{path.name}, {member.name}", counts=True):
                    said = _columns(archive, member, name, report)
                    # a picture in the tar takes precedence over a path in the JSON
                    values = said | values if name.suffix.lower() in TOLD else values | said
            file.seek(archive.offset)
            if file.read(len(_END)) != _END:
                raise tarfile.ReadError("its end is missing")
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is no whole tar file without compression ({error}): write or download it again") from None
    if values:
        yield Row({"id": key, **values}, path.name, number + 1)


def _safe_name(member: tarfile.TarInfo, path: Path) -> PurePosixPath:
    """The member's name; ValueError for one that is no plain file, lies outside, or is too large."""
    name = PurePosixPath(member.name)
    if not member.isreg() or member.issparse():
        raise ValueError(f"{path} holds {member.name[:200]!r}, a link or special file: pack the files themselves")
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{path} holds {member.name[:200]!r}, which leads out of it: pack the files below one folder")
    most = MOST_BYTES.get(name.suffix.lower(), MOST_PICTURE)
    if member.size > most:
        raise ValueError(f"{path} holds {member.name[:200]!r} of {member.size:,} bytes, more than {most:,}: pack smaller files")
    return name


def _stem(name: PurePosixPath) -> str:
    """The part before the first dot, by which members belong together."""
    return name.name.partition(".")[0]


def _columns(archive: tarfile.TarFile, member: tarfile.TarInfo, name: PurePosixPath, report: Report) -> dict[str, Cell]:
    """The columns of a row that a member fills; ValueError for JSON that is no object and text that is not UTF-8."""
    ending = name.suffix.lower()
    if ending not in (*TOLD, *PICTURE_SUFFIXES):
        report.notes["members left out: neither pictures, .json nor .txt"] += 1
        return {}
    file = archive.extractfile(member)
    assert file is not None
    data = file.read()
    if ending in PICTURE_SUFFIXES:
        # 0001.jpg is the picture, 0001.mask.png the column mask
        column = name.name.partition(".")[2].rpartition(".")[0] or IMAGE.name
        return {column: {"bytes": data, "path": None}}
    if ending == ".txt":
        return {"text": data.decode("utf-8-sig").strip()}
    found = parse_json(data, "this")
    if not isinstance(found, dict):
        raise ValueError(f"it must hold one JSON object, not {type(found).__name__}")
    return {str(column): value for column, value in found.items()}
