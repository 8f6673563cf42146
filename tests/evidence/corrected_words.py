"""Dialogues at an easel for writers that are to correct themselves: a text, what came of it, and a text that goes on from there.

Of the first texts half are paraphrases; a quarter ask in the captions' words, and a quarter so for another shape, which then the
picture shows. Behind a right picture the text is said again; behind a wrong one, or where the painter did not read all of the
text, the wish is said in other words, whoever understands them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from mmrl import Prompt
from mmrl.app.plugins.resolve import load as plug_in
from mmrl.data.drawn.shapes import TRAIN, Wish, draw, to_bytes
from mmrl.data.drawn.wishes import OTHER, paraphrase

LOOK = "<image>\nLook at it. Draw it again with better words, or end."
READS = 8
"""Tokens that the painter reads: its words, the letters of all others, and two marks."""
PLAIN = 2
"""Of four first texts, those in the captions' words."""
STRANGE = {word for others in OTHER.values() for word in others}


def load(split: str = "train", size: int = 2400, seed: int = 0) -> Sequence[Prompt]:
    """Prompts of wishes whose column `completion` is a list of messages."""
    rng = np.random.default_rng([seed, 5])
    return [_with_dialogue(one, rng) for one in plug_in("wishes", "datasets")(split, size, seed)]


def _with_dialogue(prompt: Prompt, rng: np.random.Generator) -> Prompt:
    wish = Wish(*(prompt.columns[name] for name in Wish._fields))
    kind = rng.integers(4)
    drawn = TRAIN[rng.integers(len(TRAIN))] if kind == 0 else wish
    first = drawn.caption if kind < PLAIN else paraphrase(wish, rng)
    tokens = sum(len(word) if word in STRANGE else 1 for word in first.split()) + 2
    answer: dict[str, Any] = {"role": "user"}
    if tokens > READS:
        answer["content"] = f"Error: the text has {tokens} tokens, and the painter reads {READS}: write a shorter one."
    else:
        answer |= {"content": LOOK, "images": [Image.fromarray(to_bytes(draw(drawn, 32, rng)))]}
    is_right = tokens <= READS and drawn == wish
    second = first if is_right else paraphrase(wish, rng)
    said = [{"role": "assistant", "content": first}, answer, {"role": "assistant", "content": second}]
    return replace(prompt, columns={**prompt.columns, "completion": said})
