"""A picture reward of what a text makes a frozen generator draw: for models that write prompts.

    r = mean_k f(painter(text, noise_k) | wish)

The painter reads the text without its thoughts; f reads the words that the model was given. All texts of a step are drawn in one
call, and noise belongs to the group, so that siblings differ by their words alone. A text that is empty, or longer than the
painter reads, gets the least score of its group, and at most `unusable`: what the painter does not read would cost nothing, and
fills with whatever the reward likes. Parts: those of f, tokens (of the text), unread (1 where it was too long), empty, and with
`beside` also beside (f of the user's own words from the same noise), gain (r - beside) and won (1 where r is above it).

Modality: text
Range: that of the picture reward
Source: frozen generator and rewritten prompts as in Promptist (arXiv:2212.09611) and RePrompt (arXiv:2505.17540); common noise,
unread texts: own
Licence: own code Apache-2.0; the painter's weights and the picture reward's see their cards
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np

from mmrl import Group, Need, Prompt, Sample, Scored
from mmrl.answers.block import answer_block, opened_text
from mmrl.runtime.ranges import Count, Number, Seed
from mmrl.serving.inside import AroundPictures, mean_of, move_inside, wished
from mmrl.serving.scorers.painting import Asked, Painting, encodable, seed_of, studio_of
from mmrl.serving.scorers.sizes import ModelSize


@dataclass(frozen=True)
class Drawn(AroundPictures):
    """A picture reward's score of what was drawn from a text. ValueError without a picture reward or a painter."""

    painter: Painting = field(default_factory=Painting)
    """Who draws: see `[reward.painter]`."""
    seeds: Count = 1
    """Pictures per text, whose scores are averaged."""
    seed: Seed = 0
    """Of the noise, beside the number of the group."""
    over: Literal["refuse", "cut"] = "refuse"
    """A text that is longer than the painter reads. refuse: it is worth `unusable` at most; cut: its beginning is drawn."""
    unusable: Number = 0.0
    """The most that a text is worth which is empty or too long."""
    wish: str = ""
    """The column with the user's words, which the picture reward reads and `beside` draws; empty: the prompt's text."""
    beside: bool = False
    """True: the user's own words are drawn too, from the same noise, for the log. Held-out prompts always have it."""
    needs = Need(
        "the columns that the picture reward reads",
        lambda prompt, reward, _: reward.wished(prompt),
        setup='picture (picture.use = "pick_score") and painter (painter.model, run or server)',
    )
    shows = "image"

    @property
    def held_out(self) -> "Drawn | None":
        """The reward of held-out prompts, which draws the user's own words beside."""
        return None if self.beside else replace(self, beside=True)

    def ready(self) -> None:
        """Raises ValueError without a picture reward or painter, and what `Painting.ready` raises."""
        super().ready()
        self.painter.ready()

    def models(self) -> Sequence[ModelSize]:
        return self.painter.models()

    def to(self, device: str) -> None:
        super().to(device)
        move_inside(studio_of(self.painter).painter, device)

    def wished(self, prompt: Prompt) -> Prompt:
        """The prompt as the picture reward reads it: the user's words, without pictures."""
        return wished(prompt, self.wish, "drawn")

    def __call__(self, group: Group) -> list[float | Scored | None]:
        return self.score_all([group])[0]

    def score_all(self, groups: Sequence[Group]) -> list[list[float | Scored | None]]:
        """The scores of all groups of a step, drawn in one call."""
        super().ready()
        texts = [[self._text(sample, group.prompt) for sample in group.samples] for group in groups]
        wishes = [self.wished(group.prompt) for group in groups]
        wanted: list[Asked] = []
        for group, wish, own in zip(groups, wishes, texts, strict=True):
            for text in [*(one.text for one in own if one.is_usable(self.over)), *([wish.text] if self.beside else [])]:
                wanted += [(replace(wish, text=text), seed_of(self.seed, group.id, k)) for k in range(self.seeds)]
        drawn = studio_of(self.painter).pictures(wanted)
        if drawn and isinstance(drawn[0], Exception) and not any(isinstance(one, Sample) for one in drawn):
            raise drawn[0]
        made = iter(drawn)
        return [self._group(group, wish, own, made) for group, wish, own in zip(groups, wishes, texts, strict=True)]

    def _text(self, sample: Sample, prompt: Prompt) -> "_Text":
        if sample.text is None:
            raise ValueError(f"a sample of prompt {prompt.id!r} has no text to draw: drawn is for models that write")
        text = encodable(answer_block(opened_text(sample)))
        tokens, read = studio_of(self.painter).painter.tokens(text) if text else (0, 0)
        return _Text(text, tokens, tokens > read)

    def _group(self, group: Group, wish: Prompt, texts: Sequence["_Text"], made: Any) -> list[float | Scored | None]:
        drawn = [[next(made) for _ in range(self.seeds)] if text.is_usable(self.over) else [] for text in texts]
        own = [next(made) for _ in range(self.seeds)] if self.beside else []
        pictures = [one for some in [*drawn, own] for one in some if isinstance(one, Sample)]
        inner = replace(group, prompt=wish, samples=tuple(Sample(image=one.image) for one in pictures))
        answers = iter(self.ask(inner))
        found = [[next(answers) if isinstance(one, Sample) else Scored(np.nan) for one in some] for some in drawn]
        beside = mean_of([next(answers) if isinstance(one, Sample) else Scored(np.nan) for one in own])
        scores = [mean_of(some) for some in found]
        if any(some and score is None for some, score in zip(found, scores, strict=True)):
            return [None] * len(texts)
        values = [score.value for score in scores if score is not None and score.value is not None and np.isfinite(score.value)]
        least = min([self.unusable, *values])
        out: list[float | Scored | None] = []
        for text, score, some in zip(texts, scores, drawn, strict=True):
            parts = {"tokens": float(text.tokens), "unread": float(text.is_cut), "empty": float(not text.text)}
            value = least if score is None else cast(float, score.value)
            if beside is not None and beside.value is not None:
                parts |= {"beside": beside.value, "gain": value - beside.value, "won": float(value > beside.value)}
            text_s, users = (next((one.image for one in made if isinstance(one, Sample)), None) for made in (some, own))
            shown = Sample(image=text_s, beside=users) if text_s or users else None
            out.append(Scored(value, {**({} if score is None else score.parts), **parts}, shown))
        return out


@dataclass(frozen=True)
class _Text:
    """What the painter is given of a completion."""

    text: str
    tokens: int
    is_cut: bool
    """It is longer than the painter reads."""

    def is_usable(self, over: str) -> bool:
        return bool(self.text) and not (self.is_cut and over == "refuse")
