"""Forty pictures of two coloured squares, and boxes.jsonl with a question about each: python examples/toy_squares.py FOLDER."""

import json
import random
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw


def make(folder: Path, number: int = 40, seed: int = 0) -> Path:
    """Write the pictures into folder/photos, and one row per picture into folder/boxes.jsonl."""
    draw_from = random.Random(seed)
    (folder / "photos").mkdir(parents=True, exist_ok=True)
    rows: list[str] = []
    for n in range(number):
        picture, boxes = Image.new("RGB", (160, 120), "white"), {}
        for colour, left in zip(draw_from.sample(["red", "green", "blue"], 2), (10, 90), strict=True):
            x, y, size = left + draw_from.randrange(20), draw_from.randrange(60), draw_from.randrange(25, 45)
            boxes[colour] = [x, y, x + size, y + size]
            ImageDraw.Draw(picture).rectangle(boxes[colour], fill=colour)
        picture.save(folder / "photos" / f"{n}.png")
        asked = draw_from.choice(list(boxes))
        rows.append(
            json.dumps({"image": f"photos/{n}.png", "question": f"Where is the {asked} square?", "boxes": [boxes[asked]]})
        )
    (folder / "boxes.jsonl").write_text("\n".join(rows) + "\n")
    return folder / "boxes.jsonl"


if __name__ == "__main__":
    file = make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()))
    print(len(file.read_text().splitlines()), "questions in", file)
