"""Attacks on models that draw sounds: rewards and lengths of other samples, waves that are none, a tone of 0 s."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mmrl.lab.tiny.flow.pipelines import build
from tests.attacks.attack import Attack, expect_sentence, run_mmrl

TINY = (
    "t2a/stable_audio3_flow_grpo",
    "policy.model=tiny:stable_audio3",
    "data.path=train.jsonl",
    "output=run",
    "policy.dtype=float32",
)
SHORT = ("steps=1", "algorithm.group_size=2", "prompts_per_step=1", "evaluation={}", "evaluate_every=0", "policy.lora={rank = 2}")
PROMPTS = '{"prompt": "a hum", "band": [0, 4], "span": [0.25, 0.75]}\n'
DEAF = "def deaf(group):\n    return [float(sample.image.width) for sample in group.samples]\n"


def train(settings: tuple[str, ...], words: tuple[str, ...], folder: Path, rows: str = PROMPTS) -> str:
    """One step of a tiny Stable Audio 3 must be refused in words."""
    (folder / "train.jsonl").write_text(rows)
    (folder / "deaf.py").write_text(DEAF)
    return expect_sentence(run_mmrl(["train", *TINY, *SHORT, *settings], folder), *words)


def wished(name: str, reward: str, row: str, *words: str) -> Attack:
    return Attack("sounds", name, partial(train, (f'reward=[{{use="{reward}"}}]', "policy.seconds=1.0"), words, rows=row + "\n"))


FILM = ("policy.height=32", "policy.width=32", "policy.frames=5", "policy.sound=true", "policy.max_prompt_tokens=16")


def film(damage: Callable[[Path], object], folder: Path) -> str:
    """One step of a tiny LTX-2 whose vocoder was damaged must be refused in words."""
    damage(build("ltx2", folder / "model") / "vocoder")
    (folder / "train.jsonl").write_text(PROMPTS)
    given = ("t2v/ltx2_sound_flowgrpo", "policy.model=model", "data.path=train.jsonl", "output=run", *FILM)
    return expect_sentence(run_mmrl(["train", *given, *SHORT], folder), "vocoder")


def cut(part: Path) -> None:
    next(part.glob("*.safetensors")).write_bytes(b"\0" * 64)


ATTACKS = [
    Attack("sounds", "a clip's vocoder without files", partial(film, shutil.rmtree)),
    Attack("sounds", "a vocoder cut short", partial(film, cut)),
    Attack(
        "sounds",
        "a reward of one's own that looks at pictures, for sounds",
        partial(train, ('reward=[{use="./deaf.py"}]', "policy.seconds=1.0"), ("deaf", "failed")),
    ),
    wished("a band that ends before it begins", "band_energy", '{"prompt": "a hum", "band": [9, 4]}', "band", "9 to 4"),
    wished("a span beyond the sound", "onset_iou", '{"prompt": "a hum", "span": [0, 9]}', "9 s", "policy.seconds"),
    wished("a tempo of a million beats", "tempo", '{"prompt": "a hum", "bpm": 1000000}', "bpm", "30 to 240"),
    wished("no band at all", "band_energy", '{"prompt": "a hum"}', "band"),
]
