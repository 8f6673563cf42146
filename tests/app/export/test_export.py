import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.app.commands.train import run_training
from mmrl.app.config.run import load
from mmrl.app.errors import sentence
from mmrl.app.export.card import results
from mmrl.app.export.export import WEIGHTS, check_push, export, export_and_push, push_folder, without_folders
from mmrl.app.modality.text import TextModality
from mmrl.app.report.data import load as load_run
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import revive
from mmrl.app.run.trackers import JsonlTracker
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group, Prompt, Sample, Scores
from mmrl.lab.models import tiny_model
from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
from mmrl.runtime.net import offline
from mmrl.training.callbacks import Examples
from mmrl.training.checkpoints.save import CheckpointError, Checkpoints
from tests.policies.text.families.test_hearing import GEMMA, MOE, THINKER, whole
from tests.support.flow_runs import Make, loaded_by_card
from tests.support.hub import TOKEN, Hub, small_hub
from tests.support.text_policies import LATE, make

CONFIG = """steps = 5
prompts_per_step = 4
[algorithm]
preset = "grpo"
[policy]
kind = "text"
model = "{model}"
{lora}
[data]
use = "grounding_jsonl"
[[reward]]
use = "iou"
weight = 0.5
"""
IDS = torch.tensor([[5, 9, 30, 12]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("base") / "tiny-qwen")


@pytest.fixture
def run_of(base: Path, tmp_path: Path) -> Callable[[bool], tuple[RunDir, dict[int, torch.Tensor]]]:
    """A run with checkpoints 3 and 5 of moved weights, and the logits of each."""

    def make(lora: bool) -> tuple[RunDir, dict[int, torch.Tensor]]:
        run = RunDir.create(tmp_path / "run")
        run.config_file.write_text(CONFIG.format(model=base, lora="[policy.lora]\nrank = 4" if lora else ""))
        policy = revive(load(str(run.config_file)).config, None, None, frozenset({"ref"}))
        assert isinstance(policy, TextPolicy)
        generator = torch.Generator().manual_seed(0)
        logits: dict[int, torch.Tensor] = {}
        for step in (3, 5):
            for weight in policy.parameters():
                weight.data += 0.05 * torch.randn(weight.shape, generator=generator)
            logits[step] = logits_of(policy.net.model)
            Checkpoints(run.checkpoints).save(step, {"index": step, "policy": policy.state_dict()}, Ranks())
        return run, logits

    return make


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits.float()


def loaded(folder: Path) -> Any:
    assert AutoProcessor.from_pretrained(folder).chat_template
    return AutoModelForImageTextToText.from_pretrained(folder)


def test_fully_trained_weights_load_in_transformers(run_of: Any, tmp_path: Path) -> None:
    run, logits = run_of(lora=False)
    out = export(run.path, tmp_path / "out")
    torch.testing.assert_close(logits_of(loaded(out)), logits[5])
    torch.testing.assert_close(logits_of(loaded(export(run.path, tmp_path / "three", step=3))), logits[3])
    with pytest.raises(ValueError, match="no adapter to merge: leave out --merge"):
        export(run.path, tmp_path / "merged", merge=True)


def test_an_adapter_loads_in_peft_and_in_transformers_and_merged_weights_need_neither(
    run_of: Any, base: Path, tmp_path: Path
) -> None:
    run, logits = run_of(lora=True)
    adapter = export(run.path, tmp_path / "adapter")
    plain = AutoModelForImageTextToText.from_pretrained(base)
    assert not torch.allclose(logits_of(plain), logits[5], atol=1e-2)
    torch.testing.assert_close(logits_of(PeftModel.from_pretrained(plain, str(adapter))), logits[5])
    torch.testing.assert_close(logits_of(loaded(adapter)), logits[5])
    merged = export(run.path, tmp_path / "merged", merge=True)
    assert not list(merged.glob("adapter*"))
    torch.testing.assert_close(logits_of(loaded(merged)), logits[5], rtol=1e-4, atol=1e-5)


def test_the_card_tells_method_reward_base_and_the_figures_of_its_step(run_of: Any, tmp_path: Path) -> None:
    run, _ = run_of(lora=True)
    evaluated(run, 0, "p", 0.25)
    evaluated(run, 5, "p", 0.75)
    card = (export(run.path, tmp_path / "out") / "README.md").read_text()
    assert "- method: grpo, step 5 of 5, 4 prompts a step" in card and "- rewards: iou (weight 0.5)" in card
    assert "- base model: tiny-qwen\n" in card and "library_name: peft" in card and str(tmp_path) not in card
    assert "| Reward | 0.250 | 0.750 | too few prompts | +0.500 | too few prompts |" in card
    assert "not evaluated at this step" in (export(run.path, tmp_path / "3", step=3) / "README.md").read_text()
    merged = (export(run.path, tmp_path / "merged", merge=True) / "README.md").read_text()
    assert "library_name: transformers" in merged and "merged LoRA" in merged


def test_every_number_of_a_card_has_its_interval(run_of: Any, tmp_path: Path) -> None:
    run, _ = run_of(lora=False)
    values = torch.tensor([[0.0], [1.0]] * 6)
    ok = torch.zeros(12, 1, dtype=torch.long)
    groups = [Group(i, Prompt(f"p{i}", "?"), (Sample(text="a"),)) for i in range(12)]
    JsonlTracker(run).write(5, Examples(groups, Scores(("iou",), values, ok, torch.ones(1))), "eval")
    first = (export(run.path, tmp_path / "first") / "README.md").read_text()
    row = re.search(r"\| Reward \| 0\.500 \| (0\.\d{3}) to (0\.\d{3}) \|", first)
    assert row is not None and 0.2 < float(row[1]) < 0.3 and 0.7 < float(row[2]) < 0.8
    assert "not evaluated before training" in first
    JsonlTracker(run).write(0, Examples(groups, Scores(("iou",), values - 0.25, ok, torch.ones(1))), "eval")
    both = (export(run.path, tmp_path / "both") / "README.md").read_text()
    assert f"| Reward | 0.250 | 0.500 | {row[1]} to {row[2]} | +0.250 | +0.250 to +0.250 |" in both


def test_an_adapter_says_how_to_measure_it_and_the_config_names_no_folder(run_of: Any, tmp_path: Path) -> None:
    run, _ = run_of(lora=True)
    text = run.config_file.read_text() + f'[evaluation.data]\nuse = "grounding_jsonl"\npath = "{tmp_path}/held_out.jsonl"\n'
    run.config_file.write_text(text)
    for merge, words in ((False, "policy.lora.adapter=THIS_FOLDER"), (True, "policy.model=THIS_FOLDER")):
        folder = export(run.path, tmp_path / f"out-{merge}", merge=merge)
        assert f"mmrl eval run.toml {words}\n" in (folder / "README.md").read_text()
        config = (folder / "run.toml").read_text()
        assert str(tmp_path) not in config and 'path = "held_out.jsonl"' in config
        assert (load(str(folder / "run.toml")).config.policy.lora is None) == merge
    facts = json.loads((folder / "prompt_template.json").read_text())
    assert facts["template"] == "none" and facts["prefix"] == facts["suffix"] == facts["system"] == ""
    assert facts["box_space"] == "norm1000" and facts["generate"]["repetition_penalty"] == 1
    assert "adding the adapter to the weights rounded them" in (folder / "README.md").read_text()


def test_words_for_a_model_that_begin_with_a_slash_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "my data.jsonl").touch()
    words = {"system_prompt": "/no_think", "answer_format": "{question} /think", "stop": ["/end"], "template": "~ {question}"}
    places = {"path": str(tmp_path / "my data.jsonl"), "model": "/models/qwen/base", "adapter": "~/adapters/first"}
    assert without_folders({"policy": words, "data": [places]}) == {
        "policy": words,
        "data": [{"path": "my data.jsonl", "model": "base", "adapter": "first"}],
    }


def test_nothing_is_overwritten_and_nothing_half_written_stays(run_of: Any, tmp_path: Path) -> None:
    run, _ = run_of(lora=True)
    (full := tmp_path / "full").mkdir()
    (full / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="full is not empty: give a new folder"):
        export(run.path, full)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 4 \(there: 3, 5\)"):
        export(run.path, tmp_path / "out", step=4)
    manifest = run.checkpoints / "step-5" / "manifest.json"
    damaged = json.loads(manifest.read_text())
    damaged["sha256"]["policy.pt"] = "0" * 64
    manifest.write_text(json.dumps(damaged))
    card = (export(run.path, tmp_path / "out") / "README.md").read_text()
    assert "step 3 of 5" in card and not list(tmp_path.glob("*.partial"))


def test_the_policy_is_gone_before_weights_are_merged(run_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models at a time are what a machine that trained one has no memory for."""
    run, _ = run_of(lora=True)
    alive: list[int] = []

    def policies() -> int:
        # type(): objects that are looked at by isinstance may import modules
        return sum(type(one) is TextPolicy for one in gc.get_objects())

    gc.collect()
    before = policies()
    monkeypatch.setattr(TextModality, "merge", lambda *_: alive.append(policies()))
    export(run.path, tmp_path / "merged", merge=True)
    assert alive == [before]


WORDS = ("steps=1", "output=run", "policy.lora.rank=2", "policy.lora.alpha=6", "optimizer.lr=0.1", "evaluation.num_prompts=2")


def pipeline_from(family: str) -> Any:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    absent = {"text_encoder_3": None, "tokenizer_3": None} if family == "sd3" else {}
    return DiffusionPipeline.from_pretrained(tiny_model(f"tiny:{family}", "flow"), **absent)


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
    (bare := tmp_path / "bare").mkdir()
    save_file(load_file(out / WEIGHTS), bare / WEIGHTS)
    assert_same(by_diffusers, added("sd3", lambda pipeline: pipeline.load_lora_weights(bare)))
    whole = type(network(pipeline_from("sd3"))).from_pretrained(merged / "transformer")
    assert_same(by_diffusers, differences(network(pipeline_from("sd3")), whole))
    assert_pictures_shown(out, run)


def test_the_card_of_an_adapter_for_peft_loads_it_and_forms_that_a_model_has_not_are_refused(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These before it is loaded."""
    run = trained("sd3")
    out = export(run.path, tmp_path / "peft", form="peft")
    assert sorted(file.name for file in out.glob("*.safetensors")) == ["adapter_model.safetensors"]
    whole = loaded_by_card(out, "tiny:sd3").transformer.merge_and_unload()
    plain = export(run.path, tmp_path / "plain")
    assert_same(differences(network(pipeline_from("sd3")), whole), added("sd3", lambda pipe: pipe.load_lora_weights(plain)))
    monkeypatch.setattr("mmrl.app.export.export.revive", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(ValueError, match="--form kohya writes the names of Stable Diffusion's UNet"):
        export(run.path, tmp_path / "out", form="kohya")
    with pytest.raises(ValueError, match=r"--form peft is about adapters.*leave --form out"):
        export(run.path, tmp_path / "out", merge=True, form="peft")
    assert not list(tmp_path.glob("out*"))


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


def assert_pictures_shown(out: Path, run: RunDir) -> None:
    """The card shows the first held-out pictures."""
    card = (out / "README.md").read_text().partition("## Pictures")[2]
    lines = [json.loads(line) for line in run.samples_file("eval", 1).read_text().splitlines()]
    assert "The first 2 held-out prompts at step 1" in card
    for i, text in enumerate(dict.fromkeys(line["text"] for line in lines)):
        assert f"![Picture {i + 1}](samples/{i}.png)\n\n    {text}\n" in card
        Image.open(out / "samples" / f"{i}.png").verify()


NAME = "me/my-model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that this process speaks with, uploading by LFS."""
    from huggingface_hub import constants

    with small_hub() as found:
        for name in offline.SWITCHES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "out" / "part").mkdir(parents=True)
    (made / "config.json").write_text("{}")
    (made.parent / "README.md").write_text("---\nlibrary_name: peft\n---\n# mine\n")
    (made.parent / "model.safetensors").write_bytes(bytes(range(256)) * 20)
    return made.parent


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_command_says_what_it_pushes_and_pushes_that(base: Path, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    place = 'use = "grounding_jsonl"\npath = "/home/somebody/boxes.jsonl"'
    run.config_file.write_text(CONFIG.format(model=base, lora="").replace('use = "grounding_jsonl"', place))
    policy = revive(load(str(run.config_file)).config, None, None)
    Checkpoints(run.checkpoints).save(1, {"index": 1, "policy": policy.state_dict()}, Ranks())
    kept = {name: value for name, value in os.environ.items() if name not in offline.SWITCHES}
    with small_hub() as hub:
        told = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
        words = [sys.executable, "-m", "mmrl", "export", str(run.path), str(tmp_path / "out"), "--push", NAME, "--private"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=kept | told, check=False)
    assert done.returncode == 0, done.stderr
    pushed = hub.repositories[NAME]
    assert pushed.private and pushed.commits == ["Export of a run of mmrl"]
    assert pushed.files == contents(tmp_path / "out") and hub.blobs, "weights came by LFS"
    first = done.stdout.splitlines()[0]
    assert re.fullmatch(rf"pushing {len(pushed.files)} files, [\d.]+ [kM]B, to {NAME} \(private\):", first)
    assert all(f"  {name}  " in done.stdout for name in pushed.files)
    assert done.stdout.splitlines()[-1] == f"{hub.address}/{NAME}"
    assert {"README.md", "prompt_template.json", "run.toml", "config.json", "model.safetensors"} <= pushed.files.keys()
    assert json.loads(pushed.files["prompt_template.json"])["template"] == "none"
    assert b"somebody" not in b"".join(pushed.files.values())


QUIET = Console(quiet=True)


def test_a_second_push_is_a_second_commit_and_private_is_never_public(hub: Hub, folder: Path) -> None:
    check_push(NAME)
    push_folder(folder, NAME, False, QUIET)
    (folder / "README.md").write_text("---\nlibrary_name: peft\n---\n# other\n")
    push_folder(folder, NAME, False, QUIET)
    assert len(hub.repositories[NAME].commits) == 2 and hub.repositories[NAME].files == contents(folder)
    asked = len(hub.asked)
    with pytest.raises(ValueError, match="it is there already, and public: make it private in its settings"):
        push_folder(folder, NAME, True, QUIET)
    assert not any("commit" in request or "blob" in request for request in hub.asked[asked:])


@pytest.mark.parametrize("name", ["model", "me/you/model", "me/", "me/a model", "me/-model", "me/model.git", ""])
def test_a_wrong_name_is_refused_before_anything_is_asked(hub: Hub, name: str) -> None:
    with pytest.raises(ValueError, match="write OWNER/NAME"):
        check_push(name)
    assert hub.asked == []


def test_without_token_or_network_nothing_is_exported(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ValueError, match=r"the hub answered 401 .*it does not know the token: run `hf auth login`"):
        export_and_push(lambda: export(tmp_path / "run", tmp_path / "new"), NAME, False)
    monkeypatch.delenv("HF_TOKEN")
    for told, error, said in (
        ({}, ValueError, "there is no token for the Hugging Face hub"),
        (
            {"HF_TOKEN": TOKEN, "HF_ENDPOINT": "http://127.0.0.1:9"},
            FileNotFoundError,
            "cannot be reached .*check the network, or export without --push",
        ),
        ({"HF_HUB_OFFLINE": "1"}, ValueError, "nothing goes to the hub while HF_HUB_OFFLINE"),
    ):
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(error, match=said):
            check_push(NAME)
    with pytest.raises(ValueError, match="name it with --push OWNER/NAME, or leave --private out"):
        export_and_push(lambda: export(tmp_path / "run", tmp_path / "new"), None, True)
    assert not (tmp_path / "new").exists()


def test_what_the_hub_refuses_is_one_sentence(hub: Hub, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"--push you/model: the hub answered 403 .*the token may not write there") as refused:
        push_folder(folder, "you/model", False, QUIET)
    assert "\n" not in sentence(refused.value)
    hub.refuses_blobs = True
    with pytest.raises((ValueError, FileNotFoundError), match="--push me/my-model: the ") as broken:
        push_folder(folder, NAME, False, QUIET)
    assert hub.repositories[NAME].commits == [] and "\n" not in sentence(broken.value)


def moved_adapter(folder: str, out: Path) -> torch.Tensor:
    """Save an adapter with weights that move logits; returns the policy's own."""
    policy = make(folder, lora=LoraSettings(rank=2))
    draws = torch.Generator().manual_seed(0)
    for weight in policy.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=draws)
    policy.save(out)
    return logits_of(policy.net.model)


@pytest.mark.parametrize("family", [MOE, GEMMA, *(pytest.param(name, marks=pytest.mark.evidence) for name in (THINKER, *LATE))])
def test_an_adapter_loads_in_peft_and_merged_weights_need_none(family: str, tmp_path: Path):
    folder = str(build(family, tmp_path / "base"))
    expected = moved_adapter(folder, tmp_path / "out")
    base = AutoModelForImageTextToText.from_pretrained(folder)
    assert float((logits_of(base) - expected).abs().max()) > 1e-3, "the adapter changes what is written"
    torch.testing.assert_close(logits_of(PeftModel.from_pretrained(base, tmp_path / "out")), expected, atol=2e-5, rtol=0)
    TextModality().merge(tmp_path / "out", TextPolicyConfig(folder))
    alone = AutoModelForImageTextToText.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(logits_of(alone), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("family", [MOE, pytest.param(THINKER, marks=pytest.mark.evidence)])
def test_an_adapter_of_a_whole_folder_is_merged_into_its_thinker(family: str, tmp_path: Path):
    """The other parts stay as they are, and the thinker's own class and mmrl load what comes out."""
    (tmp_path / "whole").mkdir()
    folder = str(whole(str(build(family, tmp_path / family)), tmp_path / "whole"))
    expected = moved_adapter(folder, tmp_path / "out")
    TextModality().merge(tmp_path / "out", TextPolicyConfig(folder))
    policy = make(str(tmp_path / "out"))
    alone = type(policy.net.model).from_pretrained(tmp_path / "out")
    for model in (alone, policy.net.model):
        torch.testing.assert_close(logits_of(model), expected, atol=2e-5, rtol=0)
    kept = load_file(tmp_path / "out" / "model.safetensors")
    assert "talker.model.norm.weight" in kept and json.loads((tmp_path / "out" / "config.json").read_text())["thinker_config"]


def evaluated(run: RunDir, step: int, prompt: str, *values: float) -> None:
    """Keep an evaluation of one prompt, with a reward per value."""
    names = tuple(f"reward{i}" for i in range(len(values)))
    scores = Scores(names, torch.tensor([values]), torch.zeros(1, len(values), dtype=torch.long), torch.ones(len(values)))
    JsonlTracker(run).write(step, Examples([Group(0, Prompt(prompt, "?"), (Sample(text="a"),))], scores), "eval")


def results_of(folder: Path, prompt: str, *values: float) -> list[str]:
    """What a card says of prompt "p" after training, where this prompt was evaluated before."""
    run = RunDir.create(folder)
    evaluated(run, 0, prompt, *values)
    evaluated(run, 5, "p", 0.75)
    run.config_file.write_text("steps = 5\n")
    return results(load_run(run.path), 5)


def test_other_prompts_or_rewards_than_before_training_stand_alone(tmp_path: Path):
    lines = results_of(tmp_path / "prompts", "other", 0.25)
    assert lines[0].startswith("Before training other held-out prompts or rewards were evaluated")
    assert "| Reward | 0.750 | too few prompts |" in lines
    rows = [line for line in results_of(tmp_path / "rewards", "p", 0.25, 0.5) if line.startswith(("| R", "| r"))]
    assert rows == ["| Reward | 0.750 | 0.750 | too few prompts | +0.000 | too few prompts |"]
