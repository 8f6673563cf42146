"""Readers of text and detectors of objects by name: what a package holds, what a server answers, or a function."""

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

from PIL import Image

from mmrl.runtime.net.fetch import HttpRequest, fetch
from mmrl.serving.scorers.detectors import detector_of
from mmrl.serving.scorers.readers import reader as rapidocr

Objects = Sequence[tuple[str, float, tuple[float, float, float, float]]]
"""Label, score, and x1, y1, x2, y2 in pixels."""
Read = Callable[[Image.Image], str]
Find = Callable[[Image.Image], Objects]


@cache
def reader_of(reader: str | Callable[[Image.Image], str | None], threshold: float, seconds: float) -> Read:
    """Reads the text in a picture: rapidocr, the address of a server, or a function as it is.

    Raises ValueError for another name, ModuleNotFoundError without the package.
    """
    if not isinstance(reader, str):
        return lambda picture: text_of(reader(picture), "the reader")
    if "://" in reader:
        return lambda picture: text_of(ask(reader, picture, threshold, seconds).get("text"), reader)
    if reader != "rapidocr":
        raise ValueError(f"reader is {reader!r}: write rapidocr, the address of a server, or ./mine.py:read")
    read = rapidocr(1)
    return lambda picture: read(picture, threshold)


def text_of(answer: object, who: str) -> str:
    """The text that a function or a server read, None for none; ValueError for anything else."""
    if not isinstance(answer, str | None):
        raise ValueError(f"{who} answered {type(answer).__name__} in place of a text: let it answer one, or None for none")
    return answer or ""


@cache
def finder_of(detector: str | Callable[[Image.Image], object], threshold: float, seconds: float) -> Find:
    """Finds objects in a picture: ssd_mobilenet, a hub id or a folder, the address of a server, or a function as it is.

    Raises what `detector_of` raises.
    """
    if not isinstance(detector, str):
        return lambda picture: sure(objects_of(detector(picture), "the detector"), threshold)
    if "://" in detector:
        return lambda picture: sure(objects_of(ask(detector, picture, threshold, seconds).get("objects"), detector), threshold)
    find = detector_of(detector)
    return lambda picture: [(one.label, one.score, one.corners) for one in find([picture], threshold)[0]]


def objects_of(answer: object, who: str) -> Objects:
    """The objects that a function or a server names; ValueError, KeyError or TypeError for what names none."""
    if not isinstance(answer, list):
        raise ValueError(f"{who} answered no list of objects")
    found: list[tuple[str, float, tuple[float, float, float, float]]] = []
    for one in cast(list[Mapping[str, Any]], answer):
        x1, y1, x2, y2 = map(float, one["box"])
        found.append((str(one["label"]), float(one["score"]), (x1, y1, x2, y2)))
    return found


def ask(address: str, picture: Image.Image, threshold: float, seconds: float) -> Mapping[str, Any]:
    """A server's answer about a picture. Raises RuntimeError, ValueError or what `fetch` raises where there is none."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    body = json.dumps({"image": base64.b64encode(buffer.getvalue()).decode(), "threshold": threshold}).encode()
    answer = fetch(HttpRequest("POST", address, {"Content-Type": "application/json"}, body), seconds)
    if answer.status != 200:
        raise RuntimeError(f"{address} answered {answer.status}")
    table: object = json.loads(answer.content)
    if not isinstance(table, Mapping):
        raise ValueError(f"{address} answered no table")
    return cast(Mapping[str, Any], table)


def sure(objects: Objects, threshold: float) -> Objects:
    """The objects of at least this score."""
    return [one for one in objects if one[1] >= threshold]
