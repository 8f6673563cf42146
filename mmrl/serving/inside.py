"""Rewards inside rewards: one that looks at what another makes of a sample. Imports no torch."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from mmrl.core.samples import Group, Prompt, Scored
from mmrl.runtime.blame import NoListError, by_name, count_of, values_of
from mmrl.runtime.net.loops import wait_for
from mmrl.runtime.ranges import check_ranges


@dataclass(frozen=True)
class AroundPictures:
    """The common base of rewards that hand pictures on to a picture reward."""

    picture: Callable[..., Any] | None = None
    """A reward of pictures, with its settings: `picture.use = "pick_score"`."""

    __post_init__ = check_ranges

    def ready(self) -> None:
        """Raises ValueError without a picture reward."""
        if self.picture is None:
            name = re.sub(r"\B(?=[A-Z])", "_", type(self).__name__).lower()
            raise ValueError(f'{name} needs a reward of pictures: set picture.use, such as picture = {{ use = "pick_score" }}')

    def to(self, device: str) -> None:
        """Move the picture reward, where it can be moved."""
        move_inside(self.picture, device)

    def ask(self, group: Group, what: str = "pictures") -> list[Scored | None]:
        """The picture reward's answers; raises as `answers_of`."""
        return answers_of(self.picture, group, "the picture reward", what) if self.picture and group.samples else []


def answers_of(inner: Callable[..., Any], group: Group, who: str = "the reward", what: str = "samples") -> list[Scored | None]:
    """A reward's answer for each sample of a group; ValueError where it does not answer one per sample."""
    answers, count = inner(group), len(group.samples)
    answers = wait_for(answers) if inspect.isawaitable(answers) else answers
    try:
        if len(found := values_of(answers, count)) != count:
            raise NoListError(f"answered {count_of(found, count)} values")
    except NoListError as error:
        raise ValueError(f"{who} {error} for the {count} {what} of prompt {group.prompt.id!r}: let it return one each") from None
    return [None if one is None else one if isinstance(one, Scored) else Scored(*by_name(one)) for one in found]


def move_inside(inner: object, device: str) -> None:
    """Move what is inside a reward to a device, where it can be moved."""
    if (move := getattr(inner, "to", None)) is not None:
        move(device)


def wished(prompt: Prompt, column: str, name: str) -> Prompt:
    """The prompt as a reward of pictures reads it: the user's words, of a column or its text, without its pictures.

    Raises ValueError, naming the outer reward, where there are none.
    """
    words = prompt.columns.get(column) if column else prompt.text
    if not isinstance(words, str) or not words.strip():
        place = f"no words in its column {column!r}" if column else "no text"
        raise ValueError(f"prompt {prompt.id!r} has {place}, which {name} compares pictures with: add it, or set `wish`")
    return replace(prompt, text=words, media=())


def mean_parts(answers: Sequence[Scored]) -> dict[str, float]:
    """The mean of every part that the first answer has."""
    names = answers[0].parts if answers else ()
    return {name: float(np.mean([one.parts[name] for one in answers if name in one.parts])) for name in names}


def mean_of(answers: Sequence[Scored | None]) -> Scored | None:
    """The mean over a text's pictures; None of none, and where the reward does not apply to one of them."""
    given = [answer for answer in answers if answer is not None and answer.value is not None]
    if not answers or len(given) < len(answers):
        return None
    return Scored(float(np.mean([cast(float, one.value) for one in given])), mean_parts(given))
