"""True answers as texts."""

from mmrl.core.samples import Prompt


def answer_text(prompt: Prompt) -> str:
    """The true answer as a model would write it; ValueError where there is none, or it is no text and no number."""
    answer = prompt.answer
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise ValueError(
            f"prompt {prompt.id!r} has the answer {answer!r}, and the probability of the true answer needs a text or a number: "
            "give the data set answers that can be written, or take another method"
        )
    return str(answer).strip()
