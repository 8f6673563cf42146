"""Pictures that texts ask for, drawn once for all who ask, whichever thread they ask from. Imports no torch."""

import base64
import hashlib
import io
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.core.samples import Prompt, Sample
from mmrl.runtime.blame import RewardUnavailableError, describe
from mmrl.runtime.net.fetch import words
from mmrl.runtime.net.secrets import Json
from mmrl.runtime.pictures import open_upright, upright_rgb
from mmrl.runtime.ranges import Count, CountOrNone, Factor, Positive, check_ranges
from mmrl.serving.files import refuse_own_code
from mmrl.serving.judges.judge import JudgeError, ServedModel, in_threads, request
from mmrl.serving.scorers.sizes import ModelSize, size_by

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


log = logging.getLogger("mmrl")
Asked = tuple[Prompt, int]
"""A prompt as the painter reads it, and the seed of its noise."""
Drawn = Sample | Exception
"""What was drawn, or why it could not be."""


@dataclass(frozen=True)
class Painting:
    """Who draws, and how: `painter = { model = "stabilityai/stable-diffusion-3.5-medium", num_steps = 20 }`."""

    model: str = ""
    """Folder or hub id of a generator of pictures; or `run`, or `server`."""
    run: str = ""
    """The folder of a run whose model draws, as it draws held-out prompts."""
    step: Count | None = None
    """With `run`: its checkpoint; None: the newest when this process first draws, which then stays."""
    server: ImagesServer | None = None
    """A server that draws, whose own settings count; None: none."""
    num_steps: Count | None = None
    """Denoising steps; None: as [evaluation] has them."""
    guidance: Factor | None = None
    """1 = none; None: as [evaluation] has it."""
    width: Count | None = None
    """Pixels; None: as [policy] has it."""
    height: Count | None = None
    """Pixels; None: as [policy] has it."""
    policy: Mapping[str, object] = field(default_factory=dict)
    """Further keys of [policy]: `{ dtype = "bfloat16" }`; `kind = "token_image"` for models of codes."""
    device: str = "auto"
    """Where it draws: auto (the GPU if there is one), cpu, cuda or cuda:1."""
    rows: Count = 8
    """The most pictures that are drawn side by side, or asked for at a time; one does not depend on what is drawn beside it."""
    kept: CountOrNone = 256
    """Number of pictures kept in memory, those asked for last: what is asked for again is not drawn again."""
    trust_remote_code: bool = False
    """True: Python files of the model or of the run's model run, with your rights."""

    # read by pydantic when a config's table becomes a Painting: a misspelt key is an error
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - pydantic's name and type

    def __post_init__(self) -> None:
        check_ranges(self)
        drawing = [f"painter.{name}" for name in ("model", "run", "server") if getattr(self, name)]
        if len(drawing) > 1:
            raise ValueError(f"{' and '.join(drawing)} are set, and one of them draws: leave the others out")
        local = ("num_steps", "guidance", "policy", "device", "trust_remote_code")
        others = [f"painter.{name}" for name in local if getattr(self, name) not in (None, {}, "auto", False)]
        if self.server and others:
            raise ValueError(
                f"{' and '.join(others)} count for models of this process, and a server draws as it is set up: leave it out, or "
                "put what the server's requests take into painter.server.extra"
            )
        if self.run and (self.policy or self.width or self.height):
            raise ValueError(
                "painter.policy, width and height go with painter.model, and a run's model is as it was trained: leave them out"
            )
        if self.step is not None and not self.run:
            raise ValueError("painter.step is a checkpoint of painter.run, which is not set: leave it out, or name the run")

    @property
    def place(self) -> str:
        """The model's name in messages."""
        if self.server:
            return f"painter.server {self.server.url}"
        return f"painter.run: {self.run}" if self.run else f"painter.model {self.model!r}"

    def ready(self) -> None:
        """Look at the painter's files, or ask its server whether it is there, before any weights load.

        Raises FileNotFoundError, ValueError or RewardUnavailableError where there is no such model, it writes, or it draws other
        things than pictures.
        """
        if self.server:
            self.server.ready()
        if self.run:
            if not (Path(self.run).expanduser() / "config.toml").is_file():
                raise RewardUnavailableError(f"painter.run: {self.run!r} holds no run: name the folder of a run that draws")
            kept = "step-*" if self.step is None else f"step-{self.step}"
            if not any((Path(self.run).expanduser() / "checkpoints").glob(kept)):
                raise RewardUnavailableError(f"painter.run: {self.run!r} has no checkpoint {kept}: train it, or name another")
            refuse_own_code(self.run, self.trust_remote_code, self.place)
        _ = studio_of(self).painter

    def models(self) -> list[ModelSize]:
        """The model that it holds, counted by its config files; none where a server draws."""
        return [] if self.server else [size_by(self.run or self.model, self.device, lambda: self.painter().num_weights)]

    def painter(self) -> Any:
        """Who draws, its settings checked; its weights load with the first picture. ValueError where nobody does."""
        if self.server:
            return ServedPainter(self.server, self.width, self.height)
        if not self.model and not self.run:
            raise ValueError(
                "no painter draws: set painter.model to a generator, painter.run to a run of yours, or painter.server.url"
            )
        # loads torch, which servers of other rewards do without
        from mmrl import load_painter

        return load_painter(self)


class Studio:
    """One painter of this process, asked from any thread. What several ask for at a time is drawn together, equal ones once."""

    def __init__(self, painting: Painting) -> None:
        self.painting = painting
        self.asked = self.drawn = self.calls = 0
        """Pictures asked for and drawn so far, and calls of the painter for them."""
        self._kept: OrderedDict[str, Sample] = OrderedDict()
        self._pending: dict[str, tuple[Asked, Future[Drawn]]] = {}
        """Asked for and not drawn yet, by name; never thrown away, for somebody waits."""
        self._tables, self._brush = threading.Lock(), threading.Lock()
        self._said = set[type[Exception]]()

    @cached_property
    def painter(self) -> Any:
        made = self.painting.painter()
        if self.painting.server and not self.painting.server.seeds:
            log.warning(
                "%s is given no seeds: the texts of a group begin from noise of their own, and what is drawn again, as after a "
                "resume, differs",
                self.painting.place,
            )
        return made

    def pin(self, step: int) -> None:
        """Draw with this checkpoint from now on."""
        self.painting = replace(self.painting, step=step)
        vars(self).pop("painter", None)

    def pictures(self, asked: Sequence[Asked]) -> list[Drawn]:
        """In the order asked; a text that cannot be drawn has its own error, and leaves the others alone.

        Raises RewardUnavailableError where the painter cannot be had at all.
        """
        names = [name_of(*one) for one in asked]
        found: dict[str, Sample] = {}
        waiting: dict[str, Future[Drawn]] = {}
        with self._tables:
            self.asked += len(asked)
            for name, one in zip(names, asked, strict=True):
                if name in self._kept:
                    self._kept.move_to_end(name)
                    found[name] = self._kept[name]
                elif name not in waiting:
                    waiting[name] = self._pending.setdefault(name, (one, Future()))[1]
        if waiting:
            with self._brush:
                if not all(future.done() for future in waiting.values()):
                    self._draw_pending()
        return [found[name] if name in found else waiting[name].result() for name in names]

    def _draw_pending(self) -> None:
        """Draw for everybody who waits; on the way out nobody waits any more, whatever happened."""
        with self._tables:
            pending = list(self._pending.items())
        try:
            for i in range(0, len(pending), self.painting.rows):
                some = pending[i : i + self.painting.rows]
                for (name, (_, future)), made in zip(some, self._some([one for _, (one, _) in some]), strict=True):
                    self._settle(name, future, made)
        except BaseException as error:
            for name, (_, future) in pending:
                if not future.done():
                    with self._tables:
                        self._pending.pop(name, None)
                    future.set_exception(error if isinstance(error, Exception) else RuntimeError("drawing was interrupted"))
            raise

    def _settle(self, name: str, future: "Future[Drawn]", made: Drawn) -> None:
        with self._tables:
            self._pending.pop(name, None)
            if isinstance(made, Sample) and self.painting.kept:
                self._kept[name] = made
                while len(self._kept) > self.painting.kept:
                    self._kept.popitem(last=False)
        future.set_result(made)

    def _some(self, asked: Sequence[Asked]) -> list[Drawn]:
        """Together, or each alone where that fails, so that an error stays with its own text."""
        self.calls += 1
        try:
            made: list[Drawn] = list(self.painter.draw(asked))
        except RewardUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - models raise whatever a text provokes
            if len(asked) > 1:
                return [one for single in asked for one in self._some([single])]
            made = [error]
        for (prompt, _), one in zip(asked, made, strict=True):
            if isinstance(one, Sample):
                self.drawn += 1
            elif type(one) not in self._said:
                self._said.add(type(one))
                log.warning(
                    "%s could not draw %r: %s; this kind is said once", self.painting.place, prompt.text[:80], describe(one)
                )
        return made


_STUDIOS: dict[str, Studio] = {}
_LOCK = threading.Lock()


def studio_of(painting: Painting) -> Studio:
    """The process's studio of a painter: rewards and worlds with equal tables share one."""
    key = json.dumps(asdict(painting), sort_keys=True, default=str)
    with _LOCK:
        return _STUDIOS.setdefault(key, Studio(painting))


def unpinned() -> list[Studio]:
    """Those of this process that draw with the newest checkpoint of a run."""
    return [studio for studio in _STUDIOS.values() if studio.painting.run and studio.painting.step is None]


def name_of(prompt: Prompt, seed: int) -> str:
    """Equal where two requests ask for the same picture."""
    size = [prompt.columns.get("width"), prompt.columns.get("height")]
    shown = [hashlib.sha256(upright_rgb(open_upright(media)).tobytes()).hexdigest() for media in prompt.media]
    return repr((prompt.text, seed, size, shown))


def seed_of(*parts: object) -> int:
    """A seed of 63 bits from whatever names a picture."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


def encodable(text: str) -> str:
    """The text without half characters, which tokenizers refuse and files cannot hold."""
    return text.encode(errors="replace").decode()
