"""Pictures of a server that answers /images/generations in OpenAI's form. Imports no torch."""

import base64
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from PIL import Image

from mmrl.core.samples import Prompt, Sample
from mmrl.runtime.net.fetch import words
from mmrl.runtime.net.secrets import Json
from mmrl.runtime.pictures import open_upright
from mmrl.runtime.ranges import Count, Positive
from mmrl.serving.judges.judge import JudgeError, ServedModel, in_threads, request

FORMATS = ("PNG", "JPEG", "WEBP")
MOST_PIXELS = 2**24
"""Of a picture whose size nobody asked for."""
SEEDS = 2**31
"""Servers read seeds of so many values."""


@dataclass(frozen=True)
class ImagesServer(ServedModel):
    """A server that draws: `painter = { server.url = "http://127.0.0.1:9000/v1" }`."""

    model: str = ""
    """Empty: the request names none."""
    deadline_s: Positive = 900.0
    """For all pictures that are asked for together, retries included."""
    seeds: bool = True
    """False: it takes no seed, as OpenAI's own. Then siblings differ by noise as well as by words, and no picture comes again."""
    longest: Count = 1000
    """Letters of a text; a longer one is refused, since nobody here knows where the server stops reading."""


@dataclass(frozen=True)
class ServedPainter:
    """Draws a picture per prompt by asking a server for each."""

    server: ImagesServer
    width: int | None
    height: int | None

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError for prompts that it cannot draw; nothing is sent."""
        for prompt in prompts:
            self._body(prompt, 0)

    def draw(self, asked: Sequence[tuple[Prompt, int]]) -> list[Sample | Exception]:
        """A sample, or why there is none, per prompt and seed; RewardUnavailableError where no request can succeed."""
        return in_threads(partial(self._one, time.monotonic() + self.server.deadline_s), asked, len(asked))

    def tokens(self, text: str) -> tuple[int, int]:
        """How many letters a text has, and how many of them are sent."""
        return len(text), min(len(text), self.server.longest)

    def _one(self, deadline: float, asked: tuple[Prompt, int]) -> Sample | Exception:
        try:
            body = self._body(*asked)
            answer = request(self.server, "/images/generations", body, deadline)
            return Sample(image=picture_of(answer, body.get("size"), self.server.url))
        except (JudgeError, ValueError) as error:
            return error

    def _body(self, prompt: Prompt, seed: int) -> dict[str, object]:
        if prompt.media:
            raise ValueError(f"prompt {prompt.id!r} holds a picture, and painter.server draws from text alone: leave it out")
        sides = [prompt.columns.get(name, own) for name, own in (("width", self.width), ("height", self.height))]
        if sides.count(None) == 1 or not all(side is None or (type(side) is int and side > 0) for side in sides):
            raise ValueError(f"prompt {prompt.id!r} asks for {sides[0]} x {sides[1]} pixels: name whole numbers, both or none")
        body: dict[str, object] = {"prompt": prompt.text, "n": 1, "response_format": "b64_json"}
        if sides[0] is not None:
            body["size"] = f"{sides[0]}x{sides[1]}"
        if self.server.model:
            body["model"] = self.server.model
        if self.server.seeds:
            body["seed"] = seed % SEEDS
        return body | dict(self.server.extra)


def picture_of(answer: Json, size: object, url: str) -> Image.Image:
    """The one picture of an answer, in RGB; JudgeError where there is none, or of another `size` ("512x512"; None: any)."""
    try:
        (one,) = answer["data"]
        file = io.BytesIO(base64.b64decode(one["b64_json"], validate=True))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise JudgeError(f"{url} answered no picture in data[0].b64_json ({error!r}): {words(str(answer))}") from None
    try:
        with Image.open(file, formats=FORMATS) as picture:
            found = f"{picture.width}x{picture.height}"
            if size not in (None, found) or picture.width * picture.height > MOST_PIXELS:
                raise JudgeError(f"{url} drew {found} pixels, and {size or f'at most {MOST_PIXELS:,}'} were asked for")
            return open_upright(picture, f"{url}: ")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise JudgeError(f"{url} answered a file that is no picture: {words(str(error))}") from None
