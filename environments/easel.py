"""A generator of pictures to draw with, look at the result, and draw again.

With form = "tags" a call is `<tool_call>{"name": "draw", "arguments": {"prompt": "a red cat"}}</tool_call>`; `end`, or a turn
without a call, ends the episode. With `edits`, `edit` changes the last picture, at first the prompt's, by its `prompt`. With
form = "plain" every turn is drawn as it is, without its thoughts. The picture comes back with `words`. What cannot be drawn is
answered by what is wrong with it.

All pictures of a prompt begin from the same noise, so that a better one is due to better words.

Facts: drawn (1 for a picture), error (1 for what could not be drawn).

Source: draw, look and correct as in GenAgent (arXiv:2601.18543); common noise: own
Licence: own code Apache-2.0; the painter's weights see their card
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from PIL import Image

from mmrl import Observation, Prompt, Sample, Turn
from mmrl.answers.block import answer_block
from mmrl.answers.calls import CallError, parse_call, without_thoughts
from mmrl.data.files.pictures import open_picture
from mmrl.data.tools.foreign import mistake
from mmrl.runtime.ranges import Seed, check_ranges
from mmrl.serving.scorers.painting import Painting, encodable, seed_of, studio_of
from mmrl.serving.scorers.sizes import ModelSize

__all__ = ["Easel"]


@dataclass(frozen=True)
class Easel:
    """Draws what a model asks for. ValueError for prompts whose pictures a painter without `edits` would not see."""

    painter: Painting = field(default_factory=Painting)
    """Who draws: see `painter` of the reward drawn."""
    form: Literal["tags", "plain"] = "tags"
    """How the model asks: by calls, or each of its turns is a text to draw."""
    edits: bool = False
    """True: the painter edits pictures, and may be asked to change its last one."""
    words: str = "Look at it. Draw it again with better words, or end."
    """The text behind a picture."""
    seed: Seed = 0
    """Of the noise, beside the prompt's name."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.edits and self.form == "plain":
            raise ValueError('environment.form is "plain", whose turns ask for no edits: set form = "tags", or edits = false')

    def open(self, prompt: Prompt, seed: int, /) -> "_Sheet":
        return _Sheet(self, prompt, [open_picture(media) for media in prompt.media] if self.edits else [])

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Look at the painter's files, and raise ValueError for prompts that it cannot draw, or not with their pictures."""
        self.painter.ready()
        painter = studio_of(self.painter).painter
        shown = next((prompt for prompt in prompts if prompt.media and not self.edits), None)
        if shown is not None:
            raise ValueError(
                f"prompt {shown.id!r} shows a picture, which a painter that draws from text alone does not see: take an editor "
                "and set environment.edits = true, or leave the pictures out"
            )
        painter.check_prompts([replace(prompt, media=()) for prompt in prompts])
        if self.edits:
            try:
                painter.check_prompts([Prompt("edited", "a picture", (Image.new("RGB", (64, 64)),))])
            except ValueError as error:
                raise ValueError(f"environment.edits is true, and {self.painter.place} changes no pictures: {error}") from None

    def models(self) -> Sequence[ModelSize]:
        return self.painter.models()


@dataclass
class _Sheet:
    easel: Easel
    prompt: Prompt
    pictures: list[Any] = field(default_factory=list[Any])

    def step(self, turn: Turn, /) -> Observation | None:
        try:
            asked = self._asked(turn.text)
            return None if asked is None else self._draw(*asked)
        except CallError as error:
            return mistake(error)

    def close(self) -> None:
        self.pictures.clear()

    def _asked(self, turn: str) -> tuple[str, tuple[Any, ...]] | None:
        """The text to draw, and the picture that it changes; None where the turn asks for nothing."""
        if self.easel.form == "plain":
            return answer_block(without_thoughts(turn)), ()
        call = parse_call(turn, "tags")
        if call is None or call.name == "end":
            return None
        if call.name == "draw":
            return call.text("prompt"), ()
        if call.name != "edit" or not self.easel.edits:
            raise CallError(f"the tools are draw{', edit' if self.easel.edits else ''} and end")
        if not self.pictures:
            raise CallError("there is no picture to edit yet: draw one first")
        return call.text("prompt"), (self.pictures[-1],)

    def _draw(self, words: str, on: tuple[Any, ...]) -> Observation:
        text, studio = encodable(words).strip(), studio_of(self.easel.painter)
        if not text:
            raise CallError("the text to draw is empty")
        count, read = studio.painter.tokens(text)
        if count > read:
            raise CallError(f"the text has a length of {count}, and the painter reads {read}: write a shorter one")
        asked = Prompt(self.prompt.id, text, on, columns=self.prompt.columns)
        (made,) = studio.pictures([(asked, seed_of(self.easel.seed, self.prompt.id))])
        if not isinstance(made, Sample):
            raise CallError("this text could not be drawn")
        self.pictures.append(made.image)
        return Observation(f"<image>\n{self.easel.words}", (made.image,), facts={"drawn": 1.0})
