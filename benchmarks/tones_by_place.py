"""Does the model that `mmrl demo tones` begins with place its tones? `python benchmarks/tones_by_place.py [--seeds 0 1 2]`.

Three questions, each answered before reinforcement: do sounds of a caption differ in the rewards, does their energy lie in the
quarter that was asked for, and is there anything to see of place in what the transformer learns from.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from diffusers import StableAudio3Pipeline  # type: ignore[reportPrivateImportUsage] - diffusers lists it for the asking

from mmrl import Group, Prompt, Sample
from mmrl.app.plugins.resolve import load
from mmrl.data.drawn.sounds.tones import HELD_OUT, PLACES, RATE, TRAIN, Tone, Wave, draw
from mmrl.lab.demos import taught_model
from mmrl.lab.tiny.flow import sound_generator

STEPS = 8


@torch.no_grad()
def sounds(pipeline: Any, captions: Sequence[str], n: int) -> Wave:
    """`n` sounds of each caption (captions, n, samples), by even steps of Euler."""
    embeds, mask, length = sound_generator.encode_captions(pipeline, captions)
    rows = torch.arange(len(captions)).repeat_interleave(n)
    size = RATE // sound_generator.PATCH
    x = torch.randn(len(rows), pipeline.transformer.config.io_channels, size, generator=torch.Generator().manual_seed(0))
    known = {"encoder_hidden_states": embeds[rows], "global_hidden_states": length[rows], "encoder_attention_mask": mask[rows]}
    sigmas = torch.linspace(1, 0, STEPS + 1)
    for now, after in pairwise(sigmas):
        x = x + (after - now) * pipeline.transformer(x, now.expand(len(rows)), **known, return_dict=False)[0]
    return pipeline.vae.decode(x).sample[:, 0, :RATE].reshape(len(captions), n, RATE).numpy()


def scores(name: str, tone: Tone, waves: Wave) -> np.ndarray:
    prompt = Prompt("p", tone.caption, columns={"span": tone.span, "band": tone.band})
    group = Group(0, prompt, tuple(Sample(sound=wave[None], rate=RATE) for wave in waves))
    return np.array([one.value for one in load(f"rewards/{name}.py", "rewards")()(group)])


def by_place(pipeline: Any, tones: Sequence[Tone], n: int) -> str:
    """Mean and spread within a caption of both rewards, and the share of energy in the quarter that was asked for."""
    drawn = sounds(pipeline, [tone.caption for tone in tones], n)
    found = {
        name: [scores(name, tone, waves) for tone, waves in zip(tones, drawn, strict=True)]
        for name in ("band_energy", "onset_iou")
    }
    energy = (drawn.reshape(len(tones), n, len(PLACES), -1) ** 2).sum(-1)
    shares = (energy / energy.sum(-1, keepdims=True)).mean(1)
    asked = np.mean([share[PLACES.index(tone.place)] for tone, share in zip(tones, shares, strict=True)])
    means = ", ".join(f"{name} {np.mean(x):.3f} (spread {np.mean(np.std(x, axis=1)):.3f})" for name, x in found.items())
    return f"{means}, energy in the asked quarter {asked:.3f}"


def in_the_mean(vae: Any, n: int = 64) -> float:
    """The share of the latents' energy that lies in the mean of their caption."""
    rng, mean, whole = np.random.default_rng(0), 0.0, 0.0
    for tone in TRAIN:
        waves = np.stack([draw(tone, rng, rng.random() < 0.5) for _ in range(n)])
        latents = sound_generator.encode_waves(vae, torch.from_numpy(waves)[:, None])
        # the mean of n has a share of the spread in it
        mean += float(latents.mean(0).square().mean() - latents.var(0).mean() / n)
        whole += float(latents.square().mean())
    return mean / whole


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--samples", type=int, default=32)
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        pipeline = StableAudio3Pipeline.from_pretrained(taught_model("tones", seed))
        for name, tones in (("trained on", TRAIN), ("held out", HELD_OUT)):
            print(f"seed {seed}, {name}: {by_place(pipeline, tones, arguments.samples)}", flush=True)
        print(f"seed {seed}: {in_the_mean(pipeline.vae):.3f} of the latents' energy is in the mean of their caption", flush=True)


if __name__ == "__main__":
    main()
