"""One picture of three runs: boxes, pictures and spans of the first held-out prompts, before training and after.

    mmrl demo grounding --output runs/grounding
    mmrl demo t2i --output runs/t2i
    mmrl demo video --output runs/video
    python benchmarks/readme_picture.py runs/grounding runs/t2i runs/video docs/before_after.png

Nothing is chosen: the prompts are the first ones of the held-out data, each with its first sample, and the numbers in the
headings are means over all held-out prompts, as in the runs' reports.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from mmrl.app.report.data import RunData, changes, load, pairs
from mmrl.app.report.rows import SampleLine

WIDTH, EDGE, GAP, LABEL = 1200, 16, 10, 84
INK, FAINT, PAPER = "#1f2937", "#6b7280", "#ffffff"
TRUE, GUESS = "#15803d", "#ea580c"
NUM_BOXES, NUM_PICTURES, NUM_CLIPS = 8, 8, 2
TILE = (WIDTH - 2 * EDGE - LABEL - (NUM_BOXES - 1) * GAP) // NUM_BOXES
BAR = 14


class Sheet:
    """A strip of white paper that grows downwards."""

    def __init__(self, height: int):
        self.image = Image.new("RGB", (WIDTH, height), PAPER)
        self.draw = ImageDraw.Draw(self.image)
        self.y = EDGE

    def write(self, text: str, x: int, y: int, size: int, colour: str = INK) -> None:
        self.draw.text((x, y), text, fill=colour, font=ImageFont.load_default(size))

    def heading(self, text: str, figures: str) -> None:
        self.write(text, EDGE, self.y, 20)
        self.write(figures, EDGE, self.y + 26, 15, FAINT)
        self.y += 54

    def row(self, label: str, tiles: Sequence[Image.Image]) -> None:
        """A label and pictures of one size beside it."""
        self.write(label, EDGE, self.y + tiles[0].height // 2 - 8, 15, FAINT)
        for index, tile in enumerate(tiles):
            self.image.paste(tile, (EDGE + LABEL + index * (tile.width + GAP), self.y))
        self.y += tiles[0].height + GAP

    def finished(self) -> Image.Image:
        return self.image.crop((0, 0, WIDTH, self.y + EDGE - GAP))


def figure(run: RunData, name: str) -> str:
    """`Mean IoU 0.29 to 0.71 over 256 held-out prompts`: one figure of the report."""
    (change,) = [change for change in changes(run) if change.name == name]
    return f"{name} {change.before:.2f} to {change.after:.2f} over {change.num_prompts} held-out prompts"


def picture_in(run: RunData, media: dict[str, str], size: tuple[int, int]) -> Image.Image:
    with Image.open(run.run.samples / media["file"]) as picture:
        return picture.convert("RGB").resize(size, Image.Resampling.NEAREST)


def boxed(run: RunData, row: SampleLine) -> Image.Image:
    """The prompt's picture with the true box and the model's."""
    tile = picture_in(run, row.line["media"][0], (TILE, TILE))
    scale, draw = TILE / row.line["media"][0]["width"], ImageDraw.Draw(tile)
    for colour, boxes in ((TRUE, row.truth), (GUESS, row.predicted)):
        for box in boxes:
            draw.rectangle([value * scale for value in (box.x1, box.y1, box.x2, box.y2)], outline=colour, width=3)
    return tile


def timed(run: RunData, before: SampleLine, after: SampleLine) -> Image.Image:
    """The prompt's film strip, and under it the true span and those of the model before and after."""
    assert before.spans is not None and after.spans is not None
    width = WIDTH - 2 * EDGE - LABEL
    with Image.open(run.run.samples / before.line["media"][0]["file"]) as strip:
        height = round(strip.height * width / strip.width)
    tile = Image.new("RGB", (width, height + 3 * (BAR + 4) + 8), PAPER)
    tile.paste(picture_in(run, before.line["media"][0], (width, height)), (0, 0))
    draw = ImageDraw.Draw(tile)
    for index, (spans, colour) in enumerate(
        ((before.spans.truth, TRUE), (before.spans.predicted, GUESS), (after.spans.predicted, GUESS))
    ):
        top = height + 4 + index * (BAR + 4)
        draw.rectangle([0, top, width - 1, top + BAR - 1], fill="#eef1f5")
        for span in spans:
            draw.rectangle(
                [span.start / before.spans.seconds * width, top, span.end / before.spans.seconds * width - 1, top + BAR - 1],
                fill=colour,
            )
    return tile


def draw(grounding: RunData, t2i: RunData, video: RunData) -> Image.Image:
    sheet = Sheet(4000)
    first = pairs(grounding)[:NUM_BOXES]
    sheet.heading(f'Boxes: "{first[0][0].line["text"]}"  green: the truth, orange: the model', figure(grounding, "Mean IoU"))
    sheet.row("before", [boxed(grounding, before) for before, _ in first])
    sheet.row("after", [boxed(grounding, after) for _, after in first])

    sheet.y += EDGE
    drawn = pairs(t2i)[:NUM_PICTURES]
    sheet.heading("Pictures: captions whose combinations were never trained on, same noise", figure(t2i, "Reward"))
    sheet.row("before", [picture_in(t2i, before.line["image"], (TILE, TILE)) for before, _ in drawn])
    sheet.row("after", [picture_in(t2i, after.line["image"], (TILE, TILE)) for _, after in drawn])
    for index, (before, _) in enumerate(drawn):
        for line, words in enumerate(halves(before.line["text"])):
            sheet.write(words, EDGE + LABEL + index * (TILE + GAP), sheet.y + 16 * line - 4, 12, FAINT)
    sheet.y += 40

    sheet.y += EDGE
    asked = [(before, after) for before, after in pairs(video) if before.spans and after.spans][:NUM_CLIPS]
    sheet.heading(f'Clips: "{asked[0][0].line["text"]}"', figure(video, "Mean IoU").replace("IoU", "temporal IoU"))
    for before, after in asked:
        tile = timed(video, before, after)
        for index, (label, colour) in enumerate((("truth", TRUE), ("before", GUESS), ("after", GUESS))):
            sheet.write(label, EDGE, sheet.y + tile.height - 8 - (3 - index) * (BAR + 4) + 3, 14, colour)
        sheet.row("", [tile])
    return sheet.finished()


def halves(text: str) -> list[str]:
    """The words in two lines of about equal length."""
    words = text.split()
    cut = min(range(len(words) + 1), key=lambda n: abs(len(" ".join(words[:n])) - len(" ".join(words[n:]))))
    return [" ".join(words[:cut]), " ".join(words[cut:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("grounding", "t2i", "video"):
        parser.add_argument(name, type=Path, help=f"output folder of `mmrl demo {name}`")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    given = parser.parse_args()
    picture = draw(load(given.grounding), load(given.t2i), load(given.video))
    picture.save(given.picture, optimize=True)
    print(f"{given.picture}: {picture.width} x {picture.height}, {given.picture.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
