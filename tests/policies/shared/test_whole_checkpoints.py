"""A checkpoint that lacks a tensor, or has others, never trains with random weights: what attacks do to models, as it loads."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.lab.tiny.flow import pipelines
from mmrl.policies.flow.loading import load as load_flow
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.loading import load as load_text
from mmrl.policies.text.settings import TextPolicyConfig
from tests.attacks import models
from tests.attacks.models import Damage, change, config

PART, BIAS = f"transformer/{models.PART}", "pos_embed.proj.bias"


def put(value: torch.Tensor) -> Damage:
    return partial(change, PART, lambda weights: weights.update({BIAS: value}))


Case = tuple[tuple[str, ...], Damage]
FEWER: Case = (("unexpected", "visual.blocks.1"), partial(config, "config.json", "vision_config.depth", 1))
SHAPE, NAN = ((BIAS,), put(torch.ones(3))), (("1 tensors", BIAS), put(torch.full((32,), torch.nan)))
TOLD = {name: case for name, case in models.TEXT.items() if name != "no weights at all"}
"""In words of mmrl's own."""
MODELS = {
    "text": {**TOLD, "one layer less than weights": FEWER},
    "flow": {**models.FLOW, "a tensor of another shape": SHAPE, "a transformer with NaN": NAN},
}
ADAPTERS = [*((kind, case) for kind in MODELS for case in models.ADAPTERS.values()), ("text", models.HEAD)]


@pytest.fixture(scope="module")
def whole(tiny: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"text": tiny("qwen2_5_vl"), "flow": str(pipelines.build("sd3", tmp_path_factory.mktemp("sd3") / "model"))}


@pytest.fixture(scope="module")
def adapters(whole: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {kind: tmp_path_factory.mktemp(kind) / "adapter" for kind in whole}
    for kind, folder in folders.items():
        models.save_adapter(kind, Path(whole[kind]), folder)
    return folders


def load(kind: str, model: str, **settings: Any) -> object:
    if kind == "text":
        return load_text(TextPolicyConfig(model, **settings))
    return load_flow(FlowPolicyConfig(model, height=16, width=16, **settings))


def refuse(words: tuple[str, ...], *given: Any, **settings: Any) -> None:
    with pytest.raises((ValueError, OSError)) as caught:
        load(*given, **settings)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cases in MODELS.items() for name in cases])
def test_models(whole: dict[str, str], tmp_path: Path, kind: str, name: str):
    folder = Path(shutil.copytree(whole[kind], tmp_path / "model"))
    words, damage = MODELS[kind][name]
    damage(folder)
    refuse(("policy.model", *words), kind, str(folder))


@pytest.mark.parametrize(("kind", "case"), ADAPTERS)
def test_adapters(whole: dict[str, str], adapters: dict[str, Path], tmp_path: Path, kind: str, case: Case):
    folder = Path(shutil.copytree(adapters[kind], tmp_path / "adapter"))
    lora = LoraSettings(adapter=str(folder))
    load(kind, whole[kind], lora=lora)
    words, damage = case
    damage(folder)
    refuse(words, kind, whole[kind], lora=lora)
