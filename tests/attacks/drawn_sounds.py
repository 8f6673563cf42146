"""Attacks on models that draw sounds: rewards and lengths of other samples, waves that are none, a tone of 0 s."""

from functools import partial
from pathlib import Path

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


def refuse(config: str, settings: tuple[str, ...], words: tuple[str, ...], folder: Path) -> str:
    return expect_sentence(run_mmrl(["train", config, "output=run", "steps=1", *settings], folder), *words)


def length(name: str, seconds: str, *words: str) -> Attack:
    return Attack("sounds", name, partial(train, ('reward=[{use="tempo"}]', f"policy.seconds={seconds}"), words))


def wished(name: str, reward: str, row: str, *words: str) -> Attack:
    return Attack("sounds", name, partial(train, (f'reward=[{{use="{reward}"}}]', "policy.seconds=1.0"), words, rows=row + "\n"))


ATTACKS = [
    length("a sound of 0 s", "0", "policy.seconds", "above 0"),
    length("a sound of less than a sample", "0.01", "policy.seconds is 0.01", "1 / 16 to 384"),
    length("a sound longer than the model can be told of", "385", "policy.seconds is 385", "1 / 16 to 384"),
    length("a sound of a year", "3e7", "policy.seconds", "at most 3600"),
    length("a length that is no number", "nan", "policy.seconds", "finite"),
    Attack(
        "sounds",
        "a reward of pictures for sounds",
        partial(train, ('reward=[{use="jpeg_size"}]', "policy.seconds=1.0"), ("jpeg_size", "scores image", "samples are sound")),
    ),
    Attack(
        "sounds",
        "a reward of clips for sounds",
        partial(
            train, ('reward=[{use="first_frame"}]', "policy.seconds=1.0"), ("first_frame", "scores video", "samples are sound")
        ),
    ),
    Attack(
        "sounds",
        "a reward of one's own that looks at pictures, for sounds",
        partial(train, ('reward=[{use="./deaf.py"}]', "policy.seconds=1.0"), ("deaf", "failed")),
    ),
    Attack(
        "sounds",
        "a reward of sounds for pictures",
        partial(refuse, "tiny/flow", ('reward=[{use="tempo"}]',), ("tempo", "scores sound", "samples are image")),
    ),
    Attack(
        "sounds",
        "a length for a model of pictures",
        partial(refuse, "tiny/flow", ("policy.seconds=2.0",), ("policy.seconds is 2", "draws pictures")),
    ),
    wished("a band that ends before it begins", "band_energy", '{"prompt": "a hum", "band": [9, 4]}', "band", "9 to 4"),
    wished("a span beyond the sound", "onset_iou", '{"prompt": "a hum", "span": [0, 9]}', "9 s", "policy.seconds"),
    wished("a tempo of a million beats", "tempo", '{"prompt": "a hum", "bpm": 1000000}', "bpm", "30 to 240"),
    wished("no band at all", "band_energy", '{"prompt": "a hum"}', "band"),
]
