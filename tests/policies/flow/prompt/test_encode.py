"""Embeddings are kept under names that tell prompts apart."""

from dataclasses import replace

import pytest
from PIL import Image

from mmrl.core.types import Prompt
from mmrl.policies.flow.prompt.encode import key_of

RED, BLUE = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))
EDIT = Prompt("0", "make it blue", media=(RED,))


def test_a_text_is_its_own_name():
    assert key_of("a cat") == key_of(Prompt("0", "a cat")) == "a cat"


@pytest.mark.parametrize(
    "other",
    [
        replace(EDIT, text="make it red"),
        replace(EDIT, media=(BLUE,)),
        replace(EDIT, media=(RED, RED)),
        replace(EDIT, columns={"width": 64, "height": 32}),
    ],
    ids=["text", "picture", "number of pictures", "size"],
)
def test_what_is_embedded_otherwise_has_another_name(other: Prompt):
    assert key_of(other) != key_of(EDIT)


def test_what_is_embedded_alike_has_one_name():
    assert key_of(replace(EDIT, id="1", answer="blue", media=(RED.copy(),))) == key_of(EDIT)
