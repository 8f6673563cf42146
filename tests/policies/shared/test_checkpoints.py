"""Models, adapters and chat templates as people have them: they do the same, or are refused with a remedy, not half loaded."""

import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._device import _device_constructors as device_functions
from transformers import AutoModelForImageTextToText, Qwen2_5_VLForConditionalGeneration
from transformers.pytorch_utils import Conv1D

from mmrl.app.export.export import rewrite
from mmrl.lab.tiny.flow import pipelines
from mmrl.lab.tiny.flow.pipelines import build
from mmrl.lab.tiny.text.vlms import chat_template
from mmrl.policies.flow.adapters import WEIGHTS
from mmrl.policies.flow.loading import load as load_flow
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.chat_templates import refuse_endless
from mmrl.policies.shared.lora import LoraSettings, refuse_other_layers
from mmrl.policies.shared.published import refuse_variant, variants_in
from mmrl.policies.text.loading import load as load_text
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import TextPolicyConfig
from tests.attacks import models
from tests.attacks.models import Damage, change, config
from tests.support import flow_policies
from tests.support.refused import refused
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
        refused(said, make, tiny("qwen3_vl"), lora=LoraSettings(adapter=str(place)))
    for other in (weights[HEAD] + 1, weights[HEAD][:-1].contiguous()):
        save_file(weights | {HEAD: other}, file, {"format": "pt"})
        with pytest.raises(ValueError, match=r"holds 1 weights of the model itself that are not .*lm_head.*merge it in peft"):
            make(tiny("qwen3_vl"), lora=LoraSettings(adapter=str(tmp_path / "adapter")))


def another_name(folder: Path) -> Path:
    (folder / WEIGHTS).rename(folder / "my_style.safetensors")
    return folder


def kohya_file_with_alphas(folder: Path) -> Path:
    """As others write it: a scale of 1/2 beside weights of twice the size."""
    rewrite(folder, "kohya")
    weights = load_file(folder / WEIGHTS)
    for name in weights:
        weights[name] = weights[name] * {"alpha": 0.5, "lora_up.weight": 2.0}.get(name.partition(".")[2], 1.0)
    save_file(weights, folder / "style.safetensors", {"format": "pt"})
    return folder / "style.safetensors"


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
    @cache
    def save(family: str) -> tuple[Path, dict[str, Tensor]]:
        policy, folder = generator(pipeline(family), rank=2, alpha=4), tmp_path_factory.mktemp(family)
        flow_policies.stir(policy)
        policy.save(folder)
        return folder, added(policy)

    return save


FILES: dict[str, Change] = {
    "one file": lambda folder: folder / WEIGHTS,
    "another name": another_name,
    "kohya": lambda folder: rewrite(folder, "kohya") or folder,
    "kohya file with alphas": kohya_file_with_alphas,
}


@pytest.mark.parametrize("change", FILES.values(), ids=FILES)
def test_files_that_people_have_of_generators_do_the_same(pipeline, saved, tmp_path: Path, change: Change):
    folder, wanted = saved("sd15")
    place = change(Path(shutil.copytree(folder, tmp_path / "adapter")))
    found = added(generator(pipeline("sd15"), adapter=str(place)))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


NO_FILES: dict[str, tuple[str, Change, str]] = {
    "kohya": ("sd3", FILES["kohya"], r"has kohya's names, .*: give the adapter as pipeline\.save_lora_weights writes it"),
    "peft": ("sd15", lambda folder: rewrite(folder, "peft") or folder, r"is of peft, and generators take diffusers' adapters"),
    "two": ("sd15", two_files, r"holds 2 \.safetensors files, and an adapter is one: name that file"),
    "more": ("sd15", more_parts, r"1 weights for other parts of the pipeline than unet .*would not be saved: leave them out"),
}


@pytest.mark.parametrize(("family", "change", "said"), NO_FILES.values(), ids=NO_FILES)
def test_files_that_cannot_be_loaded_name_the_remedy(pipeline, saved, tmp_path: Path, family: str, change: Change, said: str):
    place = change(Path(shutil.copytree(saved(family)[0], tmp_path / "adapter")))
    refused(said, generator, pipeline(family), adapter=str(place))


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


@pytest.mark.parametrize("kind", MODELS)
def test_an_adapter_of_another_model_is_refused_before_weights_load(whole, adapters, tmp_path: Path, kind: str):
    folder, model = shutil.copytree(adapters[kind], tmp_path / "adapter"), shutil.copytree(whole[kind], tmp_path / "model")
    for file in model.rglob("*.safetensors"):
        file.unlink()
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    for part, side, what in (("A", 1, "inputs"), ("B", 0, "outputs")):
        name = next(name for name in weights if f".lora_{part}." in name)
        save_file(weights | {name: torch.zeros([one + 3 for one in weights[name].shape])}, file, {"format": "pt"})
        said = f"has {weights[name].shape[side] + 3} {what} there and {weights[name].shape[side]} in this one"
        refuse(
            ("policy.lora.adapter", "was made for another model", said), kind, str(model), lora=LoraSettings(adapter=str(folder))
        )
    layers = nn.ModuleDict({"turned": Conv1D(48, 16), "grouped": nn.Conv2d(8, 16, 3, groups=4)})
    sides = {"turned.lora_A": (4, 16), "turned.lora_B": (48, 4), "grouped.lora_A": (4, 8, 3, 3), "gone.lora_A": (4, 1)}
    save_file({f"{name}.weight": torch.zeros(shape) for name, shape in sides.items()}, file)
    refuse_other_layers(layers, file, "", "theirs")


def test_a_model_that_looks_at_a_number_as_it_is_made_takes_an_adapter(whole, adapters, monkeypatch: pytest.MonkeyPatch):
    init = Qwen2_5_VLForConditionalGeneration.__init__
    monkeypatch.setattr(
        Qwen2_5_VLForConditionalGeneration, "__init__", lambda *a: (init(*a), torch.linspace(0, 1, 2).tolist())[0]
    )
    device_functions.cache_clear()  # torch remembers which functions make tensors, also those that stood in for others
    load("text", whole["text"], lora=LoraSettings(adapter=str(adapters["text"])))


def test_names_of_files_tell_variants(tmp_path: Path):
    names = ("model.safetensors", "model.fp16.safetensors", "model-00001-of-00002.int8.safetensors")
    others = (
        "diffusion_pytorch_model.ema-00001-of-00002.bin",
        "config.json",
        "model.safetensors.index.json",
        "adapter.fp8.safetensors",
    )
    for name in (*names, *others):
        (tmp_path / name).touch()
    assert variants_in(tmp_path) == {"", "fp16", "int8", "ema"}
    assert variants_in(tmp_path / "nowhere") == set()


@pytest.mark.parametrize(
    ("parts", "variant", "words"),
    [
        ({"unet": {"", "fp16"}}, "fp17", r"M has no weights of policy.variant 'fp17': set it to \"fp16\", or leave it out"),
        ({"unet": {""}}, "fp16", "M has no weights of policy.variant 'fp16': leave it out, for the plain ones are all there is"),
        ({"unet": {"fp16", "ema"}}, None, r"M: its part 'unet' has weights of the variant ema, fp16 alone: set policy.variant"),
        ({"": {"fp16"}}, None, r"M: it has weights of the variant fp16 alone: set policy.variant = \"fp16\""),
        ({"unet": {"fp16"}, "vae": {"ema"}}, "fp16", "M: its part 'vae' has weights of the variant ema alone"),
    ],
)
def test_a_missing_variant_names_those_that_exist(parts: dict[str, set[str]], variant: str | None, words: str):
    refused(words, refuse_variant, parts, variant, "M")


def test_parts_without_the_variant_have_plain_weights_and_configs_alone_have_none():
    refuse_variant({"unet": {"fp16"}, "vae": {""}, "scheduler": set()}, "fp16", "M")
    refuse_variant({"unet": {"", "fp16"}}, None, "M")
    refuse_variant({"unet": set()}, "fp16", "M")


ENDLESS = {
    "two loops": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "loops over a long text": "{% set s = 'x' * 99999 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "long filters in a loop": "{% for a in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "filters inside filters": "{% for a in range(900) %}{{ range(99999) | map('string') | join | length }}{% endfor %}",
    "a text that doubles": "{% set n = namespace(s='ab') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "a text that is replaced": "{% set n = namespace(s='ab') %}"
    "{% for a in range(60) %}{% set n.s = n.s.replace('a', 'aa') %}{% endfor %}",
    "a long product": "{{ 'x' * 10 ** 12 }}",
    "a large power": "{{ 10 ** (10 ** 9) }}",
    "where a picture is": "{% for p in messages[0].content if p.type == 'image' %}{% for a in range(99999) %}"
    "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "where a message is a text": "{{ messages[0].content + 'x' }}"
    "{% for a in range(99999) %}{% for b in range(9) %}{% endfor %}{% endfor %}",
}
PICTURES = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which?"}] * 800}]


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_would_not_end_is_refused(name: str):
    with pytest.raises(ValueError, match=r"^policy\.model 'm': its chat template .* for one chat: take the chat_template"):
        refuse_endless(ENDLESS[name], "policy.model 'm'", PICTURES)


def test_a_template_by_name_is_looked_at_too():
    refused("200,000 turns", refuse_endless, {"default": "a", "tools": ENDLESS["two loops"]}, "m")


@pytest.mark.parametrize("template", [chat_template("<image>"), "{{ raise_exception('no') }}", "{% broken", None])
def test_other_templates_are_left_to_those_who_use_them(template: str | None):
    refuse_endless(template, "m", PICTURES)
    refuse_endless(template, "m")
