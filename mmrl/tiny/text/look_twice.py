"""A Qwen3-VL of 0.9 M parameters that can look closer, taught by people who seldom do.

`warm_start` teaches two skills first, each until held-out pictures show that it is learnt: to read the digit in a part that is
cut from the file, and to point at the digit in the overview, where it is too small to be read. Then it shows sloppy
demonstrations: most answer at once, mostly "1"; of those who look, many look at the wrong place. That looking pays is left to
reinforcement learning. A call is written as the environment `zoom` takes it: `<tool_call>[312,62,437,187]</tool_call>`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmrl.data.drawn import small_digits
from mmrl.data.drawn.small_digits import GLYPHS, PLACES, QUESTION, Place, SmallDigit, box_of, draw_small_digit
from mmrl.data.tools import zoom
from mmrl.runtime.repeating import bit_for_bit
from mmrl.tiny import teaching
from mmrl.tiny import tokenizer as tokenizers
from mmrl.tiny.byte_tokens import Built, HubObject
from mmrl.tiny.keep import Progress, hash_of, keep
from mmrl.tiny.teaching import Note, cosine
from mmrl.tiny.text import student
from mmrl.tiny.text.student import Imitation, learn, with_answers
from mmrl.training import optim

SIDE = 64
"""The model sees pictures of 64 x 64 pixels, and parts of them as large."""
READ, POINT, AFTER = "Which digit is this?", "Zoom in on the digit.", "\nYour answer?"
"""Two questions that teach the skills, and what `zoom` writes behind the part that it shows."""
TAGS = "<tool_call>", "</tool_call>"
_PIXELS = 0.11, 0.13
"""Mean and deviation of the pixels of pictures and parts."""
_SERIES = 1_000_003
"""Pictures of the warm start come from series of their own, so that no later stage trains on them again."""
_EVERY, _FIRST = 15, 60
"""Steps between two looks at the skills, and the step of the first."""
_TESTED = 64
"""Held-out pictures of a look."""
_ROUNDS = 3
_KNOWN = 0.9
_FULL, _FALL, _LEAST_RATE = 80, 100, 0.15
"""Steps at the skills' full learning rate, steps over which it falls, and the share to which it does."""
Skill = Literal["read", "point"]


@dataclass(frozen=True)
class WarmStart(Imitation):
    """The settings by which the model is taught: `steps` is the most that the skills may take."""

    steps: int = 260
    read_size: int = 24
    """Parts of a batch that teaches reading."""
    demonstrations: int = 48
    """Batches of demonstrations, with the skills in between."""
    demonstrations_lr: float = 2e-3
    looks: float = 0.33
    """Share of the demonstrations that look closer."""
    aimed: float = 0.6
    """Share of those that look at the digit; the others look anywhere."""
    lazy: float = 0.75
    """Share of the answers at once that say 1; the others say any digit."""
    right: float = 0.95
    """Share of the right answers of those that saw the digit."""
    least_skill: float = 0.85
    """Share of held-out pictures that both skills must get right."""
    least_looks: float = 0.2
    """Least chance that the model looks closer, and that it then looks at the digit."""
    least_hits: float = 0.4


class Lesson(NamedTuple):
    """A question, perhaps a part that was looked at since, and what is to be written next."""

    picture: Image.Image
    question: str
    answer: str
    look: tuple[str, Image.Image] | None = None
    """A call, and the part that it showed."""


class UnlearntError(RuntimeError):
    """The model was not taught what reinforcement learning needs to begin with."""


def build(folder: Path, seed: int = 0) -> Path:
    """Save model and processor, untrained, to `folder` and return it."""
    return student.save(_build(seed), folder)


@bit_for_bit()
def warm_start(settings: WarmStart = WarmStart(), folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Teach the model and return the folder it was saved to; see `keep.keep`."""

    def make(unfinished: Path) -> None:
        model, processor = _build(settings.seed)
        teach(model, processor, settings, progress)
        student.save((model, processor), unfinished)

    return keep(folder, f"tiny-look-twice-{fingerprint(settings)}", "config.json", make)


def fingerprint(settings: WarmStart) -> str:
    """See `keep.hash_of`."""
    code = (WarmStart, student, optim, teaching, tokenizers, small_digits, zoom)
    return hash_of(settings, code, ("torch", "transformers"))


def teach(model: HubObject, processor: HubObject, settings: WarmStart, progress: Progress | None = None) -> None:
    """Teach the skills, then show demonstrations until the model looks now and then, mostly at the digit.

    Raises:
        UnlearntError: one of the two was not learnt.
    """
    total = settings.steps + settings.demonstrations
    pictures, looks, hits = _pictures(settings.seed), 0.0, 0.0

    def note(step: int, loss: float) -> None:
        if progress is not None:
            progress(step, total, loss)

    _teach_skills(model, processor, settings, pictures, note)
    for _ in range(_ROUNDS):
        losses = learn(
            model,
            (_inputs(processor, lessons) for lessons in demonstrations(settings, pictures)),
            lambda step: settings.demonstrations_lr * cosine(step, settings.demonstrations, warmup=8),
        )
        for step, loss in enumerate(losses, start=settings.steps + 1):
            note(step, loss)
        model.zero_grad()
        model.eval()
        looks, hits = chances(model, processor)
        if looks >= settings.least_looks and hits >= settings.least_hits:
            return
    raise UnlearntError(
        f"after {_ROUNDS} rounds of demonstrations it looks with a chance of {looks:.2f}, at the digit {hits:.2f}"
    )


def skill(model: HubObject, processor: HubObject, kind: Skill) -> float:
    """The share of held-out pictures whose digit is read, or pointed at, as it should be."""
    found = _answers(model, processor, [lesson_of(kind, one) for one in _unseen()])
    return float(found.most_likely.all(1).float().mean())


def chances(model: HubObject, processor: HubObject) -> tuple[float, float]:
    """The chance that the model looks closer when it is asked, and that it then looks at the digit."""
    lessons = [Lesson(one.image, QUESTION, call_of(one.place)) for one in _unseen()]
    found = _answers(model, processor, lessons).logprobs.double()
    looks, hits = found[:, 0].exp(), found.sum(1).exp()
    return float(looks.mean()), float(hits.sum() / looks.sum())


def lesson_of(kind: Skill, drawn: SmallDigit) -> Lesson:
    """One of the two skills, at this picture."""
    if kind == "read":
        return Lesson(part_of(drawn, drawn.place), READ, str(drawn.digit))
    return Lesson(drawn.image, POINT, call_of(drawn.place))


def demonstrations(settings: WarmStart, pictures: Iterator[SmallDigit]) -> Iterator[list[Lesson]]:
    """Batches of what sloppy people do; three of eight repeat the skills."""
    rng = np.random.default_rng([settings.seed, _SERIES])
    repeated: dict[int, Skill] = {0: "point", 3: "read", 5: "point"}
    for step in range(1, settings.demonstrations + 1):
        batch, kind = [next(pictures) for _ in range(settings.batch_size)], repeated.get(step % 8)
        if kind is None:
            yield [lesson for drawn in batch for lesson in _demonstration(rng, drawn, settings)]
        else:
            yield [lesson_of(kind, drawn) for drawn in batch]


def call_of(place: Place) -> str:
    """The call that shows a square: `<tool_call>[312,62,437,187]</tool_call>`."""
    return f"{TAGS[0]}[{','.join(map(str, box_of(place)))}]{TAGS[1]}"


def part_of(drawn: SmallDigit, place: Place) -> Image.Image:
    """The part that the call of a square shows."""
    return zoom.zoom(drawn.image, box_of(place), "norm1000")


def _demonstration(rng: np.random.Generator, drawn: SmallDigit, settings: WarmStart) -> list[Lesson]:
    guess = str(rng.integers(len(GLYPHS)))
    if rng.random() >= settings.looks:
        return [Lesson(drawn.image, QUESTION, "1" if rng.random() < settings.lazy else guess)]
    column, row = rng.integers(PLACES, size=2).tolist()
    place = drawn.place if rng.random() < settings.aimed else (column, row)
    answer = str(drawn.digit) if place == drawn.place and rng.random() < settings.right else guess
    call = call_of(place)
    shown = Lesson(drawn.image, QUESTION, answer, (call, part_of(drawn, place)))
    return [Lesson(drawn.image, QUESTION, call), shown]


def _teach_skills(
    model: HubObject,
    processor: HubObject,
    settings: WarmStart,
    pictures: Iterator[SmallDigit],
    note: Note,
) -> None:
    """In turn, until both pass; one that is well known is repeated in every fourth batch."""
    learnt: dict[Skill, float] = {"read": 0.0, "point": 0.0}

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(settings.steps):
            known = max(learnt.values()) >= _KNOWN
            seldom: Skill = "point" if learnt["point"] >= _KNOWN > learnt["read"] else "read"
            usual: Skill = "point" if seldom == "read" else "read"
            kind = seldom if step % (4 if known else 2) == 0 else usual
            size = settings.read_size if kind == "read" else settings.batch_size
            yield _inputs(processor, [lesson_of(kind, next(pictures)) for _ in range(size)])

    for step, loss in enumerate(learn(model, batches(), lambda step: settings.lr * _rate(step)), start=1):
        note(step, loss)
        if step >= min(_FIRST, settings.steps) and step % _EVERY == 0:
            model.eval()
            found: dict[Skill, float] = {kind: skill(model, processor, kind) for kind in learnt}
            learnt |= {kind: max(found[kind], learnt[kind]) for kind in learnt}
            if min(found.values()) >= settings.least_skill:
                return
    raise UnlearntError(f"after {settings.steps} steps it reads {learnt['read']:.2f} and points {learnt['point']:.2f} right")


def _rate(step: int) -> float:
    return min(1.0, (step + 1) / 8) if step < _FULL else max(_LEAST_RATE, 1 - (step - _FULL) / _FALL)


class _Chances(NamedTuple):
    logprobs: Tensor
    """(lessons, tokens) of each token of the answers, 0 behind their end."""
    most_likely: Tensor
    """Whether a token is the most likely one; True behind their end."""


@torch.no_grad()
def _answers(model: HubObject, processor: HubObject, lessons: Sequence[Lesson]) -> _Chances:
    """How likely the answers of these lessons are."""
    fed = _inputs(processor, lessons)
    labels = fed.pop("labels")
    start = int((labels >= 0).any(0).nonzero()[0])
    labels, logits = labels[:, start:], model(**fed).logits[:, start - 1 : -1]
    inside = labels >= 0
    logprobs = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return _Chances(logprobs * inside, (logits.argmax(-1) == labels) | ~inside)


def _unseen() -> list[SmallDigit]:
    return [draw_small_digit(_SERIES, index, "held_out") for index in range(_TESTED)]


def _pictures(seed: int) -> Iterator[SmallDigit]:
    """Endless."""
    index = 0
    while True:
        yield draw_small_digit(_SERIES + seed, index)
        index += 1


def _build(seed: int) -> Built:
    texts = [QUESTION, READ, POINT, AFTER, "user\nassistant\n", ",".join(map(str, box_of((1, 2))))]
    return student.build(texts, SIDE, _PIXELS, video_area=SIDE**2, seed=seed, tags=TAGS)


def _inputs(processor: HubObject, lessons: Sequence[Lesson]) -> dict[str, Tensor]:
    """The batch as the model is fed it, with labels on the answers' tokens only."""
    chats, pictures = [_chat(one) for one in lessons], [[one.picture, *(one.look or ())[1:]] for one in lessons]
    prompts = processor.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    fed = dict(processor(text=prompts, images=pictures, return_tensors="pt", padding=True))
    return with_answers(fed, processor.tokenizer, [one.answer for one in lessons])


def _chat(lesson: Lesson) -> list[dict[str, object]]:
    asked = _message(lesson.question)
    return [asked] if lesson.look is None else [asked, {"role": "assistant", "content": lesson.look[0]}, _message(AFTER)]


def _message(text: str) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}
