"""All tools of an episode: a call is followed on its pictures and clips, and answered with text and pictures."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from PIL import Image

from mmrl.answers.boxes.box import Box, Space
from mmrl.answers.calls import Call, CallError, harmless
from mmrl.core.samples import MediaSize, Video
from mmrl.data.files.pictures import upright
from mmrl.data.tools.pictures import Mark, Shape, draw, frames, zoom
from mmrl.runtime.sandbox.sandbox import Pixels, Sandbox, SandboxLimits

SHAPES: tuple[Shape, ...] = ("point", "box", "line")
MOST_OBJECTS = 50
LATEST = 16
"""Pictures that python is given, at most."""
Read = Callable[[Any], str]
"""The text in a picture of PIL."""
Find = Callable[[Any], Sequence[tuple[str, float, tuple[float, float, float, float]]]]
"""The objects in a picture: label, score, and x1, y1, x2, y2 in pixels."""


@dataclass
class Toolbox:
    """The pictures and clips of one episode, and the tools that a model calls on them."""

    names: Sequence[str]
    """The tools that may be called."""
    pictures: list[Any]
    clips: list[Video]
    space: Space
    """How the model writes boxes and points."""
    read: Read
    find: Find
    bounds: SandboxLimits
    """Of python."""
    seed: int = 0
    sizes: Sequence[MediaSize] = ()
    """Of the pictures that the model has seen."""
    sandbox: Sandbox | None = None

    def follow(self, call: Call) -> tuple[str, list[Any]]:
        """Text and pictures that answer a call; they are pictures of the episode from then on. Raises CallError."""
        if call.name.lower() not in self.names:
            raise CallError(f"the tools are {', '.join(self.names)}")
        tool: Callable[[Call], tuple[str, list[Any]]] = getattr(self, f"_{call.name.lower()}")
        text, shown = tool(call)
        self.pictures += shown
        return text, shown

    def close(self) -> None:
        """End the sandbox, and let go of the pictures."""
        if self.sandbox is not None:
            self.sandbox.close()
            self.sandbox = None
        self.pictures.clear()

    def _zoom(self, call: Call) -> tuple[str, list[Any]]:
        picture, size = self._picture(call)
        x1, y1, x2, y2 = call.numbers("bbox_2d", 4)
        return "", [zoom(picture, (x1, y1, x2, y2), self.space, size)]

    def _draw(self, call: Call) -> tuple[str, list[Any]]:
        picture, size = self._picture(call)
        marks = call.arguments.get("marks")
        found: list[Mark] = []
        for one in cast(list[object], marks) if isinstance(marks, list) else []:
            shapes = cast(dict[str, object], one) if isinstance(one, dict) else {}
            held: list[Shape] = [name for name in SHAPES if shapes.get(name) is not None]
            if not held:
                raise CallError('a mark is {"point": [x, y]}, {"box": [..]} or {"line": [..]}')
            shape, count = held[0], 2 if held[0] == "point" else 4
            found.append(Mark(shape, Call("draw", {shape: shapes[shape]}).numbers(shape, count)))
        if not found:
            raise CallError("draw needs marks: a list of points, boxes and lines")
        return "", [draw(picture, found, self.space, size)]

    def _frames(self, call: Call) -> tuple[str, list[Any]]:
        index, times = self._index(call, "video", len(self.clips)), call.arguments.get("times")
        count = len(cast(list[object], times)) if isinstance(times, list) else 1
        shown = frames(self.clips[index], call.numbers("times", count))
        return ", ".join(f"{time:.2f} s" for time, _ in shown), [picture for _, picture in shown]

    def _ocr(self, call: Call) -> tuple[str, list[Any]]:
        picture, size = self._picture(call)
        if "bbox_2d" in call.arguments:
            x1, y1, x2, y2 = call.numbers("bbox_2d", 4)
            picture = zoom(picture, (x1, y1, x2, y2), self.space, size)
        text = self.read(upright(picture)).strip()
        return harmless(text) or "(no text)", []

    def _detect(self, call: Call) -> tuple[str, list[Any]]:
        picture, size = self._picture(call)
        labels = call.arguments.get("labels")
        wanted = {str(one).lower() for one in cast(list[object], labels)} if isinstance(labels, list) else None
        found = self.find(upright(picture))
        seen = size or MediaSize(*picture.size, *picture.size)
        lines: list[str] = []
        for label, score, corners in sorted(found, key=lambda one: -one[1]):
            if wanted is None or label.lower() in wanted:
                box = Box(*corners, "pixel").to(self.space, seen)
                numbers = [round(x, 3) if self.space == "norm1" else round(x) for x in box.corners]
                lines.append(json.dumps({"label": harmless(label), "bbox_2d": numbers, "score": round(score, 2)}))
        return "\n".join(lines[:MOST_OBJECTS]) or "(nothing)", []

    def _python(self, call: Call) -> tuple[str, list[Any]]:
        if self.sandbox is None:
            self.sandbox = Sandbox(self.bounds, seed=self.seed)
        given = [_pixels(upright(one)) for one in self.pictures[-LATEST:]]
        output = self.sandbox.run(call.text("code"), given)
        if output.error:
            raise CallError(harmless(output.error).rstrip("."))
        shown = [Image.frombytes("RGB", (one.width, one.height), one.data) for one in output.pictures]
        return harmless(output.text.strip()) or ("" if shown else "(nothing was printed)"), shown

    def _picture(self, call: Call) -> tuple[Any, MediaSize | None]:
        index = self._index(call, "image", len(self.pictures))
        return self.pictures[index], self.sizes[index] if index < len(self.sizes) else None

    def _index(self, call: Call, key: str, count: int) -> int:
        if not count:
            raise CallError(f"there is no {key} to look at")
        index = call.numbers(key, 1)[0] if key in call.arguments else 0
        if index != int(index) or not 0 <= index < count:
            raise CallError(f"{call.name} has the {key}s 0 to {count - 1}")
        return int(index)


def _pixels(picture: Any) -> Pixels:
    width, height = picture.size
    return Pixels(width, height, picture.tobytes())
