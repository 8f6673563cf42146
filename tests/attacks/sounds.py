"""Attacks by sounds: files that hold none, or too much of it, and rows that ask for what no model here does."""

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tests.attacks.attack import Attack, expect_done, expect_sentence, run_mmrl
from tests.support.sounds import tone, write_clip_with_sound, write_wav

Write = Callable[[Path], object]
"""Writes a file to a path."""
SILENT = np.zeros(0)


def row_of(folder: Path, name: str, write: Write, **columns: object) -> str:
    """A file of one row, whose sound it writes as well."""
    write(folder / name)
    row = {"audio": name, "question": "how often does it ring?", "answer": 2, **columns}
    (folder / "rows.jsonl").write_text(json.dumps({key: value for key, value in row.items() if value is not None}) + "\n")
    return "rows.jsonl"


def refused(words: tuple[str, ...], name: str, write: Write, folder: Path) -> str:
    return expect_sentence(run_mmrl(["data", "check", row_of(folder, name, write)], folder), *words)


def asked(words: tuple[str, ...], columns: dict[str, object], folder: Path) -> str:
    """A clip with a sound of two seconds, and a row that asks for something odd."""
    name = row_of(folder, "a.mp4", lambda path: write_clip_with_sound(path, tone(2.0)), **columns)
    return expect_sentence(run_mmrl(["data", "check", name], folder), *words)


def heard(rate: int, channels: int, folder: Path) -> str:
    name = row_of(folder, "a.wav", lambda path: write_wav(path, [tone(1.0, rate=rate)] * channels, rate))
    return expect_done(run_mmrl(["data", "check", name], folder), "0 problems")


def ten_hours(path: Path) -> None:
    """A file whose samples are a hole on the disk."""
    rate, size = 2_000, 10 * 3600 * 2_000
    fields = (16, 1, 1, rate, rate, 1, 8, b"data", size)
    with path.open("wb") as file:
        file.write(struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", *fields))
        file.truncate(44 + size)


def trained(folder: Path) -> str:
    """Ten hours, in training: refused for its seconds, and never held."""
    name = row_of(folder, "hours.wav", ten_hours)
    table = f'data={{use = "qa_jsonl", path = "{name}"}}'
    words = ["train", "tiny/beeps", 'policy.model="tiny:qwen2_5_omni_thinker"', table, 'reward=[{use = "number"}]']
    off = ["evaluation.num_prompts=0", "evaluate_every=0", "steps=1", "prompts_per_step=1", 'output="run"']
    return expect_sentence(run_mmrl([*words, *off], folder), "hours.wav", "lasts 36000.0 s", "`start` and `end`")


def refusal(name: str, file: str, write: Write, *words: str) -> Attack:
    return Attack("data", name, partial(refused, words, file, write))


ATTACKS = [
    refusal("a clip without sound as a sound", "a.mp4", lambda p: write_clip_with_sound(p, None), "a.mp4", "holds no sound"),
    refusal("an empty sound", "a.wav", lambda path: path.touch(), "a.wav", "is an empty file"),
    refusal("a sound of 0 seconds", "a.wav", lambda path: write_wav(path, [SILENT]), "a.wav"),
    refusal("a text called a sound", "a.mp3", lambda path: path.write_text("ring " * 99), "a.mp3", "cannot be opened"),
    Attack("data", "a sound of ten hours", trained),
    Attack("data", "a sound of 96 kHz", partial(heard, 96_000, 1)),
    Attack("data", "a sound of eight channels", partial(heard, 16_000, 8)),
    Attack("data", "a clip and a sound in one row", partial(asked, ("both", "keep one kind"), {"video": "a.mp4"})),
    Attack(
        "data",
        "a sound that is heard after its end",
        partial(asked, ("rows.jsonl", "outside"), {"span": [1.0, 9.0], "answer": None}),
    ),
    Attack(
        "data",
        "a clip with its sound inside",
        partial(asked, ("use_audio_in_video", "column audio"), {"video": "a.mp4", "audio": None, "use_audio_in_video": True}),
    ),
]
