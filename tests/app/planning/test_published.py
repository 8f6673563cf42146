"""Plans of published models, from settings and shapes alone: as large as stated, and on the cards that are named."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants
from PIL import Image

from benchmarks.real_size import LOAD, SHAPES, Bench, memory_of, rows_of, watch
from benchmarks.shapes import QUESTION, TEXT, change, flux, stable_diffusion, vlm, vlm_with_weights
from mmrl.app.commands.options import PlanArguments
from mmrl.app.commands.plan import Plan, plan
from mmrl.app.config.run import RunConfig, load
from mmrl.app.planning.known import files_by_name, note_of, settings_of, with_settings
from mmrl.app.planning.memory import GIB, advice
from mmrl.app.planning.plan import draw_up
from mmrl.app.toml.tables import Table
from mmrl.data.drawn.public_layouts import draw, write_json
from mmrl.data.files.mp4 import write_mp4
from mmrl.lab.recipes.facts import find_recipe, recipe_files, recipes
from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.flow.dry_run import size_of_generator
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.dry_run import meta_model
from mmrl.policies.text.settings import TextPolicyConfig
from tests.support.each import for_each

MODELS: dict[str, Callable[[Path], Path]] = {
    "Qwen/Qwen2.5-VL-3B-Instruct": lambda folder: vlm(folder, "qwen25_3b"),
    "Qwen/Qwen2.5-VL-7B-Instruct": lambda folder: vlm(folder, "qwen25_7b"),
    "stabilityai/stable-diffusion-3.5-medium": stable_diffusion,
    "black-forest-labs/FLUX.1-dev": flux,
}
"""Hub name -> its configs, without weights."""
ROWS = 40
GENEVAL = ("facebook/mask2former-swin-small-coco-instance", "openai/clip-vit-large-patch14")
JUDGES = {
    **dict.fromkeys([name for name in recipe_files() if name.endswith("_geneval")], GENEVAL),
    **dict.fromkeys(("flow_dppo_pickscore", "flow_grpo_pickscore"), ("yuvalkirstain/PickScore_v1",)),
    **dict.fromkeys(("flow_bp_hps", "refl_hps"), ("xswu/HPSv2", "yuvalkirstain/PickScore_v1")),
    "mix_grpo_flux": ("xswu/HPSv2", "yuvalkirstain/PickScore_v1", "THUDM/ImageReward"),
}
"""Recipe -> the models inside its rewards."""
QUICK = ("flow_dppo_pickscore", "mm_rlhf", "vlm_r1_refcoco")
"""One that draws, one of stages and one that writes: with two layers in make test; whole as all others in make evidence."""
NAMES = [one.name for one in recipes()]


def picture(file: Path, width: int, height: int) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), "gray").save(file)
    return file.name


def boxes(folder: Path, name: str, width: int, height: int) -> None:
    image = picture(folder / "pictures" / f"{name}.png", width, height)
    row = {"image": f"pictures/{image}", "box": [10, 20, 200, 180]}
    rows = [{"id": str(i), "question": f"{QUESTION}, {i}", "split": ("train", "val")[i % 2], **row} for i in range(ROWS)]
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def clip(file: Path, seconds: int) -> None:
    write_mp4(file, np.zeros((10 * seconds, 320, 480, 3), np.uint8), 10)


CHAINS: dict[str, dict[str, object]] = {
    **{name: {"image": "wide.png"} for name in ("ton_geoqa", "vlaa_thinker", "mm_rlhf", "mm_helix", "trimpi")},
    "unified_reward_think": {"images": ["wide.png"] * 2},
    "veason_r1": {"images": ["wide.png"] * 6, "masks": [[{"polygon": [[0, 0, 9, 0, 9, 9]]}]] * 6},
    "veripo_video": {"video": "half_minute.mp4"},
}
"""Recipe of stages -> what a row of its data shows."""


def lessons(folder: Path) -> None:
    """Rows for every kind of stage, with thoughts and answers of a page."""
    thought = f"<think>{'It lies between the two lines. ' * 60}</think><answer>"
    told = {name: f"{thought}{answer}</answer>" for name, answer in (("completion", 4), ("chosen", 4), ("rejected", 5))}
    for name, shown in CHAINS.items():
        picture(folder / name / "wide.png", 1280, 720)
        if "video" in shown:
            clip(folder / name / "half_minute.mp4", 30)
        facts = {**shown, **told, "answer": 4, "policy": "Count on. " * 200, "margin": 1}
        rows = [{"id": str(i), "question": f"What is angle {i}?", **facts} for i in range(ROWS)]
        for file in ("sft", "simple", "rl", "pairs", "test"):
            (folder / name / f"{file}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def lay(folder: Path) -> None:
    """Data of published sizes: COCO's pictures, screens, clips of half a minute and of five seconds; prompts; lessons."""
    lessons(folder)
    for name in ("refcoco", "refcoco+", "refcocog"):
        boxes(folder, name, 640, 480)
    boxes(folder, "gui_train", 1920, 1080)
    screen = picture(folder / "screenspot" / "screenspot_imgs" / "a.png", 1920, 1080)
    rows = [
        {"img_filename": screen, "bbox": [5, 5, 40, 40], "instruction": f"open tab {i}", "data_type": "icon"} for i in range(4)
    ]
    write_json(folder / "screenspot" / "screenspot_web.json", rows)
    clip(folder / "charades" / "Charades_v1_480" / "AAAAA.mp4", 30)
    for name in ("train", "test"):
        lines = [f"AAAAA {i}.0 {i + 4}.0##a person puts book number {i} on a shelf." for i in range(20)]
        (folder / "charades" / f"charades_sta_{name}.txt").write_text("\n".join(lines))
    for name in ("train", "validation"):
        clip(folder / "clevrer" / f"video_{name}" / "video_0.mp4", 5)
        choices = [{"choice": f"the collision {i}", "answer": "correct" if i else "wrong"} for i in range(4)]
        asked = [{"question_type": "counterfactual", "question": f"What else, {i}?", "choices": choices} for i in range(ROWS)]
        write_json(folder / "clevrer" / f"{name}.json", [{"video_filename": "video_0.mp4", "questions": asked}])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of all recipes."""
    place = tmp_path_factory.mktemp("recipes")
    lay(place / "data")
    draw("prompts", place / "data")
    return place


def shallow(model: Path) -> None:
    """Leave a model two layers."""
    if (model / "transformer").exists():
        change(model / "transformer" / "config.json", num_layers=2, dual_attention_layers=[0])
    else:
        towers: dict[str, object] = {"vision_config__depth": 2, "vision_config__fullatt_block_indexes": [1]}
        change(model / "config.json", text_config__num_hidden_layers=2, **towers)


@pytest.mark.parametrize(
    ("name", "is_shallow"),
    [*((name, True) for name in QUICK), *(pytest.param(name, False, marks=pytest.mark.evidence) for name in NAMES)],
)
def test_a_recipe_fits_the_card_that_it_names(name: str, is_shallow: bool, place: Path, capsys: pytest.CaptureFixture[str]):
    recipe = find_recipe(name)
    model = MODELS[Table.read(recipe.config).values["policy"]["model"]](place / f"model of {name}, {is_shallow}")
    if is_shallow:
        shallow(model)
    words = [f"recipes/{name}", f"policy.model='{model}'"]
    with chdir(place):
        fits = plan(PlanArguments(words, card=recipe.recipe.card, processes=recipe.recipe.processes))
    shown = " ".join(capsys.readouterr().out.split())
    assert fits, shown
    assert "fits a card of 80.0 GiB" in shown
    counted, _, missing = shown.partition("not counted: ")
    assert "of reward" not in missing, "the size of every model inside a reward is known"
    assert [model for model in JUDGES.get(name, ()) if model not in counted] == []


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
    assert plan(replace(given, card="RTX 4090", as_json=True))
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"] == model and facts["fits"]
    assert 8.29e9 < facts["memory"]["parameters"] - facts["memory"]["trained"] < 8.30e9
    assert facts["note"].startswith(f"{model} is not on this machine, so its published settings are counted")
    assert "one token per letter" in facts["note"]


def test_pictures_take_the_published_number_of_tokens():
    """448 x 448 pixels are 16 x 16 tokens of 28 pixels for Qwen2.5-VL, and 256 for Gemma whatever the size."""
    from transformers import AutoProcessor

    picture = Image.new("RGB", (448, 448))
    for name, token in (("Qwen--Qwen2.5-VL-3B-Instruct", "<|image_pad|>"), ("google--gemma-3-4b-it", "<image_soft_token>")):
        processor: Any = AutoProcessor.from_pretrained(with_settings(config_of(name)).policy.model)
        chat = [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "?"}]}]
        made = processor.apply_chat_template(chat, tokenize=True, return_dict=True, return_tensors="pt")
        assert int((made["input_ids"] == processor.tokenizer.convert_tokens_to_ids(token)).sum()) == 256


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
def test_a_generator_is_planned_with_its_encoders():
    small = ["policy.height=256", "policy.width=256", "policy.max_prompt_tokens=77", "micro_batch=1"]
    model = ["policy.model=stabilityai/stable-diffusion-3.5-medium", "policy.dtype=bfloat16", "policy.lora.rank=8"]
    made = draw_up(load("tiny/flow", [*small, *model]))
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


@pytest.mark.parametrize("name", ["nobody/nothing", "tiny:qwen3_vl", "black-forest-labs/FLUX.1-dev"])
def test_other_models_stay_as_they_are_and_a_generator_is_no_writer(name: str):
    assert settings_of(load("tiny/image", [f"policy.model={name}"]).config) is None


VLMS = [("qwen25_3b", "image/qwen25vl_3b_refcoco_24gb", 24), ("qwen3_4b", "image/qwen3vl_4b_refcoco_80gb", 80)]
"""A model's shape, a config for it, and the GB of the card that the config names."""


def planned(tmp_path: Path, name: str, config: str, *words: str) -> Plan:
    """Of a config of referring expressions: pictures of the size that most of COCO's have."""
    boxes(tmp_path, "rows", 640, 480)
    data = [f"{where}.path='{tmp_path / 'rows.jsonl'}'" for where in ("data", "evaluation.data")]
    return draw_up(load(config, [f"policy.model='{vlm(tmp_path / name, name)}'", *data, *words]))


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
@pytest.mark.parametrize(("name", "config", "card"), VLMS)
def test_vision_language_models_have_their_published_weights(name, config, card, tmp_path):
    made = planned(tmp_path, name, config)
    adapter = made.memory.trained if "weights in bfloat16" in made.memory.stays else 0
    assert made.memory.parameters - adapter == pytest.approx(TEXT[name][3], rel=1e-3)
    assert advice(made.memory, card * GIB, is_text=True) is None


@pytest.mark.evidence
@pytest.mark.parametrize(("name", "config", "card"), VLMS)
def test_vision_language_models_fit_the_cards_of_their_configs(name, config, card, tmp_path):
    assert advice(planned(tmp_path, name, config).memory, card * GIB, is_text=True) is None


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
def test_a_larger_model_is_told_apart(tmp_path):
    made = planned(tmp_path, "qwen25_7b", "image/qwen25vl_3b_refcoco_24gb")
    assert made.memory.parameters - made.memory.trained == pytest.approx(8.292e9, rel=1e-3)
    assert made.memory.stays["weights in bfloat16"] == pytest.approx(2 * 8.292e9, rel=1e-3)
    assert "weights in bfloat16 15.4" in (advice(made.memory, 16 * GIB, is_text=True) or "")


def planned_generator(tmp_path: Path) -> Plan:
    folder, lines = stable_diffusion(tmp_path / "sd35"), [f"a red fox, {i}" for i in range(40)]
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    data = [f"data.path='{tmp_path / 'train.txt'}'", f"evaluation.data.path='{tmp_path / 'test.txt'}'"]
    return draw_up(load("t2i/sd35_medium_pickscore", [f"policy.model='{folder}'", *data]))


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
def test_an_image_generator_with_its_encoders(tmp_path):
    memory = planned_generator(tmp_path).memory
    assert memory.parameters - memory.trained == pytest.approx(2.243e9, rel=0.02)
    # CLIP's two and T5 in bfloat16
    encoders = [memory.stays[name] for name in ("text_encoder", "text_encoder_2", "text_encoder_3")]
    assert encoders == pytest.approx([2 * 0.1237e9, 2 * 0.6947e9, 2 * 4.762e9], rel=0.01)
    assert memory.stays["vae"] == pytest.approx(4 * 83.8e6, rel=0.01)


@pytest.mark.evidence
def test_an_image_generator_fits_the_card_of_its_config(tmp_path):
    assert advice(planned_generator(tmp_path).memory, 24 * GIB, is_text=False) is None


@pytest.mark.evidence
def test_a_narrow_model_is_planned_trained_and_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, place = vlm_with_weights(tmp_path / "model", small=True), tmp_path / "place"
    bench = Bench(SHAPES["vlm"], place, small=True, most=4.0)
    bench.all(model, rows_of("vlm", place), ("plan", "train", "merge"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in bench.lines]
    assert [line[0] for line in lines] == ["plan", "train", "export --merge"]
    planned, peak = float(lines[1][4]), float(lines[1][2])
    # what narrow models take is the libraries, which the plan found in its own process
    assert peak / 2 < planned < 2 * peak
    assert (place / "merged" / "model.safetensors").is_file() and (place / "run" / "checkpoints").is_dir()
    assert capsys.readouterr().out.count("|") > 20


def test_a_command_that_takes_too_much_is_stopped(tmp_path: Path):
    waste = "x = bytearray(400 * 2**20)\nimport time\ntime.sleep(600)"
    use = watch([sys.executable, "-c", waste], tmp_path / "log", 200 * 2**20)
    assert use.code == -9 and 200 * 2**20 < use.peak < GIB


def test_memory_of_a_process_is_read_and_of_none_is_0():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        own, highest = memory_of(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    assert 0 < own <= highest
    assert memory_of(process.pid) == (0, 0)


def test_what_weights_in_4_bits_take_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Two layers of q and o (32 x 32), k and v (32 x 16), and three matrices of 32 x 64; small blocks have large scales."""
    words = [f"policy.model={build('qwen2_5_vl', tmp_path / 'model')}", "policy.weights=nf4", "policy.lora.rank=2"]
    monkeypatch.setattr(sys, "argv", ["-c", "tiny/image", *words])
    exec(LOAD, {})
    said = capsys.readouterr().out
    assert f" for {2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)} weights in 4 bits, 0.5" in said and " GiB beside" in said
