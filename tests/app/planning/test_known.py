"""Plans of published models without a network: their settings come with mmrl, and the real classes are as large as stated."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from mmrl.app.commands import plan
from mmrl.app.commands.options import PlanArguments
from mmrl.app.config.run import RunConfig, load
from mmrl.app.planning.known import files_by_name, note_of, settings_of, with_settings
from mmrl.app.planning.plan import draw_up
from mmrl.policies.flow.dry_run import size_of_generator
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.dry_run import meta_model
from mmrl.policies.text.settings import TextPolicyConfig
from tests.support.each import for_each

FILES = sorted(files_by_name().values())
READ: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in FILES}
WRITERS = [name for name, known in READ.items() if "files" not in known]
LARGEST = 4096


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
        yield


def config_of(name: str, *words: str) -> RunConfig:
    known = READ[name]
    return load("tiny/image" if name in WRITERS else "tiny/flow", [f"policy.model={known['repository']}", *words]).config


@pytest.mark.parametrize("name", READ)
def test_the_real_class_has_the_stated_number_of_weights(name: str):
    policy = with_settings(config_of(name)).policy
    if isinstance(policy, TextPolicyConfig):
        count = sum(weight.numel() for weight in meta_model(policy)[0].parameters())
    else:
        assert isinstance(policy, FlowPolicyConfig)
        count, _ = size_of_generator(policy)
    assert count == READ[name]["weights"]


@for_each("file", FILES, ids=lambda file: file.stem)
def test_files_are_small_and_say_where_they_are_from(file: Path):
    known = READ[file.stem]
    assert file.stat().st_size < LARGEST and known["source"]
    assert file.stem == known["repository"].replace("/", "--")


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
@pytest.mark.parametrize("asked", ["config", "task"])
def test_a_plan_says_if_a_named_card_is_enough(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    model = "Qwen/Qwen2.5-VL-7B-Instruct"
    if asked == "task":
        given = PlanArguments(["data.size=8", "steps=5"], task="grounding", model=model, data="shapes", rewards=["iou"])
    else:
        words = ["policy.dtype=bfloat16", "policy.lora.rank=8", "policy.gradient_checkpointing=true", "evaluation={}"]
        given = PlanArguments(["tiny/image", f"policy.model={model}", "evaluate_every=0", *words])
    assert plan.plan(replace(given, card="RTX 4090", as_json=True))
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"] == model and facts["fits"]
    assert 8.29e9 < facts["memory"]["parameters"] - facts["memory"]["trained"] < 8.30e9
    assert facts["note"].startswith(f"{model} is not on this machine, so its published settings are counted")
    assert "one token per letter" in facts["note"]


def test_pictures_take_the_published_number_of_tokens():
    """448 x 448 pixels are 16 x 16 tokens of 28 pixels for Qwen2.5-VL, and 256 for Gemma whatever the size."""
    from PIL import Image
    from transformers import AutoProcessor

    picture = Image.new("RGB", (448, 448))
    for name, token, count in (
        ("Qwen--Qwen2.5-VL-3B-Instruct", "<|image_pad|>", 256),
        ("google--gemma-3-4b-it", "<image_soft_token>", 256),
    ):
        processor: Any = AutoProcessor.from_pretrained(with_settings(config_of(name)).policy.model)
        chat = [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "?"}]}]
        made = processor.apply_chat_template(chat, tokenize=True, return_dict=True, return_tensors="pt")
        assert int((made["input_ids"] == processor.tokenizer.convert_tokens_to_ids(token)).sum()) == count


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
def test_a_generator_is_planned_with_its_encoders():
    small = [
        "policy.height=256",
        "policy.width=256",
        "policy.max_prompt_tokens=77",
        "policy.dtype=bfloat16",
        "policy.lora.rank=8",
    ]
    made = draw_up(load("tiny/flow", ["policy.model=stabilityai/stable-diffusion-3.5-medium", "micro_batch=1", *small]))
    assert 2.24e9 < made.memory.parameters - made.memory.trained < 2.25e9
    beside = {name: size for name, size in made.memory.stays.items() if "text_encoder" in name}
    assert len(beside) == 3 and 10.8e9 < sum(beside.values()) < 11.3e9
    assert "letter" not in made.note


def test_what_is_on_this_machine_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = "Qwen--Qwen2.5-VL-7B-Instruct"
    assert settings_of(config_of(name)) is not None
    stored = Path(constants.HF_HUB_CACHE) / f"models--{name}" / "snapshots" / "abc"
    stored.mkdir(parents=True)
    (stored.parents[1] / "refs").mkdir()
    (stored.parents[1] / "refs" / "main").write_text("abc")
    (stored / "config.json").write_text("{}")
    try:
        assert settings_of(config_of(name)) is None and note_of(config_of(name)) == ""
    finally:
        shutil.rmtree(stored.parents[1])
    monkeypatch.chdir(tmp_path)
    (tmp_path / READ[name]["repository"]).mkdir(parents=True)
    assert settings_of(config_of(name)) is None


@pytest.mark.parametrize("name", ["nobody/nothing", "tiny:qwen3_vl"])
def test_other_models_stay_as_they_are(name: str):
    assert settings_of(load("tiny/image", [f"policy.model={name}"]).config) is None


def test_a_generator_is_no_writer():
    config = load("tiny/image", ["policy.model=black-forest-labs/FLUX.1-dev"]).config
    assert settings_of(config) is None
