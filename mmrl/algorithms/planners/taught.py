"""Rows that are taught: nothing is sampled, a prompt's completions come from the data."""

import random
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.video import answer_text
from mmrl.core.samples import Media, Observation, Turn
from mmrl.core.types import Dialogue, Given, Prompt, Request, Shown
from mmrl.runtime.ranges import Share

COMPLETION = "completion"
"""The column in which data sets keep an answer exactly as it was written."""
THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
NO_THOUGHT = "<think>\n\n</think>"
PAIR = 2
ASSISTANT, ANSWERS = "assistant", ("user", "tool")


def text_at(prompt: Prompt, column: str, key: str = "column") -> str:
    """The completion that a prompt teaches: a column's text; without a name the column `completion`, else the answer.

    Args:
        key: the setting that names the column, for the error.

    Raises:
        ValueError: there is none, or it is no text.
    """
    found = message_text(value_at(prompt, column))
    if isinstance(found, str) and found.strip():
        return found
    named, known = column or COMPLETION, ", ".join(sorted(prompt.columns)) or "none"
    what = f"has {str(found)[:80]!r}" if found is not None else "has nothing"
    raise ValueError(
        f"prompt {prompt.id!r} {what} in the column {named[:80]!r}, where a stage that teaches finds the completion "
        f"(its columns: {known}): write it there, or set {key} to the column that has it"
        + ("" if prompt.answer is None or key != "column" else "; written = 'truth' teaches the answer")
    )


def value_at(prompt: Prompt, column: str) -> object:
    """The completion of a prompt, in whatever form its data have it."""
    found = prompt.columns.get(column or COMPLETION)
    if found is None and not column and prompt.answer is not None:
        try:
            return answer_text(prompt)
        except ValueError:
            return cast(object, prompt.answer)
    return cast(object, found)


def dialogue_at(prompt: Prompt, column: str) -> tuple[Turn, ...]:
    """The turns of a completion that is a list of messages with several of the model's; () for any other completion.

    Messages before the model's first one are the prompt, and not looked at. Those between its turns are `user` or `tool`; their
    pictures are parts of the content, or in `images`.

    Raises:
        ValueError: a turn or an answer is empty or in the wrong place.
    """
    said, named = messages_of(value_at(prompt, column)), column or COMPLETION
    roles = [str(one.get("role")) for one in said]
    if roles.count(ASSISTANT) < PAIR:
        return ()
    first = roles.index(ASSISTANT)
    said, roles = said[first:], roles[first:]
    if set(roles[::2]) != {ASSISTANT} or not set(roles[1::2]) <= {*ANSWERS} or len(roles) % 2 == 0:
        raise ValueError(
            f"prompt {prompt.id!r} has turns by {', '.join(roles)[:200]} in the column {named[:80]!r}: {ASSISTANT} takes turns "
            f"with {' or '.join(ANSWERS)}, and has the last word"
        )
    turns: list[Turn] = []
    for number, one in enumerate(said[::2]):
        text = message_text([one])
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"prompt {prompt.id!r}: turn {number + 1} of its dialogue is {str(text)[:80]!r}: it must be a text")
        answer = said[2 * number + 1] if 2 * number + 1 < len(said) else None
        turns.append(Turn(text, (0, 0), None if answer is None else observation_of(answer)))
    return tuple(turns)


def messages_of(found: object) -> list[dict[str, Any]]:
    """The messages of a list of them; [] for anything else."""
    items = cast(list[Any], found) if isinstance(found, list) else []
    return [cast(dict[str, Any], one) for one in items if isinstance(one, dict)]


def observation_of(said: Mapping[str, Any]) -> Observation:
    """A message between two turns of the model, as a world's answer."""
    content, role = said.get("content"), said["role"]
    parts = messages_of(content) or [{"type": "text", "text": content or ""}]
    shown = [part for part in parts if part.get("type") == "image"]
    pictures: list[Media] = [*(said.get("images") or ()), *(part["image"] for part in shown if part.get("image") is not None)]
    text = "".join("<image>" if part.get("type") == "image" else str(part.get("text", "")) for part in parts)
    return Observation(text, tuple(pictures), role=role)


def message_text(found: Any) -> object:
    """The text of the last of several messages, whose parts are joined; anything else as it is."""
    messages = cast(list[Any], found) if isinstance(found, list) else []
    if not messages or not isinstance(messages[-1], dict):
        return cast(object, found)
    content: Any = cast(dict[str, Any], messages[-1]).get("content")
    if not isinstance(content, list):
        return content
    parts = [cast(dict[str, object], one).get("text") for one in cast(list[Any], content) if isinstance(one, dict)]
    return "".join(part for part in parts if isinstance(part, str))


def without_thought(text: str, keeps: float, chance: float) -> str:
    """The text, its thought emptied where the draw `chance` from [0, 1) is not below the share that keeps it."""
    return text if chance < keeps else THOUGHT.sub(NO_THOUGHT, text, count=1)


@dataclass(frozen=True)
class Taught(Once):
    """One row per prompt: the completion that the data has, of which every token of the model trains.

    A completion may be a dialogue: a list of messages, of which those of the assistant train.

    Take the advantage Demonstrated and the term Imitation with it. Of a share of the rows the thought between <think> and
    </think> is left empty, which teaches when not to think (thought dropout of TON, arXiv:2505.16854).
    """

    column: str = ""
    """The column with the completion, as the model should write it. Empty: `completion` where there is one, else the answer."""
    thought_dropout: Share = 0.0
    """The share of rows whose thought is left empty, drawn anew at every visit of a prompt; 0.5 in TON."""
    turns: Literal["all", "last"] = "all"
    """Of a dialogue: all turns of the model train, or its last one alone."""
    written: Literal["column", "truth", "pixel", "resized", "norm1000", "norm1", "norm1000_yx"] = "column"
    """column: the completion as it is. truth: the prompt's answer, as the run's rewards read it from this model, behind a thought
    where one is asked for, that of the completion if it has one. A space: the completion's boxes and points are in it, and are
    converted to the model's."""
    say: Callable[[Prompt, str], str] | None = field(default=None, init=False, compare=False, repr=False)

    def said_by(self, say: Callable[[Prompt, str], str]) -> "Taught":
        """A copy, with what makes the taught text of a prompt and its completion, which may be empty."""
        found = replace(self)
        object.__setattr__(found, "say", say)
        return found

    def said(self, prompt: Prompt, text: str) -> str:
        """The text that is taught; ValueError where only a run's model could tell it."""
        if self.say is not None or self.written == "column":
            return text if self.say is None else self.say(prompt, text)
        raise ValueError(f"written is {self.written!r}, and how the model writes is not known: build the run from a config")

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without a completion, and for thoughts to be dropped where there are none."""
        dialogues = [self.turns_of(prompt) for prompt in prompts]
        texts = [
            "".join(turn.text for turn in turns) if turns else self.completion(prompt)
            for prompt, turns in zip(prompts, dialogues, strict=True)
        ]
        if self.turns == "last" and texts and not any(dialogues):
            raise ValueError(
                f"turns is 'last', and none of the {len(texts)} completions that were looked at is a dialogue: leave turns out"
            )
        if self.thought_dropout and texts and not any(map(THOUGHT.search, texts)):
            raise ValueError(
                f"thought_dropout is {self.thought_dropout:g}, and none of the {len(texts)} completions that were looked at has "
                "a thought between <think> and </think>: write the thoughts so, or leave thought_dropout out"
            )

    def asked(self, request: Request) -> Sequence[Request]:
        return (replace(request, count=1, role="injected", written=self._completion(request)),)

    def turns_of(self, prompt: Prompt) -> tuple[Turn, ...]:
        """The turns that are taught, where these are several."""
        return () if self.written == "truth" else dialogue_at(prompt, self.column)

    def completion(self, prompt: Prompt) -> str:
        """The text that a prompt's data have; of truths, empty where they have none. ValueError where nothing can be taught."""
        if self.written != "truth":
            return text_at(prompt, self.column)
        if prompt.answer is None:
            raise ValueError(
                f"prompt {prompt.id!r} has no answer, and written is 'truth': take a data set that reads answers, such as "
                "grounding_jsonl, or leave written out to teach a column"
            )
        found = message_text(prompt.columns.get(self.column or COMPLETION))
        return found if isinstance(found, str) else ""

    def _completion(self, request: Request) -> str | Given:
        chance, keeps = random.Random(f"{request.seed}/thought").random(), 1 - self.thought_dropout
        prompt, turns = request.prompt, self.turns_of(request.prompt)
        if not turns:
            return without_thought(self.said(prompt, self.completion(prompt)), keeps, chance)
        return Dialogue(
            tuple(replace(turn, text=without_thought(self.said(prompt, turn.text), keeps, chance)) for turn in turns),
            self.turns == "last",
        )


@dataclass(frozen=True)
class PartlyTaught(Taught):
    """Taught rows for a share of the prompts, drawn anew at every visit, and samples of the policy for the others.

    The mixture of GKD (arXiv:2306.13649): the texts are a teacher's, by `mmrl sample`. Take the term FollowTeacher with it.
    """

    share: Share = 0.5
    """The share of prompts whose completion comes from the data."""

    def asked(self, request: Request) -> Sequence[Request]:
        is_taught = random.Random(f"{request.seed}/partly").random() < self.share
        return super().asked(request) if is_taught else (request,)


def pair_of(prompt: Prompt, chosen: str, rejected: str) -> tuple[str, str]:
    """The completions of a pair, the preferred one first.

    Raises:
        ValueError: one of them is missing or no text, or both are the same.
    """
    texts = text_at(prompt, chosen, "chosen"), text_at(prompt, rejected, "rejected")
    if texts[0] == texts[1]:
        raise ValueError(
            f"prompt {prompt.id!r} has the same text in the columns {chosen!r} and {rejected!r}, and such a pair teaches "
            "nothing: remove it from the data"
        )
    return texts


def refuse_both_ways(pairs: Iterable[tuple[Prompt, tuple[Hashable, Hashable]]]) -> None:
    """Raise ValueError where two equal prompts prefer the same two completions the other way round."""
    seen: dict[Hashable, str] = {}
    for prompt, (chosen, rejected) in pairs:
        asked = prompt.text, *map(str, prompt.media)
        if other := seen.get((asked, rejected, chosen)):
            raise ValueError(
                f"prompts {other!r} and {prompt.id!r} are the same, and each prefers the completion that the other one rejects: "
                "such pairs teach nothing together, so remove one of them, or both"
            )
        seen[asked, chosen, rejected] = prompt.id


@dataclass(frozen=True)
class Pairs(Once):
    """Two rows per prompt: the completion that the data prefers, and the one that it does not.

    Take the advantage Preferred and the term Preference with it.
    """

    chosen: str = "chosen"
    """The column with the preferred completion: a text, or a list of messages that ends with one."""
    rejected: str = "rejected"
    """The column with the other one."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without a pair, with two equal completions, or that another prompt contradicts."""
        refuse_both_ways((prompt, pair_of(prompt, self.chosen, self.rejected)) for prompt in prompts)

    def asked(self, request: Request) -> Sequence[Request]:
        texts = pair_of(request.prompt, self.chosen, self.rejected)
        return [replace(request, count=1, role="injected", written=text) for text in texts]


@dataclass(frozen=True)
class PicturePairs(Once):
    """Two rows per prompt: each shows one of its two pictures or clips, the one that people preferred first.

    Nothing is written about them. Take the advantage Preferred and the term PairScores with it.
    """

    preferred: str = "preferred"
    """The column that says which of the two was preferred, 0 or 1; a prompt without it: the first."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without two pictures, or that prefers none of them."""
        for prompt in prompts:
            self.in_order(prompt)

    def in_order(self, prompt: Prompt) -> tuple[Media, Media]:
        """The media of a prompt, the preferred one first."""
        if len(prompt.media) != PAIR:
            raise ValueError(
                f"prompt {prompt.id!r} shows {len(prompt.media)}, where two pictures are compared: give two in its column images"
            )
        best = prompt.columns.get(self.preferred, 0)
        if best not in (0, 1):
            raise ValueError(
                f"prompt {prompt.id!r} has {best!r} in the column {self.preferred!r}, which says 0 where the first of two "
                "pictures is preferred and 1 where the second is: leave undecided pairs out"
            )
        first, second = prompt.media
        return (second, first) if best else (first, second)

    def asked(self, request: Request) -> Sequence[Request]:
        shown = [Shown(replace(request.prompt, media=(one,)), trained=True) for one in self.in_order(request.prompt)]
        return [replace(request, count=1, role="injected", written="", shown=one) for one in shown]
