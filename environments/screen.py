"""A screen whose buttons are to be pressed in an order, and stand elsewhere after every press. Take the data set `screens`.

A turn is a click: `<tool_call>{"name": "click", "arguments": {"point": [x, y]}}</tool_call>`, or the two numbers alone. The last
right press gives 1 and ends the episode; a wrong button ends it with 0.

Facts: pressed (1 for a right press), missed (1 for a click beside all buttons), error (1 for a click that could not be followed).

Source: own
Licence: own code Apache-2.0
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mmrl import Observation, Prompt, Turn
from mmrl.answers.boxes.box import Space
from mmrl.answers.calls import CallError, parse_call
from mmrl.core.samples import MediaSize
from mmrl.data.drawn.screens import HEIGHT, WIDTH, DrawnScreen, draw_screen, order_of
from mmrl.data.tools.foreign import mistake

__all__ = ["Screens"]


@dataclass(frozen=True)
class Screens:
    """Opens the screen of a prompt."""

    space: Space | Literal["auto"] = "auto"
    """How the model writes points; auto: as the run's policy writes boxes."""

    def open(self, prompt: Prompt, seed: int, /) -> "_Presses":
        return _Presses(self, *place_of(prompt))

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError for prompts of another data set."""
        for prompt in prompts:
            place_of(prompt)


@dataclass
class _Presses:
    screens: Screens
    seed: int
    index: int
    split: str
    buttons: int
    presses: int
    right: int = 0

    def step(self, turn: Turn, /) -> Observation | None:
        try:
            call = parse_call(turn.text, "tags", ("click", "point"))
            if call is None or call.name != "click":
                raise CallError("click on a button, with the point [x, y]")
            x, y = call.numbers("point", 2)
        except CallError as error:
            return mistake(error)
        pressed = self.screen().button_at(*self._pixels(x, y, turn.shown[-1] if turn.shown else None))
        if pressed is None:
            return Observation("There is no button.", facts={"missed": 1.0}, key=str(self.right))
        wanted = order_of(self.seed, self.index, self.split, self.buttons, self.presses)[self.right]
        if pressed != wanted:
            return Observation(f"That was {pressed}.", reward=0.0, done=True)
        self.right += 1
        done = self.right == self.presses
        shown = () if done else (self.screen().image,)
        return Observation("", shown, reward=float(done), done=done, key=str(self.right), facts={"pressed": 1.0})

    def close(self) -> None:
        """There is nothing to give back."""

    def screen(self) -> DrawnScreen:
        return draw_screen(self.seed, self.index, self.split, self.buttons, self.right)

    def _pixels(self, x: float, y: float, seen: MediaSize | None) -> tuple[float, float]:
        """A point in pixels of the screen."""
        space = "norm1000" if self.screens.space == "auto" else self.screens.space
        scale = {"pixel": (WIDTH, HEIGHT), "norm1": (1, 1), "norm1000": (1000, 1000)}
        across, down = scale.get(space, (WIDTH, HEIGHT) if seen is None else (seen.seen_width, seen.seen_height))
        return x * WIDTH / across, y * HEIGHT / down


def place_of(prompt: Prompt) -> tuple[int, int, str, int, int]:
    """Seed, index, split, buttons and presses of a prompt's screen; ValueError for a prompt of another data set."""
    name = prompt.columns.get("screen")
    if not isinstance(name, str):
        raise ValueError(f"prompt {prompt.id!r} shows no screen: take [data] use = 'screens'")
    seed, index, split, buttons, presses = name.split()
    return int(seed), int(index), split, int(buttons), int(presses)
