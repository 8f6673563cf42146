"""Readers of text in pictures: PP-OCR's networks out of packages. Imports no torch."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from PIL import Image

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
