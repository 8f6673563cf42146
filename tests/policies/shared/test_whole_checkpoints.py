"""A checkpoint that lacks a tensor, or has others, never trains with random weights: text models, pipelines and adapters."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrl.lab.tiny.flow import pipelines
from mmrl.policies.flow.adapters import save_adapter
from mmrl.policies.flow.loading import load as load_flow
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.loading import load as load_text
from mmrl.policies.text.settings import TextPolicyConfig

LORA = LoraSettings(rank=2, alpha=4)


def change(file: Path, change_tensors):
    """Rewrite a file of weights."""
    weights = load_file(file)
    change_tensors(weights)
    save_file(weights, file, {"format": "pt"})


def drop(name):
    return lambda weights: weights.pop(name)


def put(name, value):
    return lambda weights: weights.update({name: value})


def cut(file: Path):
    file.write_bytes(file.read_bytes()[:-7])


def set_config(file: Path, *path_and_value):
    *path, last, value = path_and_value
    settings = json.loads(file.read_text())
    inner = settings
    for key in path:
        inner = inner[key]
    inner[last] = value
    file.write_text(json.dumps(settings))


Q = "model.layers.0.self_attn.q_proj.weight"
TEXT = {
    "missing": (
        lambda f: change(f / "model.safetensors", drop(Q)),
        r"1 missing \(model\.language_model\.layers\.0\.self_attn\.q_proj",
    ),
    "unexpected": (
        lambda f: change(f / "model.safetensors", put("extra.weight", torch.ones(2))),
        r"1 unexpected \(extra\.weight\)",
    ),
    "another shape": (
        lambda f: change(f / "model.safetensors", put(Q, torch.ones(2, 2))),
        r"1 of another shape \(model\.lang.*q_proj",
    ),
    "NaN": (lambda f: change(f / "model.safetensors", lambda w: w[Q].fill_(torch.nan)), r"NaN or infinity in 1 tensors"),
    "cut": (lambda f: cut(f / "model.safetensors"), r"model\.safetensors is cut short"),
    "more layers": (lambda f: set_config(f / "config.json", "vision_config", "depth", 3), r"missing \(model\.visual\.blocks\.2"),
    "fewer layers": (lambda f: set_config(f / "config.json", "vision_config", "depth", 1), r"unexpected \(.*visual\.blocks\.1"),
    "negative layers": (
        lambda f: set_config(f / "config.json", "vision_config", "depth", -1),
        r"unexpected \(.*visual\.blocks\.0",
    ),
    "tokenizer": (lambda f: cut(f / "tokenizer.json"), r"cannot be loaded: check its files"),
}


@pytest.mark.parametrize("case", TEXT)
def test_text(tiny, tmp_path, case):
    folder = Path(shutil.copytree(tiny("qwen2_5_vl"), tmp_path / "model"))
    damage, said = TEXT[case]
    damage(folder)
    with pytest.raises(ValueError, match=r"policy\.model '.*" + said):
        load_text(TextPolicyConfig(str(folder)))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return pipelines.build("sd3", tmp_path_factory.mktemp("sd3") / "model")


PART = "diffusion_pytorch_model.safetensors"
BIAS = "pos_embed.proj.bias"
FLOW = {
    "missing": (lambda f: change(f / "transformer" / PART, drop(BIAS)), r"\(transformer\).* 1 missing \(pos_embed\.proj\.bias\)"),
    "unexpected": (lambda f: change(f / "transformer" / PART, put("extra", torch.ones(1))), r"1 unexpected \(extra\)"),
    "another shape": (lambda f: change(f / "transformer" / PART, put(BIAS, torch.ones(3))), r"pos_embed\.proj\.bias"),
    "NaN": (lambda f: change(f / "transformer" / PART, put(BIAS, torch.full((32,), torch.nan))), r"1 tensors \(pos_embed"),
    "vae": (
        lambda f: change(f / "vae" / PART, drop("decoder.conv_in.weight")),
        r"\(vae\) does .*missing \(decoder\.conv_in\.weight",
    ),
    "text encoder": (
        lambda f: change(f / "text_encoder/model.safetensors", drop("text_projection.weight")),
        r"\(text_encoder\) does .*missing \(text_projection\.weight",
    ),
    "cut": (lambda f: cut(f / "vae" / PART), r"vae/diffusion_pytorch_model\.safetensors is cut short"),
    "unknown class": (lambda f: set_config(f / "model_index.json", "vae", ["diffusers", "NoSuchVae"]), "NoSuchVae"),
}


@pytest.mark.parametrize("case", FLOW)
def test_pipelines(pipeline, tmp_path, case):
    folder = Path(shutil.copytree(pipeline, tmp_path / "model"))
    damage, said = FLOW[case]
    damage(folder)
    with pytest.raises(ValueError, match=r"policy\.model '.*" + said):
        load_flow(FlowPolicyConfig(str(folder), height=16, width=16))


@pytest.fixture(scope="module")
def text_adapter(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    load_text(TextPolicyConfig(tiny("qwen2_5_vl"), lora=LORA)).adapter.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def flow_adapter(pipeline, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    family = load_flow(FlowPolicyConfig(str(pipeline), lora=LORA, height=16, width=16))
    save_adapter(family.pipeline, family.trained, folder, True)
    return folder


def drop_one(ending):
    def drop_first(weights):
        weights.pop(next(name for name in sorted(weights) if name.endswith(ending)))

    return drop_first


def drop_pair(weights):
    layer = min(weights).partition(".lora_")[0]
    for name in [name for name in weights if name.startswith(layer + ".lora_")]:
        weights.pop(name)


ADAPTERS = {
    "A missing": (drop_one("lora_A.weight"), r"1 missing"),
    "B missing": (drop_one("lora_B.weight"), r"1 missing"),
    "layer missing": (drop_pair, r"[12] missing"),
    "NaN": (lambda weights: next(iter(weights.values())).fill_(torch.nan), "NaN or infinity in 1"),
    "cut": (None, r"safetensors is cut short"),
}


@pytest.mark.parametrize("case", ADAPTERS)
@pytest.mark.parametrize("kind", ["text", "flow"])
def test_adapters(tiny, pipeline, text_adapter, flow_adapter, tmp_path, kind, case):
    folder = Path(shutil.copytree(text_adapter if kind == "text" else flow_adapter, tmp_path / "adapter"))
    lora = LoraSettings(adapter=str(folder))
    file = next(folder.glob("*.safetensors"))

    def start():
        if kind == "text":
            return load_text(TextPolicyConfig(tiny("qwen2_5_vl"), lora=lora))
        return load_flow(FlowPolicyConfig(str(pipeline), lora=lora, height=16, width=16))

    start()
    damage, said = ADAPTERS[case]
    if damage is None:
        cut(file)
    else:
        from safetensors import safe_open

        with safe_open(file, "pt") as opened:
            notes = opened.metadata()
        weights = load_file(file)
        damage(weights)
        save_file(weights, file, notes)
    with pytest.raises(ValueError, match=r"policy\.lora\.adapter '.*" + said):
        start()
