"""A prompt as chat messages: where pictures stand, and what the model is told about its answer."""

from typing import Any

from mmrl.core.types import Prompt

MARKER = "<image>"
QUESTION = "{question}"
ANSWER_FORMATS = {
    "none": QUESTION,
    "direct": QUESTION + "\nReply with the final answer only, inside <answer> and </answer>.",
    "think": QUESTION + "\nThink first, inside <think> and </think>. Then write the final answer inside <answer> and </answer>.",
}


def answer_template(answer_format: str) -> str:
    """The text around a question, with {question} in it.

    Raises:
        ValueError: neither a known name nor a text with {question}.
    """
    if answer_format in ANSWER_FORMATS:
        return ANSWER_FORMATS[answer_format]
    if QUESTION not in answer_format:
        known = ", ".join(ANSWER_FORMATS)
        raise ValueError(f"policy.answer_format is {answer_format!r}: use one of {known}, or a text with {QUESTION} in it")
    return answer_format


def messages(prompt: Prompt, template: str, system_prompt: str = "") -> list[dict[str, Any]]:
    """The prompt as a chat of one turn. Pictures stand at its `<image>` markers, or first when it has none.

    Raises:
        ValueError: the number of markers is not the number of pictures.
    """
    pieces = prompt.text.split(MARKER)
    if len(pieces) == 1:
        pieces = [""] * len(prompt.media) + pieces
    if len(pieces) - 1 != len(prompt.media):
        raise ValueError(
            f"prompt {prompt.id!r} has {len(pieces) - 1} {MARKER} markers and {len(prompt.media)} pictures: "
            "write one marker per picture, or none to put the pictures first"
        )
    before, after = template.split(QUESTION, 1)
    pieces[0], pieces[-1] = before + pieces[0], pieces[-1] + after
    parts: list[dict[str, Any]] = []
    for i, piece in enumerate(pieces):
        parts += [{"type": "image"}] if i else []
        parts += [{"type": "text", "text": piece}] if piece else []
    system = [{"role": "system", "content": [{"type": "text", "text": system_prompt}]}] if system_prompt else []
    return [*system, {"role": "user", "content": parts}]
