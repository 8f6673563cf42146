"""Shipped rewards with a gradient: the scores of their pictures, a gradient that raises them, and what has none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.core.types import Group, Prompt, Sample, Scored
from mmrl.serving.scorers.encoders import HubEncoder, OpenClipEncoder, encoder_of, prepare

TEXTS = ("a red fox", "two dogs")


@pytest.fixture(scope="module")
def folder(clip_folder: Path) -> Path:
    """A tiny CLIP with a head for aesthetic."""
    torch.manual_seed(0)
    torch.save({"layers.0.weight": torch.randn(1, 16), "layers.0.bias": torch.zeros(1)}, clip_folder / "head.pth")
    return clip_folder


def picture(seed: int, size: tuple[int, int]) -> Image.Image:
    """Smooth waves of colour."""
    y, x = np.mgrid[: size[1], : size[0]]
    rng = np.random.default_rng(seed)
    waves = [127 + 100 * np.sin(rng.uniform(0.05, 0.3) * x + rng.uniform(0.05, 0.3) * y + seed) for _ in range(3)]
    return Image.fromarray(np.stack(waves, -1).astype(np.uint8))


def pixels_of(pictures: list[Image.Image]) -> Tensor:
    return torch.stack([torch.from_numpy(np.asarray(one).copy()).permute(2, 0, 1) / 255 for one in pictures])


@pytest.mark.parametrize(
    ("name", "settings", "within"),
    [
        ("clip_score", {}, 0.003),
        ("clip_score", {"form": "paper"}, 0.008),
        ("pick_score", {"processor": "", "shift": 18.0, "scale": 8.0}, 0.04),
        ("aesthetic", {"head": "head.pth"}, 0.02),
    ],
)
@pytest.mark.parametrize("size", [(64, 48), (28, 28), (20, 20)])
def test_scores_are_those_of_pictures_and_ascent_raises_them(
    reward: Any, folder: Path, name: str, settings: dict[str, Any], within: float, size: tuple[int, int]
):
    settings = settings | ({"head": str(folder / "head.pth")} if "head" in settings else {})
    one = reward(name, model=str(folder), batch_size=1, **settings)
    prompts, shown = [Prompt(text, text) for text in TEXTS], [picture(i, size) for i in range(2)]
    told = [one(Group(0, p, (Sample(image=image),)))[0] for p, image in zip(prompts, shown, strict=True)]
    pixels = pixels_of(shown).requires_grad_()
    found = one.of_pixels(pixels, prompts)
    values = torch.tensor([score.value if isinstance(score, Scored) else score for score in told])
    assert float((found - values).detach().abs().max()) < within
    (gradient,) = torch.autograd.grad(found.sum(), pixels)
    better = one.of_pixels((pixels + 1e-3 * gradient / gradient.abs().mean()).detach(), prompts)
    moves = (gradient.flatten(1) != 0).any(1)
    assert bool(moves.all() if name != "clip_score" or "form" not in settings else True)
    assert bool((better > found.detach())[moves].all())


def test_pictures_of_the_encoders_own_size_are_prepared_exactly(folder: Path):
    encoder = encoder_of(str(folder), device="cpu")
    assert isinstance(encoder, HubEncoder)
    shown = [picture(i, (28, 28)) for i in range(2)]
    torch.testing.assert_close(prepare(encoder.processor, pixels_of(shown)), encoder.pixels(shown), atol=1e-5, rtol=1e-5)


def test_siglip_gives_a_gradient_through_its_own_preparation(reward: Any, siglip_folder: Path):
    """Its pictures are squashed to a square, and its texts padded to their full length."""
    one, prompts = reward("clip_score", model=str(siglip_folder), batch_size=1), [Prompt(text, text) for text in ("red", "dogs")]
    for size, within in (((28, 28), 1e-5), ((64, 48), 0.01)):
        shown = [picture(i, size) for i in range(2)]
        told = torch.tensor([one(Group(0, p, (Sample(image=image),)))[0].value for p, image in zip(prompts, shown, strict=True)])
        pixels = pixels_of(shown).requires_grad_()
        found = one.of_pixels(pixels, prompts)
        assert float((found - told).detach().abs().max()) < within
        (gradient,) = torch.autograd.grad(found.sum(), pixels)
        better = one.of_pixels((pixels + 1e-3 * gradient / gradient.abs().mean()).detach(), prompts)
        assert bool((better > found.detach()).all())


@pytest.mark.parametrize("size", [(64, 48), (28, 28), (20, 33)])
def test_hps_scores_pixels_between_its_black_bars(reward: Any, open_clip_folder: Path, size: tuple[int, int]):
    """On the tensor from the start, so nothing but the order of sums may differ."""
    settings = {"checkpoint": str(open_clip_folder), "architecture": str(open_clip_folder / "small-vit.json"), "device": "cpu"}
    one = reward("hps_v2", batch_size=1, **settings)
    prompts, shown = [Prompt(text, text) for text in TEXTS], [picture(i, size) for i in range(2)]
    told = [one(Group(0, p, (Sample(image=image),)))[0].value for p, image in zip(prompts, shown, strict=True)]
    pixels = pixels_of(shown).requires_grad_()
    found = one.of_pixels(pixels, prompts)
    torch.testing.assert_close(found.detach(), torch.tensor(told), atol=1e-5, rtol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), pixels)
    better = one.of_pixels((pixels + 1e-3 * gradient / gradient.abs().mean()).detach(), prompts)
    assert bool((better > found.detach()).all())


def test_models_of_open_clip_have_no_gradient(reward: Any, monkeypatch: pytest.MonkeyPatch):
    one = reward("clip_score", model="open_clip:ViT-H-14")
    monkeypatch.setattr(type(one), "encoder", lambda self: OpenClipEncoder.__new__(OpenClipEncoder))
    with pytest.raises(ValueError, match="models of open_clip score PIL pictures, which carry no gradient: name a model of"):
        one.of_pixels(torch.zeros(1, 3, 8, 8), [Prompt("a", "a")])
