"""Webdataset's tar files: members of one name are a row, 0001.jpg with 0001.json or 0001.txt. Nothing is unpacked.

    0001.jpg  0001.json {"question": "How many?", "answer": 3}      0002.png  0002.txt a red fox

Members are read one by one inside the tar; no file is opened by their names. The whole tar is refused if a member is a link,
leads out by `..` or is larger than any picture.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mmrl.core.samples import IMAGE
from mmrl.data.files.pictures import PICTURE_SUFFIXES
from mmrl.data.readers import Cell, Row, existing, parse_json
from mmrl.data.validate import Report

SUFFIX = ".tar"
TEXTS = (".json", ".txt")
MOST = {".json": 2**24, ".txt": 2**20}
"""Bytes of a member by its ending; pictures may have `MOST_PICTURE`."""
MOST_PICTURE = 2**28
_END = bytes(512)
"""A block of zeros ends a whole tar file."""


def shards(folder: Path) -> list[Path]:
    """The tar files of a folder, by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))


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
                    values = said | values if name.suffix.lower() in TEXTS else values | said
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
    most = MOST.get(name.suffix.lower(), MOST_PICTURE)
    if member.size > most:
        raise ValueError(f"{path} holds {member.name[:200]!r} of {member.size:,} bytes, more than {most:,}: pack smaller files")
    return name


def _stem(name: PurePosixPath) -> str:
    """The part before the first dot, by which members belong together."""
    return name.name.partition(".")[0]


def _columns(archive: tarfile.TarFile, member: tarfile.TarInfo, name: PurePosixPath, report: Report) -> dict[str, Cell]:
    """The columns of a row that a member fills; ValueError for JSON that is no object and text that is not UTF-8."""
    ending = name.suffix.lower()
    if ending not in (*TEXTS, *PICTURE_SUFFIXES):
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
