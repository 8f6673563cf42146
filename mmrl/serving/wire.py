"""Groups and scores as bytes: one safetensors buffer, arrays as tensors and everything else as JSON in its header.

Nothing on either side is ever executed: the reader builds the types named here and no others.
"""

import json
import math
import os
import re
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.answers.spans.interval import Interval
from mmrl.core.samples import (
    KINDS,
    ClipTime,
    Group,
    MediaSize,
    Observation,
    Prompt,
    Sample,
    Scored,
    Segment,
    Status,
    Turn,
    kind_of,
)
from mmrl.runtime.blame import by_name
from mmrl.runtime.pictures import upright_rgb

Json = Any
"""A value of a message, on its way from JSON to what it describes; a wrong shape raises, and the reader says so."""
Array = np.ndarray
PROTOCOL = 1
"""Both sides must speak the same one."""
HEADER_KEY = "mmrl"
KNOWN: dict[str, type] = {known.__name__: known for known in (Group, Prompt, Sample, Segment, Turn, Observation, Box, Interval)}
MOST_HEADER_BYTES = 2**26
"""JSON unfolds to some ten times its size in memory; the texts of a large group take a few million bytes."""
LARGEST_SIDE = 2**48
"""Of an array: no body is longer, and products of larger ones are numbers that no message can hold."""
MOST_PARTS, LONGEST_PART = 256, 200
"""Parts of a reply's scores by name, and letters of a name: every name is a metric of the run."""
PICKLE_STARTS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class WireError(ValueError):
    """Bytes or values that do not fit the protocol; the message says which."""


@dataclass(frozen=True)
class ServedScores:
    """A served reward's answers for one group."""

    values: tuple[float, ...]
    """NaN where the status is not OK."""
    status: tuple[Status, ...]
    parts: tuple[Mapping[str, float], ...]
    fingerprint: str
    """A hash of the source and settings of the reward that answered."""
    raised: str | None = None
    """The exception of a reward that raised: type and text."""


def pack_group(group: Group) -> bytes:
    """Pack a group; WireError for a column that cannot travel, FileNotFoundError where a file of its media is not there."""
    arrays: dict[str, Array] = {}
    return _save(_encode(group, arrays, "group"), arrays)


def unpack_group(body: bytes, folder: Path) -> Group:
    """Unpack a group (or WireError). Files of its media go to `folder`, which the caller removes once it is scored."""
    header, arrays = _load(body)
    try:
        group = _decode(header, arrays, folder)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise error if isinstance(error, WireError) else WireError(f"the message does not describe a group: {error}") from None
    if not isinstance(group, Group):
        raise WireError(f"the body holds {type(group).__name__}, not a Group")
    check_group(group)
    return group


def pack_reply(reply: ServedScores) -> bytes:
    header = {"parts": [dict(p) for p in reply.parts], "fingerprint": reply.fingerprint, "raised": reply.raised}
    arrays = {"values": np.asarray(reply.values, np.float64), "status": np.asarray([int(s) for s in reply.status], np.int8)}
    return _save(_encode(header, arrays, "reply"), arrays)


def unpack_reply(body: bytes) -> ServedScores:
    """Unpack a reply; WireError if the bytes are none."""
    header, arrays = _load(body)
    try:
        header = _decode(header, arrays, None)
        values, status = arrays["values"].tolist(), [Status(s) for s in arrays["status"].tolist()]
        parts = tuple({str(name): float(part) for name, part in own.items()} for own in header["parts"])
        refuse_odd_parts({name for own in parts for name in own})
        if not len(values) == len(status) == len(parts):
            raise WireError(f"the reply holds {len(values)} values, {len(status)} states and parts of {len(parts)} samples")
        fingerprint, raised = header["fingerprint"], header["raised"]
        if not isinstance(fingerprint, str) or not isinstance(raised, str | None):
            raise WireError("the reply's fingerprint or exception is no text")
        return ServedScores(tuple(map(float, values)), tuple(status), parts, fingerprint, raised)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise error if isinstance(error, WireError) else WireError(f"the message is no reply of a reward: {error}") from None


def refuse_odd_parts(names: set[str]) -> None:
    """Raise WireError for more parts of scores than a run can show, or for names of them that cannot be shown."""
    if len(names) > MOST_PARTS:
        raise WireError(f"the reply has {len(names)} different parts, and at most {MOST_PARTS} are read")
    long = max(names, key=len, default="")
    if len(long) > LONGEST_PART:
        raise WireError(f"the reply has a part called {long[:40]!r}... of {len(long)} letters, and {LONGEST_PART} are read")
    odd = next((name for name in names if not name.isprintable()), None)
    if odd is not None:
        raise WireError(f"the reply has a part called {odd!r}, which cannot be printed")


def reply_of(answers: Sequence[float | Scored | None], fingerprint: str) -> ServedScores:
    """The reply that holds a reward's answers, in order; WireError for one that is neither a float, None nor Scored."""
    values, status, parts = [], [], []
    for answer in answers:
        try:
            value, own = (answer.value, answer.parts) if isinstance(answer, Scored) else by_name(answer)
            number = math.nan if value is None else float(value)
        except (TypeError, ValueError):
            raise WireError(f"the reward answered {answer!r}: return a float, None or Scored per sample") from None
        values.append(number)
        status.append(Status.NA if value is None else Status.FAILED if math.isnan(number) else Status.OK)
        parts.append({name: float(part) for name, part in own.items()})
    return ServedScores(tuple(values), tuple(status), tuple(parts), fingerprint)


def array_shapes(body: bytes) -> list[tuple[int, ...]]:
    """Shapes of all arrays, read from the header alone."""
    header = _header(body)
    try:
        shapes = [tuple(int(side) for side in entry["shape"]) for name, entry in header.items() if name != "__metadata__"]
        if any(not 0 <= side <= LARGEST_SIDE for shape in shapes for side in shape):
            raise OverflowError
        return shapes
    except (KeyError, OverflowError, TypeError, ValueError):
        raise WireError("the body is no safetensors buffer: its header describes no arrays") from None


def file_pixels(file: Path) -> int:
    """Pixels of a picture, from its file's header alone; 0 for other files."""
    try:
        with Image.open(file) as picture:
            return picture.width * picture.height
    except Image.DecompressionBombError:
        return 2 * (Image.MAX_IMAGE_PIXELS or 0) + 1
    except (OSError, ValueError, SyntaxError):
        return 0


def _encode(value: object, arrays: dict[str, Array], place: str) -> object:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float | np.integer | np.floating | np.bool_):
        number = value.item() if isinstance(value, np.generic) else value
        return number if math.isfinite(number) else {"$float": str(number)}
    if isinstance(value, MediaSize):
        return {"$type": "MediaSize", "sizes": list(value)}
    if isinstance(value, ClipTime):
        return {"$type": "ClipTime", "times": [_encode(time, arrays, place) for time in value]}
    if is_dataclass(value) and type(value).__name__ in known_types():
        return {"$type": type(value).__name__} | _fields(value, arrays, place)
    if isinstance(value, list | tuple):
        items = [_encode(item, arrays, f"{place}[{i}]") for i, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        pairs = [[_encode(k, arrays, place), _encode(v, arrays, f"{place}[{k!r}]")] for k, v in value.items()]
        return {"$dict": pairs}
    return _array(value, arrays, place)


def _fields(value: Any, arrays: dict[str, Array], place: str) -> dict[str, object]:
    """The encoded fields of a dataclass; files that it names travel as their bytes."""
    encoded: dict[str, object] = {}
    name_files = kind_of(value).files
    for f in fields(value):
        if not f.init:
            continue
        item, where = getattr(value, f.name), f"{place}.{f.name}"
        if isinstance(value, Prompt | Observation) and f.name == "media":
            encoded[f.name] = {"$tuple": [_medium(m, arrays, where) for m in item]}
        elif f.name == name_files:
            files = [_file(name, arrays) for name in ([item] if isinstance(item, str) else item)]
            encoded[f.name] = files[0] if isinstance(item, str) else {"$tuple": files}
        else:
            encoded[f.name] = _encode(item, arrays, where)
    return encoded


def _medium(medium: object, arrays: dict[str, Array], place: str) -> object:
    return _file(medium, arrays) if isinstance(medium, str | Path) else _encode(medium, arrays, place)


def _file(name: str | Path, arrays: dict[str, Array]) -> dict[str, str]:
    key = f"file.{len(arrays)}"
    arrays[key] = np.frombuffer(Path(name).read_bytes(), np.uint8)
    return {"$file": key, "suffix": Path(name).suffix}


def _array(value: Any, arrays: dict[str, Array], place: str) -> dict[str, str]:
    if isinstance(value, Image.Image):
        key = f"image.{len(arrays)}"
        shown = upright_rgb(value, lent=True)
        arrays[key] = np.asarray(shown.convert("L") if value.mode == "L" else shown)
        return {"$image": key}
    array = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biufc":
        raise WireError(
            f"{place} holds {type(value).__name__}, which cannot travel to a reward server: only text, numbers, boxes, "
            "intervals, pictures, arrays of numbers and lists or dicts of these do. Drop the column, or score it in this process"
        )
    key = f"array.{len(arrays)}"
    arrays[key] = array
    return {"$array": key}


def check_group(group: Group) -> None:
    """Raise WireError where a part that a server looks at itself is of another type; the others are for the rewards to judge."""
    probes = [group.probes] if not isinstance(group.probes, Mapping) else group.probes.values()
    if not isinstance(group.prompt, Prompt) or not isinstance(group.prompt.media, tuple):
        raise WireError("the message's group has no prompt, or one whose media are no tuple")
    for samples in (group.samples, *probes):
        if not isinstance(samples, tuple) or not all(isinstance(sample, Sample) for sample in samples):
            raise WireError("the message's group holds something else than samples")


def _decode(value: Json, arrays: dict[str, Array], folder: Path | None) -> Json:
    if isinstance(value, list):
        return [_decode(item, arrays, folder) for item in value]
    if not isinstance(value, dict):
        return value
    if "$type" in value:
        return _build(value, arrays, folder)
    if "$tuple" in value:
        return tuple(_decode(item, arrays, folder) for item in value["$tuple"])
    if "$dict" in value:
        return {_decode(k, arrays, folder): _decode(v, arrays, folder) for k, v in value["$dict"]}
    if "$float" in value:
        return float(value["$float"])
    if "$image" in value:
        return Image.fromarray(_take_array(arrays, value["$image"]))
    if "$array" in value:
        return _take_array(arrays, value["$array"])
    if "$file" in value:
        return _write(_take_array(arrays, value["$file"]), str(value.get("suffix", "")), folder)
    return {key: _decode(item, arrays, folder) for key, item in value.items()}


def known_types() -> dict[str, type]:
    """The types that a message may name: the dataclasses of media, and those of `KNOWN`."""
    return KNOWN | {kind.source.__name__: kind.source for kind in KINDS.values() if kind.source is not None}


def _build(value: dict[str, Json], arrays: dict[str, Array], folder: Path | None) -> Json:
    name = value["$type"]
    if name == "MediaSize":
        return MediaSize(*map(int, value["sizes"]))
    if name == "ClipTime":
        seconds, fps, frames = _decode(value["times"], arrays, folder)
        return ClipTime(float(seconds), float(fps), int(frames))
    known = known_types()
    if name not in known:
        raise WireError(f"type {name!r} is not part of the protocol")
    return known[name](**{key: _decode(item, arrays, folder) for key, item in value.items() if key != "$type"})


def _write(array: Array, suffix: str, folder: Path | None) -> str:
    if folder is None:
        raise WireError("the message holds a file, and only groups do")
    if not re.fullmatch(r"\.[A-Za-z0-9]{1,5}", suffix):
        suffix = ""
    descriptor, name = tempfile.mkstemp(suffix, dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(array.tobytes())
    return name


def _take_array(arrays: dict[str, Array], name: str) -> Array:
    """Take an array out: a small message that named one a million times would otherwise unfold to a huge group."""
    if name not in arrays:
        raise WireError(f"the header speaks of an array {name!r} that is not there, or speaks of it twice")
    return arrays.pop(name)


def _save(header: object, arrays: Mapping[str, Array]) -> bytes:
    from safetensors.numpy import save

    plain = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    return save(plain, {HEADER_KEY: json.dumps({"protocol": PROTOCOL, "value": header}, allow_nan=False)})


def _load(body: bytes) -> tuple[Json, dict[str, Array]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    header = _header(body)
    try:
        envelope = json.loads(header["__metadata__"][HEADER_KEY])
        arrays = load(body)
    except (AttributeError, LookupError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise WireError(f"the body is no message of mmrl: {error}") from None
    if not isinstance(envelope, dict) or "value" not in envelope:
        raise WireError("the body is no message of mmrl: its header has no value")
    if envelope.get("protocol") != PROTOCOL:
        raise WireError(f"the message speaks protocol {envelope.get('protocol')}, this side {PROTOCOL}: install the same mmrl")
    return envelope["value"], arrays


def _header(body: bytes) -> dict[str, Json]:
    """The JSON header of a safetensors buffer."""
    (length,) = struct.unpack("<Q", body[:8]) if len(body) >= 8 else (len(body),)
    if MOST_HEADER_BYTES < length <= len(body) - 8:
        raise WireError(f"the header of the body has {length} bytes, more than the {MOST_HEADER_BYTES} that are read")
    try:
        header = json.loads(body[8 : 8 + length]) if length <= len(body) - 8 else None
    except (ValueError, RecursionError):
        header = None
    # looked at last: a buffer whose header is 1152 bytes long begins as a pickle does
    if header is None and body.startswith(PICKLE_STARTS):
        raise WireError("the body is a pickle: unpickling runs the sender's code, so only safetensors is read")
    if header is None:
        raise WireError("the body is no safetensors buffer: it does not begin with the length of a JSON header and that header")
    if not isinstance(header, dict) or "__metadata__" not in header:
        raise WireError("the body is a safetensors buffer without mmrl's header")
    return header
