"""Attacks on models that draw sounds: rewards and lengths of other samples, waves that are none, a tone of 0 s."""

import json
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


def refuse(config: str, settings: tuple[str, ...], words: tuple[str, ...], folder: Path) -> str:
    return expect_sentence(run_mmrl(["train", config, "output=run", "steps=1", *settings], folder), *words)


def length(name: str, seconds: str, *words: str) -> Attack:
    return Attack("sounds", name, partial(train, ('reward=[{use="tempo"}]', f"policy.seconds={seconds}"), words))


def wished(name: str, reward: str, row: str, *words: str) -> Attack:
    return Attack("sounds", name, partial(train, (f'reward=[{{use="{reward}"}}]', "policy.seconds=1.0"), words, rows=row + "\n"))


FILM = ("policy.height=32", "policy.width=32", "policy.frames=5", "policy.sound=true", "policy.max_prompt_tokens=16")


def film(damage: Callable[[Path], object], settings: tuple[str, ...], words: tuple[str, ...], folder: Path) -> str:
    """One step of a tiny LTX-2 whose folder was damaged must be refused in words."""
    damage(build("ltx2", folder / "model"))
    (folder / "train.jsonl").write_text(PROMPTS)
    given = ("t2v/ltx2_sound_flowgrpo", "policy.model=model", "data.path=train.jsonl", "output=run", *FILM, *settings)
    return expect_sentence(run_mmrl(["train", *given, *SHORT], folder), *words)


def weights_of(part: Path) -> Path:
    return next(part.glob("*.safetensors"))


def with_config(part: str, **changes: object) -> Callable[[Path], object]:
    """Changes a part's config, or the index of the pipeline."""

    def change(model: Path) -> None:
        file = model / part if part.endswith(".json") else model / part / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def of_film(name: str, damage: Callable[[Path], object], *words: str, settings: tuple[str, ...] = ()) -> Attack:
    return Attack("sounds", name, partial(film, damage, settings, words))


ATTACKS = [
    of_film("a clip's vocoder without files", lambda model: shutil.rmtree(model / "vocoder"), "vocoder"),
    of_film("a vocoder cut short", lambda model: weights_of(model / "vocoder").write_bytes(b"\0" * 64), "vocoder"),
    of_film(
        "an index without the autoencoder of sounds",
        with_config("model_index.json", audio_vae=[None, None]),
        "no part",
        "audio_vae",
    ),
    of_film(
        "a vocoder of another rate", with_config("vocoder", output_sampling_rate=48000), "48000 samples a second", "make 400"
    ),
    of_film("a rate of 0", with_config("vocoder", output_sampling_rate=0), "output_sampling_rate"),
    of_film("an autoencoder of sounds with a hop of 0", with_config("audio_vae", mel_hop_length=0), "mel_hop_length"),
    of_film("sound of one frame", lambda model: None, "policy.sound goes with clips", settings=("policy.frames=1",)),
    of_film("a clip too short for a latent of sound", lambda model: None, "no latent of sound", settings=("policy.fps=1000",)),
    of_film("a million frames a second", lambda model: None, "no latent of sound", settings=("policy.fps=1e6",)),
    of_film("a length beside the clip's", lambda model: None, "policy.seconds is 2", settings=("policy.seconds=2.0",)),
    of_film("guidance of the sound in one pass", lambda model: None, "guidance_sound", settings=("policy.guidance=1.0",)),
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
