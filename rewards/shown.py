"""A picture reward of the last picture that the world showed in an episode, or the best, with a price for each further one.

    r = f(picture | wish) - price * (pictures - 1)

f reads the words that the model was given. An episode without a picture gets the least score of its group, and at most
`unusable`. Parts: those of f, first, last, best, gain (last - first), pictures, and unfinished (1 where a turn was cut, and what
it asked for was not drawn).

Modality: text
Range: that of the picture reward, less the price
Source: last and best pictures as in GenAgent (arXiv:2601.18543); price: own
Licence: own code Apache-2.0; the picture reward's see there
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from mmrl import Group, Need, Sample, Scored
from mmrl.runtime.ranges import NonNegative, Number
from mmrl.serving.inside import AroundPictures, wished


@dataclass(frozen=True)
class Shown(AroundPictures):
    """A picture reward's score of an episode's pictures. ValueError without a picture reward."""

    over: Literal["last", "best"] = "last"
    """Which picture counts."""
    price: NonNegative = 0.0
    """Of every picture but the first."""
    unusable: Number = 0.0
    """The most that an episode is worth in which nothing was shown."""
    wish: str = ""
    """The column with the user's words, which the picture reward reads; empty: the prompt's text."""
    needs = Need(
        "the columns that the picture reward reads",
        lambda prompt, reward, _: wished(prompt, reward.wish, "shown"),
        setup='picture (a reward of pictures, picture.use = "pick_score") and an [environment] that shows some, such as easel',
        turns=True,
    )
    shows = "image"

    def __call__(self, group: Group) -> list[float | Scored | None]:
        self.ready()
        pictures = [_pictures(sample) for sample in group.samples]
        flat = tuple(Sample(image=one) for own in pictures for one in own)
        wish = wished(group.prompt, self.wish, "shown")
        inner = replace(group, prompt=wish, samples=flat)
        answers = iter(self.ask(inner))
        found = [[next(answers) for _ in own] for own in pictures]
        if any(one is None or one.value is None for own in found for one in own):
            return [None] * len(found)
        scored = [self._score(sample, own) for sample, own in zip(group.samples, cast(list[list[Scored]], found), strict=True)]
        least = min([self.unusable, *(one.value for one in scored if one.value is not None)])
        return [one if one.value is not None else replace(one, value=least) for one in scored]

    def _score(self, sample: Sample, answers: Sequence[Scored]) -> Scored:
        """The score of one episode; a value of None where it has no picture."""
        facts = {"pictures": float(len(answers)), "unfinished": float(sample.truncated)}
        if not answers:
            return Scored(None, facts)
        values = [cast(float, one.value) for one in answers]
        best = float(np.max(values))  # NaN where one of them failed
        at = len(values) - 1 if self.over == "last" else int(np.argmax(values))
        facts |= {"first": values[0], "last": values[-1], "best": best, "gain": values[-1] - values[0]}
        return Scored(values[at] - self.price * (len(values) - 1), {**answers[at].parts, **facts})


def _pictures(sample: Sample) -> list[Any]:
    """The pictures that the world answered with, in order."""
    return [one for turn in sample.turns if turn.observation is not None for one in turn.observation.media]
