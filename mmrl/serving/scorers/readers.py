"""Readers of text in pictures, and finders of objects: out of packages, of a server, or functions. Imports no torch."""

import base64
import io
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np
from PIL import Image

from mmrl.runtime.net.fetch import HttpRequest, fetch
from mmrl.serving.files import EXTRA, file_of_package, import_package

WEIGHTS = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
HEIGHT = 48
"""Height of a line in pixels, as the recogniser wants it."""
WIDTHS = (16, 48 * 40)
"""Least and most of a line. Padding to one width makes small pictures unreadable, so widths follow the pictures."""
HEADLESS = "install opencv-python-headless in place of opencv-python, or set engine = 'recogniser', which does without"


class Recogniser:
    """PP-OCRv4's recogniser with greedy CTC: the best class of every column, repetitions joined, blanks left out."""

    def __init__(self, threads: int) -> None:
        runtime = import_package("onnxruntime")
        try:
            file = file_of_package(WEIGHTS, "rapidocr-onnxruntime==1.4.4")
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error}; {EXTRA} brings it, too") from None
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        letters = self.session.get_modelmeta().custom_metadata_map["character"].splitlines()
        self.letters = ["", *letters, " "]

    def __call__(self, pictures: Sequence[Image.Image], batch_size: int) -> list[str]:
        by_width: defaultdict[int, list[int]] = defaultdict(list)
        for i, picture in enumerate(pictures):
            by_width[min(max(round(HEIGHT * picture.width / picture.height), WIDTHS[0]), WIDTHS[1])].append(i)
        texts = [""] * len(pictures)
        for width, places in by_width.items():
            for start in range(0, len(places), batch_size):
                some = places[start : start + batch_size]
                small = [pictures[i].resize((width, HEIGHT), Image.Resampling.BILINEAR) for i in some]
                # the networks were trained on blue, green, red
                pixels = np.stack([np.asarray(picture, np.float32)[..., ::-1].transpose(2, 0, 1) for picture in small])
                (answer,) = self.session.run(None, {self.session.get_inputs()[0].name: pixels / 127.5 - 1})
                for i, best in zip(some, np.asarray(answer).argmax(2).tolist(), strict=True):
                    texts[i] = "".join(self.letters[a] for a, b in zip(best, [0, *best], strict=False) if a != b)
        return texts


@lru_cache(maxsize=4)
def recogniser(threads: int) -> Recogniser:
    """The recogniser, loaded once."""
    return Recogniser(threads)


@lru_cache(maxsize=4)
def reader(threads: int) -> Callable[[Image.Image, float], str]:
    """A function that reads all lines of a picture that it is at least so sure of; loaded once, one picture at a time."""
    try:
        package, lock = import_package("rapidocr"), threading.Lock()
    except ModuleNotFoundError:
        raise
    except ImportError as error:
        raise ImportError(f"OpenCV, which rapidocr needs, does not load ({error}): {HEADLESS}") from error
    settings = {"Global.use_cls": False, "Global.log_level": "error", "EngineConfig.onnxruntime.intra_op_num_threads": threads}
    engine = package.RapidOCR(params=settings)

    def read(picture: Image.Image, confidence: float) -> str:
        with lock:
            found = engine(np.ascontiguousarray(np.asarray(picture)[..., ::-1]))
        lines = zip(found.txts or (), found.scores or (), strict=True)
        return " ".join(text for text, sure in lines if sure >= confidence)

    return read


Objects = Sequence[tuple[str, float, tuple[float, float, float, float]]]
"""Label, score, and x1, y1, x2, y2 in pixels."""
Read = Callable[[Image.Image], str]
Find = Callable[[Image.Image], Objects]


@cache
def reader_of(named: str | Callable[[Image.Image], str | None], threshold: float, seconds: float) -> Read:
    """Reads the text in a picture: rapidocr, the address of a server, or a function as it is.

    Raises ValueError for another name, ModuleNotFoundError without the package.
    """
    if not isinstance(named, str):
        return lambda picture: text_of(named(picture), "the reader")
    if "://" in named:
        return lambda picture: text_of(ask(named, picture, threshold, seconds).get("text"), named)
    if named != "rapidocr":
        raise ValueError(f"reader is {named!r}: write rapidocr, the address of a server, or ./mine.py:read")
    read = reader(1)
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
    from mmrl.serving.scorers.detectors import detector_of  # imports torch

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


def ask(address: str, picture: Image.Image, threshold: float, seconds: float) -> Mapping[str, object]:
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
    return cast(Mapping[str, object], table)


def sure(objects: Objects, threshold: float) -> Objects:
    """The objects of at least this score."""
    return [one for one in objects if one[1] >= threshold]
