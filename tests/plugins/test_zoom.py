"""zoom shows the part that a box names, cut from the file; what cannot be followed is told to the model."""

from pathlib import Path

import pytest
from PIL import Image

from mmrl import Prompt, Turn
from mmrl.app.plugins.resolve import load
from mmrl.core.samples import MediaSize

Zoom = load(str(Path(__file__).parents[2] / "environments" / "zoom.py"), "environments")
SEEN = MediaSize(400, 200, 100, 50)


def picture() -> Image.Image:
    """400 x 200 pixels; red grows to the right, green downwards."""
    across = Image.linear_gradient("L").rotate(90).resize((400, 200))
    down = Image.linear_gradient("L").resize((400, 200))
    return Image.merge("RGB", (across, down, Image.new("L", (400, 200))))


def call(box: object, **more: object) -> str:
    arguments = {"bbox_2d": box, **more}
    return f"Let me see. <tool_call>{{'name': 'zoom', 'arguments': {arguments}}}</tool_call>".replace("'", '"')


@pytest.mark.parametrize(
    ("space", "box"),
    [
        ("norm1000", [250, 500, 750, 1000]),
        ("norm1", [0.25, 0.5, 0.75, 1]),
        ("pixel", [100, 100, 300, 200]),
        ("resized", [25, 25, 75, 50]),
    ],
)
def test_a_part_is_cut_from_the_file_in_every_space(space: str, box: list[float], tmp_path: Path):
    picture().save(tmp_path / "a.png")
    world = Zoom(space=space).open(Prompt("p", media=(str(tmp_path / "a.png"),)), 0)
    seen = world.step(Turn(call(box), (0, 1), shown=(SEEN,)))
    assert seen.media[0].size == (200, 100) and seen.facts == {"tool": 1.0, "area": 0.25}
    assert seen.media[0].tobytes() == picture().crop((100, 100, 300, 200)).tobytes()
    assert world.step(Turn("It is red.", (0, 1))) is None
    world.close()


def test_parts_can_be_looked_into_and_are_clipped():
    world = Zoom(space="norm1000").open(Prompt("p", media=(picture(),)), 0)
    first = world.step(Turn("<tool_call>[500, 500, 2000, 3000]</tool_call>", (0, 1)))
    assert first.media[0].size == (200, 100)
    second = world.step(Turn(call([0, 0, 500, 500], image=1), (0, 1)))
    assert second.media[0].tobytes() == picture().crop((200, 100, 300, 150)).tobytes()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (call([0, 0, 20, 20]), "pixels on its shorter side, and needs 28"),
        (call([500, 500, 100, 600]), "has no area"),
        (call([2000, 2000, 3000, 3000]), "the box lies outside the picture"),
        (call([1, 2, 3]), "zoom needs bbox_2d: a list of 4 numbers"),
        (call([0, 0, 900, 900], image=3), "zoom has the images 0 to 0"),
        ('<tool_call>{"name": "search"}</tool_call>', "there is one tool, zoom"),
        ("<tool_call>{", "the call has no end"),
    ],
)
def test_what_cannot_be_followed_is_said(text: str, said: str):
    world = Zoom(space="norm1000").open(Prompt("p", media=(picture(),)), 0)
    seen = world.step(Turn(text, (0, 1)))
    assert said in seen.text and seen.text.startswith("Error: ") and seen.facts == {"error": 1.0} and not seen.media


def test_prompts_without_a_picture_are_refused():
    with pytest.raises(ValueError, match="prompt 'p' shows no picture alone"):
        Zoom().check_prompts([Prompt("p", "hi")])
    with pytest.raises(ValueError, match="prompt 'c' shows no picture alone"):
        Zoom().check_prompts([Prompt("c", "hi", ("a.mp4",))])
