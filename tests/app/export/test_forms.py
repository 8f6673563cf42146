"""An exported adapter does the same wherever it is read: by diffusers, without its metadata, by peft, and under kohya's names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from mmrl.app.commands.train import run_training
from mmrl.app.export.export import WEIGHTS, export
from mmrl.app.run.folder import RunDir
from mmrl.lab.models import tiny_model
from tests.support.flow_runs import Make

WORDS = ("steps=1", "output=run", "policy.lora.rank=2", "policy.lora.alpha=6", "optimizer.lr=0.1", "evaluation.num_prompts=2")


def pipeline_from(family: str) -> Any:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    base = tiny_model(f"tiny:{family}", "flow")
    absent = {"text_encoder_3": None, "tokenizer_3": None} if family == "sd3" else {}
    return DiffusionPipeline.from_pretrained(base, **absent)


def added(family: str, load: Callable[[Any], object]) -> dict[str, torch.Tensor]:
    """What an adapter that `load` puts into the pipeline adds to each weight of its network."""
    plain, pipeline = pipeline_from(family), pipeline_from(family)
    load(pipeline)
    pipeline.fuse_lora()
    pipeline.unload_lora_weights()
    return differences(network(plain), network(pipeline))


def network(pipeline: Any) -> Any:
    return pipeline.unet if hasattr(pipeline, "unet") else pipeline.transformer


def differences(before: Any, after: Any) -> dict[str, torch.Tensor]:
    old = before.state_dict()
    found = {name: weight - old[name] for name, weight in after.state_dict().items()}
    return {name: change for name, change in found.items() if change.any()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one and one.keys() == other.keys()
    for name, change in one.items():
        torch.testing.assert_close(change, other[name], rtol=1e-4, atol=1e-6)


@pytest.fixture
def trained(make: Make) -> Callable[[str], RunDir]:
    return lambda family: run_training(make(*WORDS, f"policy.model=tiny:{family}"))


def test_no_program_needs_the_metadata_to_apply_an_adapter_in_full(trained: Any, tmp_path: Path) -> None:
    run = trained("sd3")
    out, merged = export(run.path, tmp_path / "out"), export(run.path, tmp_path / "merged", merge=True)
    by_diffusers = added("sd3", lambda pipeline: pipeline.load_lora_weights(out))
    bare = tmp_path / "bare"
    bare.mkdir()
    save_file(load_file(out / WEIGHTS), bare / WEIGHTS)
    assert_same(by_diffusers, added("sd3", lambda pipeline: pipeline.load_lora_weights(bare)))
    whole = type(network(pipeline_from("sd3"))).from_pretrained(merged / "transformer")
    assert_same(by_diffusers, differences(network(pipeline_from("sd3")), whole))


def test_the_card_of_an_adapter_for_peft_loads_it(trained: Any, tmp_path: Path) -> None:
    run = trained("sd3")
    out = export(run.path, tmp_path / "peft", form="peft")
    assert sorted(file.name for file in out.glob("*.safetensors")) == ["adapter_model.safetensors"]
    base = tiny_model("tiny:sd3", "flow")
    code = (out / "README.md").read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace("THIS_FOLDER", str(out)).replace("tiny:sd3", str(base)), names)
    whole = names["pipeline"].transformer.merge_and_unload()
    plain = export(run.path, tmp_path / "out")
    assert_same(differences(network(pipeline_from("sd3")), whole), added("sd3", lambda pipe: pipe.load_lora_weights(plain)))


def test_kohyas_names_and_alphas_mean_the_same(trained: Any, tmp_path: Path) -> None:
    run = trained("sd15")
    out, kohya = export(run.path, tmp_path / "out"), export(run.path, tmp_path / "kohya", form="kohya")
    names = set(load_file(kohya / WEIGHTS))
    assert all(name.startswith("lora_unet_") for name in names)
    assert {name.rpartition(".")[0].removesuffix(".lora_down") for name in names if ".lora_down" in name} == {
        name.removesuffix(".alpha") for name in names if name.endswith(".alpha")
    }
    loads = [lambda pipe, folder=folder: pipe.load_lora_weights(folder) for folder in (out, kohya)]
    assert_same(*(added("sd15", load) for load in loads))


def test_forms_that_a_model_has_not_are_refused_before_it_is_loaded(trained: Any, tmp_path: Path, monkeypatch: Any) -> None:
    run = trained("sd3")
    monkeypatch.setattr("mmrl.app.export.export.revive", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(ValueError, match="--form kohya writes the names of Stable Diffusion's UNet"):
        export(run.path, tmp_path / "out", form="kohya")
    with pytest.raises(ValueError, match=r"--form peft is about adapters.*leave --form out"):
        export(run.path, tmp_path / "out", merge=True, form="peft")
    assert not list(tmp_path.glob("out*"))


def test_the_card_shows_the_first_held_out_pictures(trained: Any, tmp_path: Path) -> None:
    run = trained("sd3")
    out = export(run.path, tmp_path / "out")
    card = (out / "README.md").read_text().partition("## Pictures")[2]
    lines = [json.loads(line) for line in run.samples_file("eval", 1).read_text().splitlines()]
    assert "The first 2 held-out prompts at step 1" in card
    for i, text in enumerate(dict.fromkeys(line["text"] for line in lines)):
        assert f"![Picture {i + 1}](samples/{i}.png)\n\n    {text}\n" in card
        Image.open(out / "samples" / f"{i}.png").verify()
