"""Adapters as people have them, peft's with a head, kohya's, single files: they do the same, or are refused with a remedy."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForImageTextToText

from mmrl.app.export.export import rewrite
from mmrl.lab.tiny.flow.pipelines import build
from mmrl.policies.flow.adapters import WEIGHTS
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import TextPolicy
from tests.support import flow_policies
from tests.support.text_policies import make

Change = Callable[[Path], Path]
HEAD = "base_model.model.lm_head.base_layer.weight"
TEXT = {
    "of head and layers": {"target_modules": ["q_proj", "lm_head"]},
    "with a head that trains whole": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}


def logits(policy: TextPolicy) -> Tensor:
    with torch.no_grad():
        return policy.net.model(input_ids=torch.arange(5)[None], attention_mask=torch.ones(1, 5, dtype=torch.long)).logits


def peft_saved(base: str, folder: Path, **settings: Any) -> Any:
    """A model with an adapter that does something, saved by peft in its own way."""
    torch.manual_seed(0)
    model: Any = get_peft_model(AutoModelForImageTextToText.from_pretrained(base), LoraConfig(r=2, **settings))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape) * weight.requires_grad
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("case", TEXT)
def test_an_adapter_that_peft_saved_with_the_head(tiny, tmp_path: Path, case: str):
    theirs = peft_saved(tiny("qwen3_vl"), tmp_path / "adapter", **TEXT[case])
    assert any("lm_head" in name for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors") if "lora" not in name)
    policy = make(tiny("qwen3_vl"), lora=LoraSettings(adapter=str(tmp_path / "adapter")))
    with torch.no_grad():
        wanted = theirs(input_ids=torch.arange(5)[None], attention_mask=torch.ones(1, 5, dtype=torch.long)).logits
    torch.testing.assert_close(logits(policy), wanted, atol=1e-5, rtol=1e-5)
    policy.save(tmp_path / "again")
    again = make(tiny("qwen3_vl"), lora=LoraSettings(adapter=str(tmp_path / "again")))
    torch.testing.assert_close(logits(again), wanted, atol=1e-5, rtol=1e-5)


def test_adapters_of_text_that_cannot_be_loaded_name_the_remedy(tiny, tmp_path: Path):
    peft_saved(tiny("qwen3_vl"), tmp_path / "adapter", **TEXT["of head and layers"])
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    weights = load_file(file)
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(file, bare)
    remedy = r"as peft saves it: name the folder with adapter_config\.json"
    for place, said in ((file, "is one file, .*" + remedy), (bare, r"holds no adapter_config\.json, .*" + remedy)):
        with pytest.raises(ValueError, match=said):
            make(tiny("qwen3_vl"), lora=LoraSettings(adapter=str(place)))
    for other in (weights[HEAD] + 1, weights[HEAD][:-1].contiguous()):
        save_file(weights | {HEAD: other}, file, {"format": "pt"})
        with pytest.raises(ValueError, match=r"holds 1 weights of the model itself that are not .*lm_head.*merge it in peft"):
            make(tiny("qwen3_vl"), lora=LoraSettings(adapter=str(tmp_path / "adapter")))


def plain(folder: Path) -> Path:
    return folder


def one_file(folder: Path) -> Path:
    return folder / WEIGHTS


def another_name(folder: Path) -> Path:
    (folder / WEIGHTS).rename(folder / "my_style.safetensors")
    return folder


def kohya(folder: Path) -> Path:
    rewrite(folder, "kohya")
    return folder


def kohya_file_with_alphas(folder: Path) -> Path:
    """As others write it: a scale of 1/2 beside weights of twice the size."""
    weights = load_file(kohya(folder) / WEIGHTS)
    for name in weights:
        weights[name] = weights[name] * {"alpha": 0.5, "lora_up.weight": 2.0}.get(name.partition(".")[2], 1.0)
    save_file(weights, folder / "style.safetensors", {"format": "pt"})
    return folder / "style.safetensors"


def peft(folder: Path) -> Path:
    rewrite(folder, "peft")
    return folder


def two_files(folder: Path) -> Path:
    shutil.copy(folder / WEIGHTS, folder / "other.safetensors")
    return another_name(folder)


def more_parts(folder: Path) -> Path:
    weights = load_file(folder / WEIGHTS)
    value = next(iter(weights.values()))
    save_file(weights | {"text_encoder.layer.q_proj.lora_A.weight": value.clone()}, folder / WEIGHTS, {"format": "pt"})
    return folder


def generator(base: str, **lora: Any) -> FlowPolicy:
    torch.manual_seed(0)
    return FlowPolicy(FlowPolicyConfig(base, lora=LoraSettings(**lora), height=16, width=16))


def added(policy: FlowPolicy) -> dict[str, Tensor]:
    """What the adapters add to each layer."""
    layers = [(name, layer) for name, layer in policy.net.named_modules() if hasattr(layer, "lora_A")]
    return {name: layer.get_delta_weight("default").detach() for name, layer in layers}  # type: ignore[operator] - peft's


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    return cache(lambda family: str(build(family, tmp_path_factory.mktemp(family))))


@pytest.fixture(scope="module")
def saved(pipeline, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, Tensor]]]:
    made: dict[str, tuple[Path, dict[str, Tensor]]] = {}

    def save(family: str) -> tuple[Path, dict[str, Tensor]]:
        if family not in made:
            policy, folder = generator(pipeline(family), rank=2, alpha=4), tmp_path_factory.mktemp(family)
            flow_policies.stir(policy)
            policy.save(folder)
            made[family] = folder, added(policy)
        return made[family]

    return save


@pytest.mark.parametrize("change", [one_file, another_name, kohya, kohya_file_with_alphas], ids=lambda change: change.__name__)
def test_files_that_people_have_of_generators_do_the_same(pipeline, saved, tmp_path: Path, change: Change):
    folder, wanted = saved("sd15")
    place = change(Path(shutil.copytree(folder, tmp_path / "adapter")))
    found = added(generator(pipeline("sd15"), adapter=str(place)))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        ("sd3", kohya, r"has kohya's names, .*: give the adapter as pipeline\.save_lora_weights writes it"),
        ("sd15", peft, r"is of peft, and generators take diffusers' adapters"),
        ("sd15", two_files, r"holds 2 \.safetensors files, and an adapter is one: name that file"),
        ("sd15", more_parts, r"1 weights for other parts of the pipeline than unet .*would not be saved: leave them out"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_files_that_cannot_be_loaded_name_the_remedy(pipeline, saved, tmp_path: Path, family: str, change: Change, said: str):
    place = change(Path(shutil.copytree(saved(family)[0], tmp_path / "adapter")))
    with pytest.raises(ValueError, match=said):
        generator(pipeline(family), adapter=str(place))
