"""Seconds to check 50,000 rows of a grounding file, and to load and look at them before a run.

`python benchmarks/data_check.py` writes JPEG pictures of 640 x 480 with the detail of photographs, three rows to a picture as in
RefCOCO, and a text file of as many prompts. `--rows-per-picture 1` gives every row a picture of its own.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from mmrl.app.commands.data import check
from mmrl.app.config.run import DataConfig
from mmrl.app.run.build import load_data
from mmrl.app.toml.tables import Table

DRAWN = 64
"""Different pictures; files hold them in turn, and every file is read by itself."""
SIZE = (640, 480)


def photograph(seed: int) -> bytes:
    """A JPEG of about as many bytes as a photograph of this size: coarse shapes and fine grain."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(SIZE, Image.Resampling.BICUBIC)
    pixels = np.asarray(coarse) + random.normal(0, 12, (SIZE[1], SIZE[0], 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def write(folder: Path, rows: int, rows_per_picture: int) -> Path:
    """The pictures and `boxes.jsonl`, and `prompts.txt`."""
    drawn = [photograph(seed) for seed in range(DRAWN)]
    for number in range(-(-rows // rows_per_picture)):
        (folder / f"{number}.jpg").write_bytes(drawn[number % DRAWN])
    lines = [
        {"image": f"{i // rows_per_picture}.jpg", "question": f"Where is the thing number {i}?", "box": [10, 20, 200, 180]}
        for i in range(rows)
    ]
    (folder / "boxes.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (folder / "prompts.txt").write_text("\n".join(f"a red fox on the hill number {i}" for i in range(rows)) + "\n")
    return folder / "boxes.jsonl"


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rows-per-picture", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = write(folder, chosen.rows, chosen.rows_per_picture)
        pictures = -(-chosen.rows // chosen.rows_per_picture)
        size = (folder / "0.jpg").stat().st_size
        print(f"{chosen.rows:,} rows, {pictures:,} pictures of {SIZE[0]} x {SIZE[1]} ({size / 2**10:.0f} KiB)", flush=True)
        table = Table.of({"data": {"path": str(file)}}, "default")
        data = DataConfig("grounding_jsonl", {"path": str(file)})
        work: dict[str, Callable[[], object]] = {
            "start of a run: rows, sizes, boxes": lambda: load_data(data, ("data",), table),
            "mmrl data check boxes.jsonl: every pixel": lambda: check(str(file), []),
            "mmrl data check prompts.txt": lambda: check(str(folder / "prompts.txt"), []),
        }
        for what, call in work.items():
            with contextlib.redirect_stderr(io.StringIO()):
                taken = seconds(call)
            print(f"{what:45} {taken:7.1f} s  {1e3 * taken / chosen.rows:7.3f} ms a row", flush=True)


if __name__ == "__main__":
    sys.exit(main())
