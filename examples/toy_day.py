"""Toy data for the three jobs of docs/how_to/first_day.md: python examples/toy_day.py FOLDER."""

import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from mmrl.data.files.mp4 import write_mp4

COLOURS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (40, 70, 210)}
FPS, SECONDS = 4, 4
REWARD = '''"""How much colour a picture has: the mean of max(r, g, b) - min(r, g, b), from 0 to 1."""

from mmrl import Group


def colourful(group: Group) -> list[float]:
    """One number per sample."""
    return [_colour(sample.image.convert("RGB")) for sample in group.samples]


def _colour(picture) -> float:
    bands = [band.tobytes() for band in picture.split()]
    spans = [max(pixel) - min(pixel) for pixel in zip(*bands, strict=True)]
    return sum(spans) / len(spans) / 255
'''


def coco(folder: Path, draw_from: random.Random, number: int = 24) -> None:
    """Photos with one coloured square each, annotated as COCO does: instances.json, boxes as x, y, width, height."""
    (folder / "photos").mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for n in range(number):
        kind, x, y, side = draw_from.randrange(3), draw_from.randrange(60), draw_from.randrange(40), draw_from.randrange(20, 36)
        picture = Image.new("RGB", (112, 84), "white")
        ImageDraw.Draw(picture).rectangle([x, y, x + side, y + side], fill=[*COLOURS.values()][kind])
        picture.save(folder / "photos" / f"{n}.png")
        images.append({"id": n, "file_name": f"{n}.png", "width": 112, "height": 84})
        annotations.append({"id": n, "image_id": n, "category_id": kind, "bbox": [x, y, side, side], "iscrowd": 0})
    categories = [{"id": i, "name": f"{colour} square"} for i, colour in enumerate(COLOURS)]
    text = json.dumps({"images": images, "annotations": annotations, "categories": categories})
    (folder / "instances.json").write_text(text)


def prompts(folder: Path) -> None:
    """Prompts to draw, one per line, and a reward of one's own."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"a {colour} {thing}" for colour in COLOURS for thing in ("kite", "door", "boat", "cup")]
    (folder / "train.txt").write_text("\n".join(lines[:9]) + "\n")
    (folder / "test.txt").write_text("\n".join(lines[9:]) + "\n")
    (folder / "colourful.py").write_text(REWARD)


def clips(folder: Path, draw_from: random.Random) -> None:
    """Clips of a square that is there for a while, and lines that say when: NAME START END##what happens."""
    lines = list[str]()
    for n in range(12):
        colour, begin = draw_from.choice([*COLOURS]), draw_from.randrange(1, 6)
        frames = np.full((FPS * SECONDS, 32, 32, 3), 255, np.uint8)
        frames[begin : begin + 8, 8:24, 8:24] = COLOURS[colour]
        write_mp4(folder / f"clip{n}.mp4", frames, FPS)
        lines.append(f"clip{n} {begin / FPS:.2f} {(begin + 8) / FPS:.2f}##a {colour} square is there.")
    (folder / "train.txt").write_text("\n".join(lines[:8]) + "\n")
    (folder / "test.txt").write_text("\n".join(lines[8:]) + "\n")


def main(folder: Path) -> None:
    draw_from = random.Random(0)
    coco(folder, draw_from)
    prompts(folder / "prompts")
    clips(folder / "clips", draw_from)
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()))
