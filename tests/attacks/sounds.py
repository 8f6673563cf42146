"""Attacks by sounds: files that hold none, or too much of it, and rows that ask for what no model here does."""

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tests.attacks.attack import Attack, expect_done, expect_sentence, run_mmrl
from tests.support.sounds import tone, write_clip_with_sound, write_floats, write_wav

Write = Callable[[Path], object]
"""Writes a file to a path."""
SILENT, TONE = np.zeros(0), tone(1.0)


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


def heard(name: str, write: Write, folder: Path) -> str:
    name = row_of(folder, name, write)
    return expect_done(run_mmrl(["data", "check", name], folder), "0 problems")


def ten_hours(path: Path) -> None:
    """A file whose samples are a hole on the disk."""
    rate, size = 2_000, 10 * 3600 * 2_000
    fields = (16, 1, 1, rate, rate, 1, 8, b"data", size)
    with path.open("wb") as file:
        file.write(struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", *fields))
        file.truncate(44 + size)


def trained(name: str, write: Write, words: tuple[str, ...], folder: Path) -> str:
    """A sound in training, whose samples are read there alone."""
    name = row_of(folder, name, write)
    table = f'data={{use = "qa_jsonl", path = "{name}"}}'
    command = ["train", "tiny/beeps", 'policy.model="tiny:qwen2_5_omni_thinker"', table, 'reward=[{use = "number"}]']
    off = ["evaluation.num_prompts=0", "evaluate_every=0", "steps=1", "prompts_per_step=1", 'output="run"']
    return expect_sentence(run_mmrl([*command, *off], folder), *words)


def refusal(name: str, file: str, write: Write, *words: str) -> Attack:
    return Attack("data", name, partial(refused, words, file, write))


def in_training(name: str, write: Write, *words: str) -> Attack:
    return Attack("data", name, partial(trained, "a.wav", write, words))


def hearing(name: str, write: Write, file: str = "a.wav") -> Attack:
    return Attack("data", name, partial(heard, file, write))


def lying(**lies: int) -> Write:
    return lambda path: write_floats(path, TONE, **lies)


def odd(sample: float) -> Write:
    """A tone that ends with this sample."""
    return lambda path: write_floats(path, np.append(TONE, sample))


ATTACKS = [
    refusal("a clip without sound as a sound", "a.mp4", lambda p: write_clip_with_sound(p, None), "a.mp4", "holds no sound"),
    refusal("an empty sound", "a.wav", lambda path: path.touch(), "a.wav", "is an empty file"),
    refusal("a sound of 0 seconds", "a.wav", lambda path: write_wav(path, [SILENT]), "a.wav"),
    refusal("a text called a sound", "a.mp3", lambda path: path.write_text("ring " * 99), "a.mp3", "cannot be opened"),
    refusal("a sound whose head promises 3 GB", "a.wav", lying(riff=3 << 30, data=3 << 30), "a.wav", "cut short"),
    refusal("a sound of no channels", "a.wav", lying(channels=0, block=0), "a.wav", "has no channels"),
    refusal("a sound of 65,535 channels", "a.wav", lying(channels=65_535), "a.wav", "channels"),
    refusal(
        "a sound of four billion samples a second", "a.wav", lying(rate=4_000_000_000, a_second=0), "a.wav", "cannot be opened"
    ),
    in_training("a sound of ten hours", ten_hours, "a.wav", "lasts 36000.0 s", "`start` and `end`"),
    in_training("a sound with a sample that is no number", odd(np.nan), "rows.jsonl:1", "a.wav", "finite"),
    in_training("a sound of samples of 1e30", odd(1e30), "rows.jsonl:1", "a.wav", "full scale is 1"),
    *(refusal(f"a sound with a sample of {x:g}", "a.wav", odd(x), "rows.jsonl:1", "a.wav") for x in (np.nan, np.inf, 1e30)),
    hearing("a sound whose head was written for a stream of 4 GB", lying(riff=2**32 - 1, data=2**32 - 1)),
    hearing("a sound of 96 kHz", lambda path: write_wav(path, [tone(1.0, rate=96_000)], 96_000)),
    hearing("a sound of eight channels", lambda path: write_wav(path, [TONE] * 8)),
    hearing("a sound three times as long as its clip", lambda path: write_clip_with_sound(path, tone(6.0)), "a.mp4"),
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
