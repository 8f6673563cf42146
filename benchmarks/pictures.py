"""CPU seconds of a photo on its way into a prompt: decoding alone, opened as mmrl shows it, and encoded by a processor.

    python benchmarks/pictures.py

A JPEG of 12 megapixels, one that its camera turned, and a PNG with transparency; a Qwen3-VL's processor makes an eighth of the
sides of it. All take turns in one process, on one thread.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sides import in_turns, machine, markdown, over, write_json
from small_vlm import build

from mmrl.core.types import Prompt
from mmrl.policies.shared.pictures import open_picture
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig

ORIENTATION, TURNED = 0x0112, 6


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=4000, help="pixels of the longer side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    return parser.parse_args()


def photos(folder: Path, side: int) -> dict[str, Path]:
    """The files, by what they are."""
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize((side, side * 3 // 4), Image.Resampling.BICUBIC)
    turned = Image.Exif()
    turned[ORIENTATION] = TURNED
    files = {name: folder / name for name in ("photo.jpg", "turned.jpg", "transparent.png")}
    photo.save(files["photo.jpg"], quality=90)
    photo.save(files["turned.jpg"], quality=90, exif=turned)
    photo.convert("RGBA").save(files["transparent.png"], compress_level=1)
    return files


def decode(file: Path) -> None:
    with Image.open(file) as picture:
        picture.load()


def work_of(file: Path, policy: TextPolicy) -> dict[str, Callable[[], object]]:
    return {
        "decoded": lambda: decode(file),
        "opened": lambda: open_picture(file, "p"),
        "encoded": lambda: policy.encode(Prompt("p", "what is it?", (file,)), 0),
    }


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    policy = TextPolicy(TextPolicyConfig(build(folder / "model"), max_pixels=(args.side // 8) ** 2))
    found = {name: in_turns(work_of(file, policy), args.rounds) for name, file in photos(folder, args.side).items()}
    rows = [
        (name, *(f"{statistics.median(seconds[way]):.3f}" for way in seconds), f"{over(seconds, 'opened', 'decoded'):.2f}")
        for name, seconds in found.items()
    ]
    head = ("file", "CPU s decoded", "opened for a prompt", "encoded", "opened over decoded")
    print(f"{machine()}\n\n{markdown(head, rows)}")
    write_json(args.json, {"seconds": found})


if __name__ == "__main__":
    main()
