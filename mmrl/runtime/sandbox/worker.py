"""The process that runs a model's code: `python -m mmrl.runtime.sandbox.worker`, started by `Sandbox`.

It loads modules, locks itself, and answers one piece of code after the other, which share their variables. What it answers is the
code's own word: whoever reads it trusts neither sizes nor texts.
"""

import importlib
import io
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from mmrl.runtime.sandbox.lock import lock
from mmrl.runtime.sandbox.wire import CUT, LENGTH, LONGEST_ERROR, REPLY, SIZE, read, write

CODE = "<code>"
ENCODINGS = ("ascii", "latin_1", "cp1252", "utf_16", "idna")
Picture = tuple[int, int, bytes]
"""Width, height, and its pixels row by row, three bytes each."""
Answer = tuple[str, str, list[Picture]]
"""What was printed, the error in a sentence, and the pictures that were shown."""


class Printed(io.StringIO):
    """Keeps the first `most` characters."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.is_cut = False

    def write(self, text: str, /) -> int:
        room = max(self.most - self.tell(), 0)
        self.is_cut = self.is_cut or len(text) > room
        super().write(text[:room])
        return len(text)

    def text(self) -> str:
        return self.getvalue() + CUT * self.is_cut


def main() -> None:
    asked, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        # libraries that print would otherwise write into the answers
        os.dup2(nothing, number)
    settings = json.loads(receive(asked))
    try:
        prepare(settings["modules"], settings["seed"])
        lock(settings["memory"], settings["cpu"], settings["parent"])
        forget()
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent says it
        send(answers, "", f"{error}", [])
        return
    send(answers, "", "", [])
    variables: dict[str, object] = {"__name__": "__main__"}
    while True:
        try:
            job = json.loads(receive(asked))
            given = [(width, height, receive(asked)) for width, height in job["sizes"]]
        except EOFError:
            return
        send(answers, *run(job["code"], given, variables, settings))


def prepare(modules: Sequence[str], seed: int) -> None:
    """Load all that code may import, for no file can be opened afterwards, and begin random numbers at the seed."""
    for name in [*modules, "mmrl.runtime.pictures", *(f"encodings.{name}" for name in ENCODINGS)]:
        importlib.import_module(name)
    image = importlib.import_module("PIL.Image")
    image.init()
    random.seed(seed)
    importlib.import_module("numpy").random.seed(seed % 2**32)


def forget() -> None:
    """Take away what code would look for in vain: an import then says that there is no such module, and names no file."""
    sys.path[:] = []
    sys.path_importer_cache.clear()
    os.environ.clear()


def run(code: str, given: Sequence[Picture], variables: dict[str, object], settings: dict[str, Any]) -> Answer:
    """Run one piece of code."""
    from PIL import Image

    shown: list[Picture] = []
    if given:
        images = [Image.frombytes("RGB", (width, height), data) for width, height, data in given]
        variables |= {"images": images, "image": images[0]}
    variables["show"] = Image.Image.show = shower(shown, settings["pictures"], settings["pixels"])
    printed = sys.stdout = sys.stderr = Printed(settings["text"])
    sys.stdin = io.StringIO()
    try:
        exec(compile(code, CODE, "exec"), variables)
    except SystemExit:
        pass
    except BaseException as error:  # noqa: BLE001 - it is the model's code, which may raise anything
        return printed.text(), describe(error), shown
    return printed.text(), "", shown


def shower(shown: list[Picture], most: int, most_pixels: int) -> Callable[..., None]:
    """`show(picture)`: hands a PIL image or an array (height, width, 3 or 4) of bytes out."""

    def show(picture: Any, *_: object, **__: object) -> None:
        from PIL import Image

        from mmrl.runtime.pictures import upright_rgb

        image = upright_rgb(picture if isinstance(picture, Image.Image) else Image.fromarray(picture), lent=True)
        if not 0 < image.width * image.height <= most_pixels or len(shown) == most:
            raise ValueError(f"show() takes {most} pictures of 1 to {most_pixels} pixels, not {image.width} x {image.height}")
        shown.append((*image.size, image.tobytes()))

    return show


def describe(error: BaseException) -> str:
    """`ZeroDivisionError in line 3: division by zero`."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == CODE]
    place = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    where = "" if place is None else f" in line {place}"
    return f"{type(error).__name__}{where}{said and ': '}{said}"[:LONGEST_ERROR]


def receive(pipe: int) -> bytes:
    """One message. Raises EOFError at the end."""
    (size,) = LENGTH.unpack(read(pipe, LENGTH.size))
    return read(pipe, size)


def send(pipe: int, text: str, error: str, pictures: Sequence[Picture]) -> None:
    texts = [part.encode("utf-8", "replace") for part in (text, error)]
    sizes = b"".join(SIZE.pack(width, height) for width, height, _ in pictures)
    for data in (REPLY.pack(*map(len, texts), len(pictures)), sizes, *texts, *(data for *_, data in pictures)):
        write(pipe, data)


if __name__ == "__main__":
    main()
