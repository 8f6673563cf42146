"""Adapters added to models file by file, equal to the libraries' own sums in little memory; and weights of a variant."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.app.commands.check import check
from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.export.export import export
from mmrl.app.modality import merge as merging
from mmrl.app.modality.flow import sketch_of_model
from mmrl.app.modality.merge import merge_adapter, merge_in_memory, merge_lora, merge_pipeline_in_memory, on_original
from mmrl.app.modality.registry import modality_of
from mmrl.app.planning.plan import draw_up
from mmrl.app.run.build import build, with_local_model
from mmrl.app.run.folder import RunDir
from mmrl.core.ranks import Ranks
from mmrl.lab.tiny.flow.pipelines import build as build_pipeline
from mmrl.lab.tiny.text.vlms import build as build_model
from mmrl.policies.codes.settings import CodePolicyConfig
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.dry_run import LiveBytes, size_of
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.quantized.table import round_weight, tensors_in
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.training.checkpoints.save import Checkpoints
from tests.support import original_layout
from tests.support.flow_policies import make as make_image_policy
from tests.support.flow_policies import stir as stir_image
from tests.support.runs import assert_same_numbers
from tests.support.text_policies import make

KIB = 2**10


class RealBytes(LiveBytes):
    """Without those of networks on the meta device, which take no memory."""

    def note(self, tensor: Tensor, made_here: bool) -> None:
        if tensor.device.type != "meta":
            super().note(tensor, made_here)


def stir(policy: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    for weight in policy.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator)


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def trained(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bfloat16 model in many files, and an adapter for it. Qwen2.5-VL's files name weights otherwise than its class does."""
    folder = tmp_path_factory.mktemp("merge")
    plain = load(build_model(request.param, folder / "whole"))
    base, adapter = folder / "base", folder / "adapter"
    plain.to(torch.bfloat16).save_pretrained(base, max_shard_size="40KB")
    for file in (folder / "whole").iterdir():
        if not (base / file.name).exists() and file.suffix != ".safetensors":
            (base / file.name).write_bytes(file.read_bytes())
    assert len(list(base.glob("*.safetensors"))) > 2
    policy = make(str(base), lora=LoraSettings(rank=4), dtype="bfloat16")
    stir(policy)
    policy.save(adapter)
    return base, adapter


def load(folder: Path, **settings: Any) -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(folder, **settings)


def merged_by_peft(base: Path, adapter: Path) -> dict[str, Tensor]:
    from peft import PeftModel

    adapted: Any = PeftModel.from_pretrained(load(base, dtype=torch.float32), str(adapter))
    return dict(adapted.merge_and_unload().to(torch.bfloat16).state_dict())


def assert_index_holds(folder: Path, most: int) -> None:
    table = json.loads((folder / "model.safetensors.index.json").read_text())
    held: dict[str, str] = {}
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - a file has no __iter__
        assert not held.keys() & weights.keys()
        held |= dict.fromkeys(weights, file.name)
        assert size_of(weights.values()) <= most or len(weights) == 1
        total += size_of(weights.values())
    assert table["weight_map"] == held and table["metadata"]["total_size"] == total
    count = len(set(held.values()))
    assert set(held.values()) == {f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)}


def test_files_are_merged_one_by_one_as_peft_merges_the_whole(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base, adapter), most = trained, 48 * KIB
    expected = merged_by_peft(base, adapter)
    monkeypatch.setattr(merging, "merge_in_memory", never)
    folder = shutil.copytree(adapter, tmp_path / "merged")
    with RealBytes() as live:
        merge_adapter(folder, str(base), most=most)
    assert_index_holds(folder, most)
    assert not list(folder.glob("adapter*"))
    found = load(folder)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(dict(found.state_dict()), expected, rtol=0, atol=0)
    plain, layer = load(base).state_dict(), "model.language_model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(plain[layer], expected[layer])
    largest = max(weight.numel() for name, weight in expected.items() if ".layers." in name)
    # one file in bfloat16; of one weight its float32 copy, the adapter's product, its scaled form or the sum, and the result
    file = max(most, *(size_of([weight]) for weight in expected.values()))
    assert most / 2 < live.peak <= file + 4 * 4 * largest < size_of(expected.values())


def never(*_: object, **__: object) -> None:
    raise AssertionError("the whole model was loaded")


def test_adapters_that_are_more_than_a_product_of_matrices_are_merged_by_peft(trained: tuple[Path, Path], tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = trained[0]
    adapted = get_peft_model(load(base, dtype=torch.float32), LoraConfig(r=2, target_modules=["up_proj"], use_dora=True))
    stir(adapted)
    adapted.save_pretrained(str(tmp_path / "adapter"))
    folder = shutil.copytree(tmp_path / "adapter", tmp_path / "merged")
    merge_adapter(folder, str(base))
    expected = merged_by_peft(base, tmp_path / "adapter")
    torch.testing.assert_close(dict(load(folder).state_dict()), expected, rtol=0, atol=0)


def test_a_layer_whose_weight_has_no_entry_of_its_own_is_merged_in_memory(tmp_path: Path) -> None:
    """The head of a model that shares it with its embedding stands in no file."""
    from peft import LoraConfig, get_peft_model

    base = build_model("qwen3_vl", tmp_path / "base")
    tied = load(base)
    tied.config.tie_word_embeddings = tied.config.text_config.tie_word_embeddings = True
    tied.tie_weights()
    tied.save_pretrained(tmp_path / "tied")
    adapted = get_peft_model(load(tmp_path / "tied"), LoraConfig(r=2, target_modules=["lm_head"]))
    stir(adapted)
    adapted.save_pretrained(str(tmp_path / "adapter"), save_embedding_layers=False)
    file_way, whole_way = (shutil.copytree(tmp_path / "adapter", tmp_path / name) for name in ("a", "b"))
    merge_adapter(file_way, str(tmp_path / "tied"))
    merge_in_memory(whole_way, str(tmp_path / "tied"))
    torch.testing.assert_close(dict(load(file_way).state_dict()), dict(load(whole_way).state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pipeline_is_merged_as_diffusers_merges_it(tmp_path: Path, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base = build_pipeline("sd3", tmp_path / "sd3")
    policy = make_image_policy(str(base), dtype=dtype)
    stir_image(policy, 0.5)
    policy.save(tmp_path / "adapter")
    config = FlowPolicyConfig(str(base), 16, 16, dtype=dtype, lora=LoraSettings(rank=4, alpha=8))
    file_way, whole_way = (shutil.copytree(tmp_path / "adapter", tmp_path / name) for name in ("a", "b"))
    merge_pipeline_in_memory(whole_way, config)
    monkeypatch.setattr(merging, "merge_pipeline_in_memory", never)
    merge_lora(file_way, config, most=16 * KIB)
    assert {file.name for file in file_way.iterdir()} == {file.name for file in whole_way.iterdir()}
    assert len(list((file_way / "transformer").glob("*.safetensors"))) > 2
    parts: dict[str, Any] = {"text_encoder_3": None, "tokenizer_3": None, "torch_dtype": getattr(torch, dtype)}
    one, other = (DiffusionPipeline.from_pretrained(way, **parts).transformer.state_dict() for way in (file_way, whole_way))
    torch.testing.assert_close(dict(one), dict(other), rtol=0, atol=0)


def test_saving_an_adapter_copies_nothing_of_the_frozen_base(trained: tuple[Path, Path], tmp_path: Path) -> None:
    policy = make(str(trained[0]), lora=LoraSettings(rank=2), dtype="bfloat16", freeze=("layers:0-0",))
    adapter = [weight for name, weight in policy.net.named_parameters() if "lora_" in name]
    with LiveBytes() as live:
        policy.save(tmp_path / "out")
    assert 0 < live.peak <= 2 * size_of(adapter) < size_of(policy.net.parameters())
    with safe_open(tmp_path / "out" / "adapter_model.safetensors", framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a file has no __iter__
    expected = {
        "base_model.model." + name.replace(".default", ""): weight.detach()
        for name, weight in policy.net.model.named_parameters()
        if "lora_" in name
    }
    assert any(not weight.requires_grad for weight in adapter)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
@pytest.mark.parametrize("stored", ["once", "twice"])
def test_a_table_that_is_the_head_too_is_cut_loose(target: str, stored: str, tmp_path: Path):
    """Added to both, an adapter of one of them would make another model."""
    base = Path(build_model("qwen3_vl", tmp_path / "base"))
    whole = load(base)
    whole.config.tie_word_embeddings = whole.config.get_text_config().tie_word_embeddings = True
    whole.tie_weights()
    whole.save_pretrained(base)
    if stored == "twice":
        weights = load_file(base / "model.safetensors")
        weights["lm_head.weight"] = weights["model.language_model.embed_tokens.weight"].clone()
        save_file(weights, base / "model.safetensors", {"format": "pt"})
    policy = make(str(base), lora=LoraSettings(rank=2, targets=(target,)))
    stir(policy)
    policy.save(tmp_path / "merged")
    merge_adapter(tmp_path / "merged", str(base))
    words = {"input_ids": torch.arange(5)[None], "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    with torch.no_grad():
        found, wanted = (net(**words).logits for net in (load(tmp_path / "merged"), policy.net.model))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


NF4 = ["policy.weights=nf4", "policy.lora.rank=4", "optimizer.lr=0.05"]
NF4 += ["save_every=1", "prompts_per_step=2", "evaluation.num_prompts=4"]
KINDS = {
    "text": ["tiny/image", "algorithm={preset='nsr', group_size=2, minibatches=2}", "policy.sampling.max_new_tokens=4"],
    "flow": ["tiny/flow", "policy.quantized.parts=['transformer', 'text_encoders']"],
}


def run(kind: str, *words: str) -> RunDir:
    name, *own = KINDS[kind]
    return run_training(configs.load(name, [*NF4, *own, *words]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumes_exactly_and_its_merged_weights_are_a_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    whole, cut = run(kind, "steps=2", "output=whole"), run(kind, "steps=1", "output=cut")
    run_training(TrainArguments(["steps=2"], resume=cut.path).resolve(), cut.path)
    assert_same_numbers(cut, whole, [1, 2])
    folder = export(whole.path, tmp_path / "merged", merge=True)
    assert not [*folder.glob("adapter_*"), *folder.glob("pytorch_lora_weights*")]
    merged: Any = build(configs.load(KINDS[kind][0], [f"policy.model={folder}", "steps=1", "prompts_per_step=2"])).trainer.policy
    assert merged.config.weights == "float"
    again = configs.load(str(folder / "run.toml"), [f"policy.model={folder}"]).config.policy
    assert not isinstance(again, CodePolicyConfig) and (again.weights, again.lora) == ("float", None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_merged_onto_the_original_weights_where_asked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.chdir(tmp_path)
    trained = run(kind, "steps=1", "output=run")
    checkpoints = Checkpoints(trained.checkpoints)
    state = checkpoints.load(1)
    for weight in state["policy"]["weights"].values():
        weight += 0.05 * torch.ones_like(weight)
    checkpoints.save(2, {**state, "index": 2}, Ranks())
    rounded, original = export(trained.path, tmp_path / "rounded", merge=True), tmp_path / "original"
    assert "differ from those" not in caplog.text
    export(trained.path, original, merge=True, onto="original")
    assert "answers differ from those of training" in caplog.text
    assert "answers differ from those of training" in (original / "README.md").read_text()
    assert "answers differ" not in (rounded / "README.md").read_text()
    base = Path(with_local_model(configs.load(KINDS[kind][0]).config).policy.model)
    network = "" if kind == "text" else "transformer"
    before, with_codes, plain = (weights_of(folder / network) for folder in (base, rounded, original))
    moved = [name for name, weight in plain.items() if not torch.equal(weight, before[name])]
    assert moved
    for name in moved:
        delta = plain[name] - before[name]
        assert torch.allclose(with_codes[name] - delta, round_weight(before[name], True), atol=1e-5)
        assert not torch.allclose(with_codes[name], plain[name], atol=1e-3)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: read(name).float() for name, read in tensors_in(folder.glob("*.safetensors")).items()}


def test_what_was_trained_beside_stored_weights_has_no_others(tmp_path: Path):
    with pytest.raises(ValueError, match="so there are no others to merge it onto: leave --onto out"):
        on_original(configs.load("tiny/image", ["policy.lora.rank=4"]).config.policy)


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose fp16 weights are others than its plain ones, so that a mistake shows."""
    folder = build_model("qwen3_vl", tmp_path_factory.mktemp("variants") / "vlm")
    model: Any = load(folder)
    model.mul = [weight.data.mul_(0.5) for weight in model.parameters()]
    model.half().save_pretrained(folder, variant="fp16")
    return folder


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Transformer and text encoders in fp16 alone, the autoencoder plain alone."""
    folder = build_pipeline("flux", tmp_path_factory.mktemp("variants") / "flux")
    pipeline: Any = DiffusionPipeline.from_pretrained(folder)
    for name in ("transformer", "text_encoder", "text_encoder_2"):
        for file in (folder / name).glob("*.safetensors"):
            file.unlink()
        getattr(pipeline, name).half().save_pretrained(folder / name, variant="fp16")
    return folder


def first(policy: Any) -> Tensor:
    return next(weight for name, weight in policy.net.named_parameters() if "lora" not in name)


def drawing(folder: Path, variant: str | None = "fp16", **more: Any) -> FlowPolicyConfig:
    return FlowPolicyConfig(str(folder), variant=variant, height=16, width=16, max_prompt_tokens=24, **more)


def test_a_writer_reads_the_files_of_its_variant(vlm: Path):
    plain, half = (TextPolicy(TextPolicyConfig(str(vlm), variant=variant)) for variant in (None, "fp16"))
    assert torch.allclose(first(plain), 2 * first(half), atol=1e-3) and first(half).dtype == torch.float32


def test_an_adapter_of_a_variant_loads_and_merges_with_its_weights(vlm: Path, tmp_path: Path):
    """The snippet of a card, and the merge that reads weight by weight."""
    config = TextPolicyConfig(str(vlm), variant="fp16", lora=LoraSettings(rank=2))
    policy = TextPolicy(config)
    policy.save(tmp_path / "adapter")
    own = shutil.copytree(tmp_path / "adapter", tmp_path / "merged")
    lines = modality_of(config).snippet(policy, vlm.name, True)
    assert 'model = AutoModelForImageTextToText.from_pretrained("THIS_FOLDER", variant="fp16")' in lines
    loaded: Any = load(tmp_path / "adapter", variant="fp16")
    merge_adapter(own, str(vlm), variant="fp16")
    merged: Any = load(own)
    for model in (loaded, merged):
        (found,) = [x for name, x in model.named_parameters() if name.endswith("visual.patch_embed.proj.weight")]
        wanted = policy.net.model.model.visual.patch_embed.proj.weight
        assert torch.equal(found.float(), wanted.float())


def test_a_generator_takes_the_variant_where_a_part_has_it(generator: Path, tmp_path: Path):
    policy = FlowPolicy(drawing(generator, lora=LoraSettings(rank=2)))
    plain: Any = DiffusionPipeline.from_pretrained(generator, variant="fp16")
    assert torch.equal(first(policy), next(plain.transformer.parameters()).float())
    policy.save(tmp_path)
    lines = modality_of(policy.config).snippet(policy, "BASE", True)
    assert 'pipeline = DiffusionPipeline.from_pretrained("BASE", variant="fp16")' in lines
    merge_lora(tmp_path, policy.config)
    assert DiffusionPipeline.from_pretrained(tmp_path).transformer is not None


@pytest.mark.parametrize("look", [draw_up, build])
def test_a_missing_variant_names_those_that_exist_before_anything_is_loaded(look: Any, vlm: Path, generator: Path):
    with pytest.raises(ValueError, match=r"vlm' has no weights of policy.variant 'bf16': set it to \"fp16\", or leave it out"):
        look(configs.load("tiny/image", [f"policy.model={vlm}", "policy.variant=bf16"]))
    words = [f"policy.model={generator}", "policy.max_prompt_tokens=24"]
    with pytest.raises(ValueError, match=r"flux' has no weights of policy.variant 'bf16': set it to \"fp16\""):
        look(configs.load("tiny/flow", [*words, "policy.variant=bf16"]))
    with pytest.raises(ValueError, match=r"flux': its part 'text_encoder' has weights of the variant fp16 alone: set policy.var"):
        look(configs.load("tiny/flow", words))


def test_a_plan_counts_a_model_that_has_one_variant_alone(generator: Path):
    kind, sketch = sketch_of_model(drawing(generator))
    assert sketch is not None and kind.__name__ == "Flux"
    resolved = configs.load("tiny/flow", [f"policy.model={generator}", "policy.max_prompt_tokens=24", "policy.variant=fp16"])
    assert draw_up(resolved).memory.parameters > 10_000
    assert replace(drawing(generator), variant=None).variant is None


@pytest.fixture(scope="module")
def sd15(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    return original_layout.make("sd15", tmp_path_factory.mktemp("file"))


def words(base: Path, file: Path) -> list[str]:
    tokens = ["policy.max_prompt_tokens=77", "algorithm.group_size=2", "algorithm.schedule.num_steps=2", "evaluation.num_steps=2"]
    spaced = "algorithm.schedule.spacing={kind='DiffusionTable'}"
    return [f"policy.model={file}", f"policy.base={base}", "policy.lora.rank=2", "prompts_per_step=2", spaced, *tokens]


def test_plan_check_train_resume_and_export(
    sd15: tuple[Any, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    _, base, file = sd15
    monkeypatch.chdir(tmp_path)
    given = words(base, file)
    planned = draw_up(configs.load("tiny/flow", given))
    assert planned.memory.parameters == sum(p.numel() for p in sd15[0].unet.parameters()) + planned.memory.trained
    assert check("tiny/flow", given), capsys.readouterr().out
    run_training(TrainArguments(["tiny/flow", *given, "steps=1"], output=tmp_path / "run").resolve())
    train(TrainArguments(["steps=2"], resume=tmp_path / "run"))
    assert [line["step"] for line in RunDir(tmp_path / "run").read_metrics().lines][-1] == 2
    adapter, merged = export(tmp_path / "run", tmp_path / "adapter"), export(tmp_path / "run", tmp_path / "merged", merge=True)
    card = (adapter / "README.md").read_text()
    assert f'diffusers.StableDiffusionPipeline.from_single_file("{file.name}", config="{base.name}")' in card
    assert "- base model: sd15.safetensors" in card and (merged / "unet" / "config.json").is_file()


@pytest.mark.parametrize("family", ["sd15", "z_image"])
def test_the_lines_of_a_card_load_what_was_trained(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Text encoders inside a file are read by the pipeline's own loader, a transformer alone by its class."""
    _, base, file = original_layout.make(family, tmp_path)
    config = FlowPolicyConfig(str(file), base=str(base), height=16, width=16, lora=LoraSettings(rank=2))
    policy = FlowPolicy(config)
    stir_image(policy)
    policy.save(tmp_path / "THIS_FOLDER")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec("\n".join(modality_of(config).snippet(policy, file.name, True)), found)
    pipeline = found["pipeline"]
    for name, part in policy.pipeline.components.items():
        if isinstance(part, nn.Module):
            own, other = dict(part.named_parameters()), dict(getattr(pipeline, name).named_parameters())
            plain = {key for key in own if "lora" not in key}
            assert plain and all(torch.equal(own[key], other[key]) for key in plain)
    assert any("lora" in key for key, _ in pipeline.components[policy.family.networks[0]].named_parameters())
