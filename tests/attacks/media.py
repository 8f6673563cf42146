"""Attacks by sounds and first frames: files that hold none, or too much, and rows that ask for what no model hears or draws."""

import json
import shutil
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from mmrl.lab.tiny.flow.pipelines import build
from tests.attacks.attack import Attack, Ended, expect_done, expect_sentence, refused, run_mmrl
from tests.support.sounds import tone, write_clip_with_sound, write_floats, write_wav

Write = Callable[[Path], object]
"""Writes a file to a path."""
CHECK = ("data", "check", "rows.jsonl")
TRAIN = (
    *("train", "tiny/beeps", 'policy.model="tiny:qwen2_5_omni_thinker"', 'data={use = "qa_jsonl", path = "rows.jsonl"}'),
    *('reward=[{use = "number"}]', "evaluation.num_prompts=0", "evaluate_every=0", "steps=1", "prompts_per_step=1"),
    'output="run"',
)
SILENT, TONE = np.zeros(0), tone(1.0)


def lay(folder: Path, name: str, write: Write, **columns: object) -> None:
    """A file of one row, and the sound it names."""
    write(folder / name)
    row = {"audio": name, "question": "how often does it ring?", "answer": 2, **columns}
    (folder / "rows.jsonl").write_text(json.dumps({key: value for key, value in row.items() if value is not None}) + "\n")


def refusal(name: str, file: str, write: Write, *words: str, **columns: object) -> Attack:
    return Attack("data", name, partial(refused, CHECK, words, files=lambda folder: lay(folder, file, write, **columns)))


def asked(name: str, words: tuple[str, ...], **columns: object) -> Attack:
    """A clip with a sound of two seconds, and a row that asks for something odd."""
    return refusal(name, "a.mp4", lambda path: write_clip_with_sound(path, tone(2.0)), *words, **columns)


def heard(name: str, write: Write, folder: Path) -> str:
    lay(folder, name, write)
    return expect_done(run_mmrl(CHECK, folder), "0 problems")


def ten_hours(path: Path) -> None:
    """A file whose samples are a hole on the disk."""
    rate, size = 2_000, 10 * 3600 * 2_000
    fields = (16, 1, 1, rate, rate, 1, 8, b"data", size)
    with path.open("wb") as file:
        file.write(struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", *fields))
        file.truncate(44 + size)


def in_training(name: str, write: Write, *words: str) -> Attack:
    """A sound in training, whose samples are read there alone."""
    return Attack("data", name, partial(refused, TRAIN, words, files=lambda folder: lay(folder, "a.wav", write)))


def hearing(name: str, write: Write, file: str = "a.wav") -> Attack:
    return Attack("data", name, partial(heard, file, write))


def lying(**lies: int) -> Write:
    return lambda path: write_floats(path, TONE, **lies)


def odd(sample: float) -> Write:
    """A tone that ends with this sample."""
    return lambda path: write_floats(path, np.append(TONE, sample))


TINY = (
    *("t2a/stable_audio3_flow_grpo", "policy.model=tiny:stable_audio3", "data.path=train.jsonl", "output=run"),
    "policy.dtype=float32",
)
SHORT = ("steps=1", "algorithm.group_size=2", "prompts_per_step=1", "evaluation={}", "evaluate_every=0", "policy.lora={rank = 2}")
HUM = '{"prompt": "a hum", "band": [0, 4], "span": [0.25, 0.75]}'
DEAF = "def deaf(group):\n    return [float(sample.image.width) for sample in group.samples]\n"


def drawn(name: str, reward: str, row: str, *words: str) -> Attack:
    """One step of a tiny Stable Audio 3."""
    command = ("train", *TINY, *SHORT, f'reward=[{{use="{reward}"}}]', "policy.seconds=1.0")
    return Attack("sounds", name, partial(refused, command, words, files={"train.jsonl": row, "deaf.py": DEAF}))


FILM = ("policy.height=32", "policy.width=32", "policy.frames=5", "policy.sound=true", "policy.max_prompt_tokens=16")


def film(damage: Callable[[Path], object], folder: Path) -> str:
    """One step of a tiny LTX-2 whose vocoder was damaged must be refused in words."""
    damage(build("ltx2", folder / "model") / "vocoder")
    given = ("t2v/ltx2_sound_flowgrpo", "policy.model=model", "data.path=train.jsonl", "output=run", *FILM)
    return refused(["train", *given, *SHORT], ["vocoder"], folder, {"train.jsonl": HUM})


def cut(part: Path) -> None:
    next(part.glob("*.safetensors")).write_bytes(b"\0" * 64)


GOES_ON = (
    *("i2v/hunyuan15_judge_flowgrpo", "policy.model=tiny:hunyuan15_i2v", "policy.height=16", "policy.width=16"),
    *("policy.frames=5", "policy.max_prompt_tokens=12", "policy.dtype=float32", "algorithm.schedule.num_steps=2"),
    *("prompts_per_step=2", 'reward=[{use="first_frame", fit="crop"}]'),
)
EDITS = (
    *("edit/qwen_image21_judge", "policy.model=tiny:qwen_image21", "policy.height=32", "policy.width=32", "policy.dtype=float32"),
    *("prompts_per_step=2", 'reward=[{use="jpeg_size"}]'),
)
Row = dict[str, object]
Make = Callable[[Path], object] | None
"""Puts further files into a folder."""
GOOD: Row = {"image": "good.png", "prompt": "it moves"}


def step(words: Sequence[str], rows: Sequence[Row], make: Make, folder: Path, settings: Sequence[str]) -> Ended:
    """One step of training on rows, beside whose files `make` may put others."""
    picture("good.png", 24, 24, folder)
    if make is not None:
        make(folder)
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return run_mmrl(["train", words[0], *SHORT, *words[1:], "data.path=train.jsonl", "output=run", *settings], folder)


def frame(name: str, row: Row, *words: str, make: Make = None, settings: Sequence[str] = ()) -> Attack:
    """A row beside a good one that must be refused in words."""
    return Attack(
        "first frames", name, lambda folder: expect_sentence(step(GOES_ON, (GOOD, row), make, folder, settings), *words)
    )


def trained(name: str, start: Sequence[str], rows: Sequence[Row], *words: str, make: Make = None) -> Attack:
    """Rows that must train, with these words said."""
    return Attack("first frames", name, lambda folder: expect_done(step(start, rows, make, folder, ()), *words))


def picture(name: str, width: int, height: int, folder: Path) -> None:
    Image.effect_noise((width, height), 90).convert("RGB").save(folder / name)


def half(folder: Path) -> None:
    whole = (folder / "good.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])


ROW: Row = {"prompt": "it moves"}
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
    asked("a clip and a sound in one row", ("both", "keep one kind"), video="a.mp4"),
    asked("a sound that is heard after its end", ("rows.jsonl", "outside"), span=[1.0, 9.0], answer=None),
    asked(
        "a clip with its sound inside", ("use_audio_in_video", "column audio"), video="a.mp4", audio=None, use_audio_in_video=True
    ),
    Attack("sounds", "a clip's vocoder without files", partial(film, shutil.rmtree)),
    Attack("sounds", "a vocoder cut short", partial(film, cut)),
    drawn("a reward of one's own that looks at pictures, for sounds", "./deaf.py", HUM, "deaf", "failed"),
    drawn("a band that ends before it begins", "band_energy", '{"prompt": "a hum", "band": [9, 4]}', "band", "9 to 4"),
    drawn("a span beyond the sound", "onset_iou", '{"prompt": "a hum", "span": [0, 9]}', "9 s", "policy.seconds"),
    drawn("a tempo of a million beats", "tempo", '{"prompt": "a hum", "bpm": 1000000}', "bpm", "30 to 240"),
    drawn("no band at all", "band_energy", '{"prompt": "a hum"}', "band"),
    trained(
        "first frames of other shapes than the clip",
        GOES_ON,
        (GOOD, {**ROW, "image": "wide.png"}),
        make=partial(picture, "wide.png", 700, 50),
    ),
    frame("a first frame of one pixel", {**ROW, "image": "dot.png"}, "1 x 1 pixels", make=partial(picture, "dot.png", 1, 1)),
    frame("a first frame of 3000 x 3 pixels", {**ROW, "image": "s.png"}, "3000 x 3", make=partial(picture, "s.png", 3000, 3)),
    frame("a clip's size that the model cannot draw", {**GOOD, "width": 18, "height": 16}, "18 x 16", "multiples of 4"),
    frame("a row without a picture", ROW, "train.jsonl", "image"),
    frame("an empty name of a first frame", {**ROW, "image": ""}, "train.jsonl", "image"),
    frame("a first frame that is not there", {**ROW, "image": "gone.png"}, "gone.png"),
    frame("a first frame that ends in the middle", {**ROW, "image": "cut.png"}, "cut.png", make=half),
    frame(
        "a clip in place of a first frame",
        {**ROW, "image": "clip.mp4"},
        "clip.mp4",
        make=lambda folder: (folder / "clip.mp4").write_bytes(b"\0\0\0\x18ftypisom"),
    ),
    frame("two first frames", {**ROW, "images": ["good.png", "good.png"]}, "2 pictures", "takes prompts with 1"),
    frame(
        "first frames for a model that draws from text",
        GOOD,
        "draws from text alone",
        settings=("policy.model=tiny:hunyuan15", 'policy.source_fit="resize"'),
    ),
    frame(
        "a reward that sees first frames in another shape",
        GOOD,
        "has fit = 'resize'",
        "policy.source_fit is 'crop'",
        settings=('reward=[{use="first_frame"}]',),
    ),
    trained(
        "rows of other lengths for a model that may not pad",
        EDITS,
        [{**GOOD, "prompt": words} for words in ("a", "make it red and " * 6)],
    ),
    trained(
        "pictures of other numbers for a model that may not pad",
        EDITS,
        [GOOD, {"images": ["good.png", "good.png"], "prompt": "let both be one"}],
    ),
]
