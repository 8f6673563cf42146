"""Inversion of questions: the one right option becomes the one wrong one, so that several answers are right."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mmrl.core.types import Prompt

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def list_options(question: str, options: Sequence[str]) -> str:
    """A question with its options, one lettered line each."""
    return "\n".join([question, *(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))])


@dataclass(frozen=True)
class Inversion:
    """Inversion with a probability: "what is he holding?" becomes "what is not he holding?" (TW-GRPO, arXiv:2505.24718).

    The question is put in small letters and its second word negated. Of the options that were wrong a random number stay and
    are now right, the one that was right is now wrong, and all are shuffled. Questions with several right options, or with
    fewer than two words or options, stay as they are.
    """

    probability: float = 0.5
    seed: int = 0
    write: Callable[[str, Sequence[str]], str] = list_options
    """Question and options -> the prompt's text."""

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"Inversion.probability is {self.probability}; set it from 0 to 1")

    def __call__(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts in order, some of them inverted: the same ones for the same seed, whatever the others are."""
        return [self.invert(prompt) for prompt in prompts]

    def invert(self, prompt: Prompt) -> Prompt:
        """The prompt, perhaps inverted.

        Raises ValueError naming the prompt where its columns `question` and `options` or its answer do not fit.
        """
        question, options, right = self._read(prompt)
        rng = random.Random(f"{self.seed}/{prompt.id}")
        words = question.lower().split()
        if rng.random() >= self.probability or len(right) != 1 or len(options) < 2 or len(words) < 2:
            return prompt
        wrong = [option for letter, option in zip(LETTERS, options, strict=False) if letter != right]
        kept = rng.sample(wrong, rng.randint(1, len(wrong)))
        now = [*kept, options[LETTERS.index(right)]]
        order = rng.sample(range(len(now)), len(now))
        answer = ",".join(letter for letter, place in zip(LETTERS, order, strict=False) if place < len(kept))
        negated = " ".join([words[0], words[1], "not", *words[2:]])
        shown = tuple(now[place] for place in order)
        columns = {**prompt.columns, "question": negated, "options": shown, "inverted": True}
        return replace(prompt, text=self.write(negated, shown), answer=answer, columns=columns)

    def _read(self, prompt: Prompt) -> tuple[str, Sequence[str], str]:
        """The question, its options, and the right letters without blanks and commas."""
        question, options, given = prompt.columns.get("question"), prompt.columns.get("options"), prompt.answer
        answer = ",".join(map(str, given)) if isinstance(given, list | tuple) else given
        if not isinstance(question, str) or not isinstance(options, list | tuple) or not 0 < len(options) <= len(LETTERS):
            raise ValueError(
                f"prompt {prompt.id!r} cannot be inverted: give its row a column `question` (a text) and a column `options` "
                f"(a list of up to {len(LETTERS)})"
            )
        letters = "".join(answer.replace(",", " ").split()) if isinstance(answer, str) else ""
        if not letters or not set(letters) <= set(LETTERS[: len(options)]):
            raise ValueError(f"prompt {prompt.id!r} has the answer {given!r}, not letters of its {len(options)} options")
        return question, [str(option) for option in options], letters
