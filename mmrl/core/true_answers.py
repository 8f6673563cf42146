"""True answers as texts, and parts that need them so."""

from typing import Protocol, runtime_checkable

from mmrl.core.samples import Prompt


@runtime_checkable
class ChecksPrompts(Protocol):
    """A part that cannot work with every prompt: the first ones are shown to it before a model is loaded."""

    def check_prompt(self, prompt: Prompt, /) -> None:
        """Raises ValueError for a prompt that it cannot work with; names the prompt and the remedy."""
        ...


def answer_text(prompt: Prompt) -> str:
    """The true answer as a model would write it.

    Raises:
        ValueError: there is none, or it is no text and no number.
    """
    answer = prompt.answer
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise ValueError(
            f"prompt {prompt.id!r} has the answer {answer!r}, and the probability of the true answer needs a text or a number: "
            "give the data set answers that can be written, or take another method"
        )
    return str(answer).strip()
