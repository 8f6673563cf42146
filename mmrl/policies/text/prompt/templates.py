"""A prompt as chat messages: where pictures are, and what it asks of the answer."""

import re
from collections.abc import Sequence
from typing import Literal

from mmrl.core.samples import IMAGE, KINDS, VIDEO, kind_of
from mmrl.core.types import Prompt
from mmrl.policies.video.decode import Frames

QUESTION = "{question}"
Message = dict[str, object]
"""One message of a chat, or one piece of its content, as chat templates take them."""
WHERE = "{where}"
BOX_WORDS = {
    "norm1000": "in thousandths of the picture's width and height, from 0 to 1000",
    "resized": "in pixels of the picture as you see it",
    "pixel": "in pixels of the picture",
    "norm1": "in shares of the picture's width and height, from 0 to 1",
    "norm1000_yx": "in thousandths of the picture's height and width, from 0 to 1000",
}
"""Way to write boxes -> what the templates `box` and `think_box` say in the place of {where}."""
X_FIRST, Y_FIRST = "[x1, y1, x2, y2]", "[y1, x1, y2, x2]"
BOX = f"as {X_FIRST} {WHERE}"
ANSWER_FORMATS = {
    "none": QUESTION,
    "direct": QUESTION + "\nReply with the final answer only, inside <answer> and </answer>.",
    "think": QUESTION + "\nThink first, inside <think> and </think>. Then write the final answer inside <answer> and </answer>.",
    "box": QUESTION + f"\nReply with each box that is asked for, {BOX}, and nothing else, inside <answer> and </answer>.",
    "think_box": QUESTION
    + "\nThink first, inside <think> and </think>. "
    + f"Then write each box that is asked for, {BOX}, inside <answer> and </answer>.",
}
"""Word of policy.answer_format -> the text around a question."""
Tags = Literal["direct", "think"]


def answer_template(answer_format: str, space: str | None = None) -> str:
    """The text around a question, with {question} in it; `space` is how the model writes boxes, None: unknown.

    Raises ValueError for neither a known name nor a text with {question}, or boxes of a model that may not know any.
    """
    template = ANSWER_FORMATS.get(answer_format, answer_format)
    if QUESTION not in template:
        known = ", ".join(ANSWER_FORMATS)
        raise ValueError(f"policy.answer_format is {answer_format!r}: use one of {known}, or a text with {QUESTION} in it")
    if answer_format not in ANSWER_FORMATS or WHERE not in template:
        return template
    if space is None:
        raise ValueError(
            f"policy.answer_format is {answer_format!r}, and how this model writes boxes is unknown: set policy.box_space to "
            f"{', '.join(BOX_WORDS)}, or answer_format to direct"
        )
    order = Y_FIRST if space == "norm1000_yx" else X_FIRST
    return template.replace(WHERE, BOX_WORDS[space]).replace(X_FIRST, order)


def template_name(answer_format: str) -> str:
    """The word for a template; `own` for a text that the config spells out."""
    return answer_format if answer_format in ANSWER_FORMATS else "own"


def tags_of(answer_format: str) -> Tags | None:
    """The tags that a template asks for: direct, an answer; think, a thought before it; None, neither."""
    template = ANSWER_FORMATS.get(answer_format, answer_format)
    if "<answer>" not in template:
        return None
    return "think" if "<think>" in template else "direct"


def messages(prompt: Prompt, template: str, system_prompt: str = "", clips: Sequence[Frames] = ()) -> list[Message]:
    """The prompt as a chat of one turn. Media stand at their `<image>` and `<video>` markers, or first when it has none.

    `clips` are those that the model sees as pictures in a row. Raises ValueError where the markers do not fit the media.
    """
    kinds = [kind_of(media).name for media in prompt.media]
    pieces = re.split(f"<({'|'.join(KINDS)})>", prompt.text)
    texts, markers = pieces[::2], pieces[1::2]
    if not markers:
        texts, markers = [""] * len(kinds) + texts, kinds
    if markers != kinds:
        named = [kind for kind in KINDS.values() if kind in (IMAGE, VIDEO) or kind.name in (*markers, *kinds)]
        held = " and ".join(f"{markers.count(kind.name)} {kind.marker} markers" for kind in named)
        shown = " and ".join(f"{kinds.count(kind.name)} {kind.nouns}" for kind in named)
        raise ValueError(
            f"prompt {prompt.id!r} has {held}, {shown}: "
            "write one marker for each, in the order of the media, or none to put the media first"
        )
    before, after = template.split(QUESTION, 1)
    texts[0] = before + texts[0]
    texts[-1] += after
    parts: list[Message] = []
    rest = iter(clips)
    for i, text in enumerate(texts):
        if i and clips and markers[i - 1] == "video":
            for time in next(rest).times:
                parts.extend(({"type": "text", "text": f"<{time:.1f} seconds>"}, {"type": "image"}))
        elif i:
            parts.append({"type": markers[i - 1]})
        if text:
            parts.append({"type": "text", "text": text})
    return [*([message("system", system_prompt)] if system_prompt else []), {"role": "user", "content": parts}]


def message(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text}]}
