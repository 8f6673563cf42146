"""Attacks on clips that go on from a picture, and on models that may not pad: frames of other sizes, none, too many."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from PIL import Image

from tests.attacks.attack import Attack, Ended, expect_done, expect_sentence, run_mmrl

SHORT = ("steps=1", "algorithm.group_size=2", "prompts_per_step=2", "evaluation={}", "evaluate_every=0", "policy.lora={rank = 2}")
GOES_ON = (
    "i2v/hunyuan15_judge_flowgrpo",
    "policy.model=tiny:hunyuan15_i2v",
    "policy.height=16",
    "policy.width=16",
    "policy.frames=5",
    "policy.max_prompt_tokens=12",
    "policy.dtype=float32",
    "algorithm.schedule.num_steps=2",
    'reward=[{use="first_frame", fit="crop"}]',
)
EDITS = (
    "edit/qwen_image21_judge",
    "policy.model=tiny:qwen_image21",
    "policy.height=32",
    "policy.width=32",
    "policy.dtype=float32",
    'reward=[{use="jpeg_size"}]',
)
Row = dict[str, object]
Make = Callable[[Path], object] | None
"""Puts further files into a folder."""
GOOD: Row = {"image": "good.png", "prompt": "it moves"}


def run(words: Sequence[str], rows: Sequence[Row], make: Make, folder: Path, settings: Sequence[str]) -> Ended:
    """One step of training on rows, beside whose files `make` may put others."""
    picture("good.png", 24, 24, folder)
    if make is not None:
        make(folder)
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return run_mmrl(["train", *words, *SHORT, "data.path=train.jsonl", "output=run", *settings], folder)


def refused(name: str, row: Row, *words: str, make: Make = None, settings: Sequence[str] = ()) -> Attack:
    """A row beside a good one that must be refused in words."""
    return Attack("first frames", name, lambda folder: expect_sentence(run(GOES_ON, (GOOD, row), make, folder, settings), *words))


def done(name: str, start: Sequence[str], rows: Sequence[Row], *words: str, make: Make = None) -> Attack:
    """Rows that must train, with these words said."""
    return Attack("first frames", name, lambda folder: expect_done(run(start, rows, make, folder, ()), *words))


def picture(name: str, width: int, height: int, folder: Path) -> None:
    Image.effect_noise((width, height), 90).convert("RGB").save(folder / name)


def cut(folder: Path) -> None:
    whole = (folder / "good.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])


ROW: Row = {"prompt": "it moves"}
ATTACKS = [
    done(
        "first frames of other shapes than the clip",
        GOES_ON,
        (GOOD, {**ROW, "image": "wide.png"}),
        make=partial(picture, "wide.png", 700, 50),
    ),
    refused("a first frame of one pixel", {**ROW, "image": "dot.png"}, "1 x 1 pixels", make=partial(picture, "dot.png", 1, 1)),
    refused("a first frame of 3000 x 3 pixels", {**ROW, "image": "s.png"}, "3000 x 3", make=partial(picture, "s.png", 3000, 3)),
    refused("a clip's size that the model cannot draw", {**GOOD, "width": 18, "height": 16}, "18 x 16", "multiples of 4"),
    refused("a row without a picture", ROW, "train.jsonl", "image"),
    refused("an empty name of a first frame", {**ROW, "image": ""}, "train.jsonl", "image"),
    refused("a first frame that is not there", {**ROW, "image": "gone.png"}, "gone.png"),
    refused("a first frame that ends in the middle", {**ROW, "image": "cut.png"}, "cut.png", make=cut),
    refused(
        "a clip in place of a first frame",
        {**ROW, "image": "clip.mp4"},
        "clip.mp4",
        make=lambda folder: (folder / "clip.mp4").write_bytes(b"\0\0\0\x18ftypisom"),
    ),
    refused("two first frames", {**ROW, "images": ["good.png", "good.png"]}, "2 pictures", "takes prompts with 1"),
    refused(
        "first frames for a model that draws from text",
        GOOD,
        "draws from text alone",
        settings=("policy.model=tiny:hunyuan15", 'policy.source_fit="resize"'),
    ),
    refused(
        "a reward that sees first frames in another shape",
        GOOD,
        "has fit = 'resize'",
        "policy.source_fit is 'crop'",
        settings=('reward=[{use="first_frame"}]',),
    ),
    done(
        "rows of other lengths for a model that may not pad",
        EDITS,
        [{**GOOD, "prompt": words} for words in ("a", "make it red and " * 6)],
    ),
    done(
        "pictures of other numbers for a model that may not pad",
        EDITS,
        [GOOD, {"images": ["good.png", "good.png"], "prompt": "let both be one"}],
    ),
]
