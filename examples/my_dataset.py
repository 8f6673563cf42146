"""A data set of your own: a function that returns prompts. Here from a CSV table: picture,question,x1,y1,x2,y2.

Use it with `--data ./examples/my_dataset.py` and `path`; run this file to see it read and check a table of one row.
"""

import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from mmrl import Box, Prompt
from mmrl.data.validate import check


def load(path: str) -> Sequence[Prompt]:
    """One prompt per line of the table; boxes in pixels of the picture's file."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [(r[0], r[1], [float(x) for x in r[2:]]) for r in csv.reader(file)]
    return [Prompt(f"{i}", text, (picture,), Box(x1, y1, x2, y2)) for i, (picture, text, (x1, y1, x2, y2)) in enumerate(rows)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        picture, table = Path(folder, "cat.png"), Path(folder, "table.csv")
        Image.new("RGB", (64, 48)).save(picture)
        table.write_text(f"{picture},Where is the cat?,10,10,50,40\n")
        print(check(load(str(table))))
