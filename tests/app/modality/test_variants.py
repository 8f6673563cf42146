"""`policy.variant` through loading, exports and errors, for models that write and that draw."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from torch import Tensor, nn

from mmrl.app.commands.check import check
from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config.run import load
from mmrl.app.export.export import export
from mmrl.app.modality.flow import sketch_of_model
from mmrl.app.modality.merge import merge_adapter, merge_lora
from mmrl.app.modality.registry import modality_of
from mmrl.app.planning.plan import draw_up
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.lab.tiny.flow.pipelines import build as build_pipeline
from mmrl.lab.tiny.text.vlms import build as build_model
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import EngineConfig, TextPolicyConfig
from tests.support import original_layout
from tests.support.flow_policies import stir


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose fp16 weights are others than its plain ones, so that a mistake shows."""
    from transformers import AutoModelForImageTextToText

    folder = build_model("qwen3_vl", tmp_path_factory.mktemp("variants") / "vlm")
    model: Any = AutoModelForImageTextToText.from_pretrained(folder)
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
    from transformers import AutoModelForImageTextToText

    config = TextPolicyConfig(str(vlm), variant="fp16", lora=LoraSettings(rank=2))
    policy = TextPolicy(config)
    policy.save(tmp_path / "adapter")
    own = shutil.copytree(tmp_path / "adapter", tmp_path / "merged")
    lines = modality_of(config).snippet(policy, vlm.name, True)
    assert 'model = AutoModelForImageTextToText.from_pretrained("THIS_FOLDER", variant="fp16")' in lines
    loaded: Any = AutoModelForImageTextToText.from_pretrained(tmp_path / "adapter", variant="fp16")
    merge_adapter(own, str(vlm), variant="fp16")
    merged: Any = AutoModelForImageTextToText.from_pretrained(own)
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
        look(load("tiny/image", [f"policy.model={vlm}", "policy.variant=bf16"]))
    words = [f"policy.model={generator}", "policy.max_prompt_tokens=24"]
    with pytest.raises(ValueError, match=r"flux' has no weights of policy.variant 'bf16': set it to \"fp16\""):
        look(load("tiny/flow", [*words, "policy.variant=bf16"]))
    with pytest.raises(ValueError, match=r"flux': its part 'text_encoder' has weights of the variant fp16 alone: set policy.var"):
        look(load("tiny/flow", words))


def test_an_engine_reads_plain_weights_alone(vlm: Path):
    with pytest.raises(ValueError, match=r"\[policy.engine\] reads the plain weights of a model: save those of the variant"):
        TextPolicyConfig(str(vlm), variant="fp16", engine=EngineConfig())


def test_one_file_is_no_model_that_writes():
    with pytest.raises(ValueError, match="is one file, which generators alone come in"):
        TextPolicy(TextPolicyConfig("model.safetensors"))


def test_a_plan_counts_a_model_that_has_one_variant_alone(generator: Path):
    kind, sketch = sketch_of_model(drawing(generator))
    assert sketch is not None and kind.__name__ == "Flux"
    resolved = load("tiny/flow", [f"policy.model={generator}", "policy.max_prompt_tokens=24", "policy.variant=fp16"])
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
    planned = draw_up(load("tiny/flow", given))
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
    stir(policy)
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
