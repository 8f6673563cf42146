"""Tiny clip models of the real classes with random weights, prompts for them, and what their clips and sounds can do better."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmrl import Group, Prompt
from mmrl.lab.tiny.flow.pipelines import build

SIDES = {"sana_i2v": 32}
"""Pixels a side where 16 are too few."""
CONTRAST = 0.25
"""Deviation of pixels and waves that noise is decoded to, in [-1, 1]."""


def build_visible(kind: str, folder: Path, raise_sound: bool = True) -> Path:
    """A tiny pipeline whose decoders end louder: random ones make nearly the same grey, or hum, of everything.

    A sound that is raised has lost its decoders' biases, and is far from linear in its latents.
    """
    import diffusers

    pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(build(kind, folder / "plain"))  # type: ignore[reportPrivateImportUsage]
    vae, generator = pipeline.vae, torch.Generator().manual_seed(0)
    noise = torch.randn(1, vae.config.get("z_dim") or vae.config.latent_channels, 2, 4, 4, generator=generator)
    with torch.no_grad():
        raise_end(vae.decoder.conv_out, vae.decode(noise, *([None] if kind.startswith("ltx2") else []), return_dict=False)[0])
        if kind.startswith("ltx2") and raise_sound:
            sound = pipeline.audio_vae
            for weight in (*sound.decoder.named_parameters(), *pipeline.vocoder.named_parameters()):
                weight[1].mul_(0 if weight[0].endswith("bias") else 1)
            heard = sound.decode(torch.randn(1, 2, 6, 2, generator=generator), return_dict=False)[0]
            raise_end(pipeline.vocoder.conv_out, pipeline.vocoder(heard))
    pipeline.save_pretrained(folder / "visible")
    return folder / "visible"


def raise_end(layer: torch.nn.Module, out: torch.Tensor) -> None:
    """Bring what comes out of this layer to the contrast."""
    for weight in layer.parameters():
        weight *= CONTRAST / out.std()


def load(side: int | None = None, seed: int = 0) -> Sequence[Prompt]:
    """Four prompts; with `side` each holds a picture of that many pixels a side."""
    rng, found = np.random.default_rng(seed), list[Prompt]()
    for i in range(4):
        drawn = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        media = () if side is None else (drawn.resize((side, side), Image.Resampling.BICUBIC),)
        found.append(Prompt(str(i), f"it dawns, loudly, take {i}", media))
    return found


def light(group: Group) -> list[float]:
    """How light a clip is after its first frame: 1 = white."""
    return [float(np.asarray(sample.video)[1:].mean()) / 255 for sample in group.samples]


def above(group: Group) -> list[float]:
    """How far above zero a sound lies: 1 = full scale."""
    return [float(np.asarray(sample.sound).mean()) for sample in group.samples]
