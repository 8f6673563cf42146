"""An environment: the model may look closer once. It names a corner, is shown that quarter of the picture, and then answers."""

from collections.abc import Sequence

from PIL import Image

from mmrl import Observation, Prompt, Turn

CORNERS = {"top left": (0, 0), "top right": (1, 0), "bottom left": (0, 1), "bottom right": (1, 1)}


def corner(prompt: Prompt, turns: Sequence[Turn], seed: int) -> Observation | None:
    """What the world answers to the latest of these turns; None: the model asked for nothing, and its turn is the answer."""
    named = next((name for name in CORNERS if name in turns[-1].text.lower()), None)
    if named is None or len(turns) > 1:
        return None
    picture, (right, low) = prompt.media[0], CORNERS[named]
    width, height = picture.width // 2, picture.height // 2
    quarter = picture.crop((right * width, low * height, (right + 1) * width, (low + 1) * height))
    return Observation(f"The {named} corner, enlarged:", (quarter.resize(picture.size),), facts={"looks": 1.0})


if __name__ == "__main__":
    asked = Prompt("1", "Which digit is in the picture?", (Image.new("RGB", (64, 64), "navy"),))
    print(corner(asked, [Turn("Show me the top left.", (0, 6))], 0))
