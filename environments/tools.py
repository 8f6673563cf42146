"""Tools for a model that looks again: zoom, draw, frames, ocr, detect, and Python in a sandbox, those that the run names.

A turn's last call is followed, and answered with text and pictures; a turn without one is the answer. `form` says how calls are
written: `<tool_call>{"name": "zoom", "arguments": {"bbox_2d": [x1, y1, x2, y2]}}</tool_call>` (tags: Hermes, Qwen, DeepEyes),
`{"thought": "..", "actions": [{"name": "zoom", "arguments": {..}}]}` (json: OpenThinkIMG, where Terminate ends), or
`<code>..</code>` (code: Thyme), which calls python. A call that cannot be followed is answered by what is wrong with it.

    zoom    bbox_2d, image            the part of a picture, from its file
    draw    marks, image              marks are {"point": [x, y]}, {"box": [x1, y1, x2, y2]}, {"line": [x1, y1, x2, y2]}
    frames  times, video              the frames of a clip at these seconds
    ocr     image, bbox_2d            the text in a picture, or in a part of it
    detect  image, labels             the objects in a picture, with their boxes
    python  code                      what the code prints and shows; `images` are all pictures so far

`image` counts the pictures of the prompt, then those that were shown, and may be left out, as `video`.

Facts: tool (1 for a call that was followed), error (1 for one that could not be), and 1 under the name of the tool.

Needs: ocr and detect: a reader and a detector, see their fields; python: Linux with Landlock and seccomp (`mmrl doctor` says)
Source: the tools of OpenThinkIMG (arXiv:2505.08617), Thyme (arXiv:2508.11630) and DeepEyes (arXiv:2505.14362)
Licence: own code Apache-2.0
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from mmrl import Observation, Prompt, Turn
from mmrl.answers.boxes.box import Space
from mmrl.answers.calls import PYTHON, CallError, Form, parse_call
from mmrl.core.samples import Video, kind_of
from mmrl.data.files.pictures import open_picture
from mmrl.data.tools.foreign import mistake
from mmrl.data.tools.toolbox import Toolbox
from mmrl.runtime.ranges import Positive, Range, Share, check_ranges
from mmrl.runtime.sandbox.lock import missing
from mmrl.runtime.sandbox.sandbox import SandboxLimits
from mmrl.serving.scorers.readers import Objects, finder_of, reader_of

__all__ = ["Tools"]

Name = Literal["zoom", "draw", "frames", "ocr", "detect", "python"]
OVER = "terminate"
"""The action of OpenThinkIMG that ends an episode."""


@dataclass(frozen=True)
class Tools:
    """Follows the calls of a model. ValueError for python where this machine has no sandbox."""

    tools: tuple[Name, ...] = ("zoom", "draw", "frames")
    """The tools that may be called; python runs the model's own code, and is off unless it is named."""
    form: Form = "tags"
    """How calls are written."""
    space: Space | Literal["auto"] = "auto"
    """How the model writes boxes and points; auto: as the run's policy does."""
    words: str = "Your answer?"
    """The text behind pictures that are shown."""
    reader: str | Callable[[Any], str | None] = "rapidocr"
    """Of ocr: rapidocr (pip install "mmrl[rewards]"), a server's address, or `./mine.py:read`, a function of a PIL picture. A
    server is sent {"image": PNG in base64, "threshold": ..} and answers {"text": ..}."""
    detector: str | Callable[[Any], object] = "ssd_mobilenet"
    """Of detect: ssd_mobilenet (opencv-python-headless), a detector's hub id or folder, a server's address, or `./mine.py:find`.
    Functions and servers answer a list of objects {"label": .., "score": .., "box": [x1, y1, x2, y2] in pixels}; the latter under
    "objects"."""
    threshold: Share = 0.5
    """Lines and objects that reader and detector are less sure of are left out."""
    seconds: Positive = 5.0
    """The longest that a piece of code, or a server, may take."""
    text: Annotated[int, Range(1, 1 << 20)] = 2048
    """Characters that python prints."""
    memory: Annotated[int, Range(64, 1 << 20)] = 1024
    """MiB that the python of an episode may take; `mmrl plan` counts it for all episodes of a step."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.tools:
            raise ValueError("tools is empty: name those that may be called, or leave the environment out")
        if self.form == "code" and PYTHON not in self.tools:
            raise ValueError('form is "code", which calls python, and tools does not name it: write tools = ["python"]')
        if PYTHON in self.tools and (lacking := missing()):
            raise ValueError(f"tools names python, and there is no sandbox on this machine: {lacking}")

    def open(self, prompt: Prompt, seed: int, /) -> "_World":
        clips = [media for media in prompt.media if kind_of(media).name == "video"]
        tools = Toolbox(
            self.tools,
            [open_picture(media) for media in prompt.media if kind_of(media).name == "image"],
            [one if isinstance(one, Video) else Video(str(one)) for one in clips],
            "norm1000" if self.space == "auto" else self.space,
            self._read,
            self._find,
            self.limits,
            seed,
        )
        return _World(self, tools)

    @property
    def limits(self) -> SandboxLimits:
        return SandboxLimits(seconds=self.seconds, text=self.text, memory=self.memory << 20)

    @property
    def sandbox(self) -> SandboxLimits | None:
        """What the sandbox of an episode may take; None: it has none."""
        return self.limits if PYTHON in self.tools else None

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Load reader and detector; ValueError where a package or a file that they need is missing."""
        try:
            if "ocr" in self.tools:
                reader_of(self.reader, self.threshold, self.seconds)
            if "detect" in self.tools:
                finder_of(self.detector, self.threshold, self.seconds)
        except (ImportError, OSError, KeyError) as error:
            raise ValueError(f"a tool cannot be made: {error}") from None

    def _read(self, picture: Any) -> str:
        return reader_of(self.reader, self.threshold, self.seconds)(picture)

    def _find(self, picture: Any) -> Objects:
        return finder_of(self.detector, self.threshold, self.seconds)(picture)


@dataclass
class _World:
    settings: Tools
    session: Toolbox

    def step(self, turn: Turn, /) -> Observation | None:
        self.session.sizes = turn.shown
        try:
            call = parse_call(turn.text, self.settings.form, ("zoom", "bbox_2d"))
            if call is None or (self.settings.form == "json" and call.name.lower() == OVER):
                return None
            text, shown = self.session.follow(call)
        except CallError as error:
            return mistake(error)
        said = "\n".join(part for part in (text, "<image>" * len(shown), self.settings.words if shown else "") if part)
        return Observation(said, tuple(shown), facts={"tool": 1.0, call.name.lower(): 1.0})

    def close(self) -> None:
        self.session.close()
