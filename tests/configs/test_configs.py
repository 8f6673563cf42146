"""Every shipped config parses and composes; the tiny ones train as they are, and one of a family with a tiny model of it.

The other configs of each family train in `make evidence`.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.shapes import QUESTION
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.planning.known import settings_of
from mmrl.app.planning.memory import GIB, advice
from mmrl.app.planning.plan import draw_up
from mmrl.app.plugins.catalog import configs as all_configs
from mmrl.app.plugins.resolve import shipped_folder
from mmrl.app.run.build import build
from mmrl.app.toml.tables import Table
from mmrl.policies.codes.settings import CodePolicyConfig
from mmrl.policies.flow.settings import FlowPolicyConfig
from tests.support.each import for_each

NAMES = [listed.name for listed in all_configs()]
IMAGE = [name for name in NAMES if name.startswith("image/")]
VIDEO = [name for name in NAMES if name.startswith("video/")]
T2I = [name for name in NAMES if name.startswith("t2i/")]
BY_TOKENS = [name for name in NAMES if name.startswith("token_image/")]
T2V = [name for name in NAMES if name.startswith(("t2v/", "i2v/"))]
EDIT = [name for name in NAMES if name.startswith("edit/")]
CARDS = [name for name in NAMES if name.startswith("cards/")]
WRITERS = [name for name in NAMES if name.startswith("writer/")]
T2A = [name for name in NAMES if name.startswith("t2a/")]
FEW = ("steps=2", "prompts_per_step=2", "algorithm.group_size=2", "evaluation.num_prompts=2")
SMALL = [*FEW, "micro_batch=4096", "policy.sampling.max_new_tokens=8"]
DIGITS = {"use": "digits_grounding", "size": 4}
CLIPS = {"use": "moving_digits", "size": 4, "clip": {"side": 32, "glyph": [12, 16], "seconds": 6.0}}
SMALL_PICTURES = [
    *(*FEW, "evaluation.num_steps=4", "policy.height=16", "policy.width=16", "policy.max_prompt_tokens=3", "policy.lora.rank=4")
]
TEXTS = {"use": "prompts", "texts": ["a red fox", "a blue door"]}
pytestmark = pytest.mark.usefixtures("empty_desk")
FAMILIES = {
    "Qwen2.5-VL": "qwen2_5_vl",
    "Qwen3-VL": "qwen3_vl",
    "stable-diffusion-3": "sd3",
    "FLUX.1": "flux",
    "Qwen-Image-2.1": "qwen_image21",
    "Qwen-Image": "qwen_image",
    "Z-Image": "z_image",
    "Krea-2": "krea2",
    "Chroma": "chroma",
    "Lumina-Image": "lumina2",
    "FLUX.2-dev": "flux2",
    "FLUX.2-klein": "flux2_klein",
    "Sana": "sana",
    "stable-diffusion-v1": "sd15",
    "stable-diffusion-xl": "sdxl",
}


DRAW_CLIPS = {
    "Wan2.1-I2V": "wan_i2v",
    "Wan2.1": "wan",
    "Wan2.2-TI2V-5B": "wan_5b",
    "Wan2.2-T2V-A14B": "wan_a14b",
    "HunyuanVideo-1.5-480p_t2v": "hunyuan15",
    "HunyuanVideo-1.5-480p_i2v": "hunyuan15_i2v",
    "SANA-Video": "sana_video",
    "LTX-2": "ltx2",
}
"""Part of a hub name -> the tiny generator of clips of its kind."""


EDITORS = {"Kontext": "kontext", "Edit-2511": "qwen_edit_2511", "Qwen-Image-2.1": "qwen_image21"}
"""The same of editors."""


def family(model: str) -> str:
    return next(name for part, name in FAMILIES.items() if part in model)


def one_of_each(names: Sequence[str], kinds: Mapping[str, str]) -> list[Any]:
    """The first config of every kind of model, by a part of the model's name; the others are evidence.

    A model that begins with a picture is of the kind of the one that begins without.
    """
    seen: set[str] = set()
    cases: list[Any] = []
    for listed in (listed for listed in all_configs() if listed.name in names):
        model = Table.read(listed.file).values["policy"]["model"]
        kind = next(kind for part, kind in kinds.items() if part in model)
        kind = kind.removesuffix("_i2v")
        cases.append(pytest.param(listed.name, marks=[pytest.mark.evidence] if kind in seen else []))
        seen.add(kind)
    return cases


def test_there_are_configs_for_both_families_and_sizes():
    assert {"tiny/image", "tiny/grounding", "tiny/flow"} <= set(NAMES)
    assert len(IMAGE) == 4
    shown = {configs.load(name).table.values["algorithm"]["preset"] for name in VIDEO}
    assert shown == {"temp_samp_r1", "tw_grpo", "reg_grpo", "grpo", "urpa"}
    assert {family(configs.load(name).config.policy.model) for name in T2I} == {
        *("sd3", "flux", "qwen_image", "z_image", "flux2", "flux2_klein", "sana", "sd15", "sdxl"),
        *("krea2", "chroma", "lumina2", "qwen_image21"),
    }


def test_urpas_second_phase_begins_where_the_first_ends_and_sees_no_labels():
    first, second = (configs.load(f"video/qwen25vl_7b_{name}") for name in ("charades_source", "activitynet_urpa"))
    source = next(listed.file for listed in all_configs() if listed.name == "video/qwen25vl_7b_charades_source").read_text()
    assert f"mmrl export RUN {second.config.policy.model} --merge" in source
    assert {reward.use: reward.weight for reward in first.config.reward} == {"temporal_iou": 0.5, "format": 0.5}
    assert {reward.use: reward.weight for reward in second.config.reward} == {"pseudo_span": 0.5, "format": 0.5}
    assert second.config.data.args["labelled"] is False and first.config.policy.lora == second.config.policy.lora


@for_each("name", NAMES)
def test_it_parses_says_what_it_is_and_fits_a_screen(name: str):
    config = configs.load(name).config
    assert config.evaluation.data is not None
    listed = next(listed for listed in all_configs() if listed.name == name)
    assert len(listed.summary) > 20
    assert len(listed.file.read_text().splitlines()) <= 60
    assert listed.file.is_relative_to(shipped_folder("configs"))


def trains(name: str, data: Mapping[str, object], *words: str, rewards: Sequence[object] = (), **held_out: object) -> None:
    """The config takes two steps on these data, with the words and perhaps other rewards; everything else of it stays."""
    resolved = configs.load(name)
    resolved.table.set(("data",), dict(data), "test")
    resolved.table.set(("evaluation", "data"), {**data, **held_out}, "test")
    if rewards:
        resolved.table.set(("reward",), list(rewards), "test")
    check_two_steps(configs.resolve(resolved.table, words))


def sizes_of(name: str, **reward: object) -> list[object]:
    """For every reward of the config one of sizes, with its weight."""
    shown = enumerate(configs.load(name).config.reward)
    return [{"use": "jpeg_size", **reward, "name": f"size{i}", "weight": one.weight} for i, one in shown]


@pytest.mark.parametrize("name", one_of_each(IMAGE, FAMILIES))
def test_a_real_config_trains_a_tiny_model_of_its_family(name: str):
    policy = configs.load(name).config.policy
    kept = ["policy.lora.rank=4"] if policy.lora else []
    trains(name, DIGITS, *SMALL, f"policy.model=tiny:{family(policy.model)}", *kept, split="held_out")


@pytest.mark.parametrize("name", one_of_each(VIDEO, FAMILIES))
def test_a_real_video_config_trains_a_tiny_model_of_its_family(name: str):
    """Its algorithm, rewards, LoRA, frames and dtype stay; clips are small mp4 files of digits."""
    config = configs.load(name).config
    clips = {**CLIPS, "questions": ["when" if config.reward[0].use in ("temporal_iou", "pseudo_span") else "which"]}
    own = [f"policy.model=tiny:{family(config.policy.model)}", "policy.lora.rank=4", "policy.video.workers=0"]
    trains(name, clips, *SMALL, *own, split="held_out")


@pytest.mark.parametrize("name", one_of_each(T2I, FAMILIES))
def test_a_real_picture_config_trains_a_tiny_pipeline_of_its_family(name: str):
    """Its algorithm, guidance, LoRA and dtype stay; size, data and rewards are small."""
    config = configs.load(name).config
    small = [*SMALL_PICTURES, f"policy.model=tiny:{family(config.policy.model)}"]
    # Its smallest side.
    small += ["policy.height=32", "policy.width=32"] if small[-1].endswith("qwen_image21") else []
    schedule: Any = config.algorithm.algorithm.schedule
    if schedule.num_steps == 50:
        small += ["algorithm.schedule.num_steps=4"]
        small += ["algorithm.schedule.trained_per_row=3"] if getattr(schedule, "trained_per_row", None) else []
    trains(name, TEXTS, *small, rewards=sizes_of(name))


@pytest.mark.parametrize("name", one_of_each(T2V, DRAW_CLIPS))
def test_a_real_clip_config_trains_a_tiny_model_of_its_kind(name: str):
    """Its algorithm, guidance, LoRA and dtype stay, and whether it draws clips or frames; size, data and rewards are small."""
    resolved = configs.load(name)
    drawn = resolved.config.policy
    assert isinstance(drawn, FlowPolicyConfig)
    film = {} if drawn.frames == 1 else {"use": "over_frames", "frames": 2, "picture": {"use": "jpeg_size"}}
    kind = next(kind for part, kind in DRAW_CLIPS.items() if part in drawn.model)
    words = [word for word in SMALL_PICTURES if drawn.lora or not word.startswith("policy.lora")]
    words += [f"policy.frames={min(5, drawn.frames)}", "policy.height=32", "policy.width=32", f"policy.model=tiny:{kind}"]
    words += [f"policy.max_prompt_tokens={512 if kind == 'wan_i2v' else 12}"]
    words += ["algorithm.group_size=16", "algorithm.schedule.num_steps=10"] if "branch" in name else []
    steps = resolved.table.values["algorithm"].get("schedule", {})
    words += ["algorithm.schedule.num_steps=4"] if steps.get("num_steps") == 20 and "trained_per_row" not in steps else []
    trains(name, first_frames() if name.startswith("i2v/") else TEXTS, *words, rewards=sizes_of(name, **film))


def first_frames() -> dict[str, str]:
    """Two pictures with a caption each."""
    for colour in ("red", "blue"):
        Image.new("RGB", (48, 32), colour).save(f"{colour}.png")
    rows = [{"image": f"{colour}.png", "prompt": "it moves left"} for colour in ("red", "blue")]
    Path("starts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {"use": "edits", "path": "starts.jsonl"}


@pytest.mark.evidence
@pytest.mark.parametrize("name", EDIT)
def test_a_real_edit_config_trains_a_tiny_editor_of_its_family(name: str):
    """Its algorithm, guidance, LoRA and dtype stay; size, data and rewards are small."""
    kind = next(kind for part, kind in EDITORS.items() if part in configs.load(name).config.policy.model)
    sizes = ["policy.height=32", "policy.width=32", "policy.max_prompt_tokens=40"]
    trains(name, first_frames(), *SMALL_PICTURES, *sizes, f"policy.model=tiny:{kind}", rewards=[{"use": "jpeg_size"}])


@pytest.mark.parametrize("name", T2A)
def test_a_real_config_trains_a_tiny_model_of_sounds(name: str):
    """Its algorithm, guidance, rewards, LoRA and dtype stay; sounds are of a second, at 16 samples a second."""
    Path("sounds.py").write_text(
        "from mmrl import Prompt\n\ndef load():\n    columns = {'band': [0, 4], 'span': [0.25, 0.75]}\n"
        "    return [Prompt(str(i), text, columns=columns) for i, text in enumerate(('a hum', 'a bell'))]\n"
    )
    words = [word for word in SMALL_PICTURES if not word.startswith(("policy.height", "policy.width", "policy.max_prompt"))]
    trains(name, {"use": "./sounds.py:load"}, *words, "policy.seconds=1.0", "policy.model=tiny:stable_audio3")


@pytest.mark.parametrize("name", [pytest.param(one, marks=[] if "gen" in one else pytest.mark.evidence) for one in WRITERS])
def test_a_real_config_of_a_writer_trains_a_tiny_one_whose_painter_is_tiny(name: str):
    """Its algorithm, rewards and their watchers, world, LoRA and dtype stay; the eyes of rewards and the data are small."""
    values, painter = configs.load(name).table.values, "{model = 'tiny:sd3', num_steps = 1, width = 32, height = 32}"
    small = {"picture": "{use = 'jpeg_size'}", "painter": painter}
    words = [f"reward.{i}.{key}={small[key]}" for i, one in enumerate(values["reward"]) for key in small if key in one]
    words += [f"environment.painter={painter}"] if "environment" in values else []
    trains(name, TEXTS, *SMALL, "policy.model=tiny:qwen2_5_vl", "policy.freeze=[]", *words)


@for_each("name", WRITERS)
def test_a_writers_config_watches_other_eyes_and_the_length(name: str):
    """What scores is never what watches, one painter draws for all, and the first lines say what of the paper is left out."""
    listed = next(listed for listed in all_configs() if listed.name == name)
    assert "leaves out" in listed.summary and re.search(r"\(\d{4}\.\d{5}\)", listed.summary)
    rewards = Table.read(listed.file).values["reward"]
    eyes = {bool(one.get("weight", 1.0)): [] for one in rewards}
    for one in rewards:
        eyes[bool(one.get("weight", 1.0))].append(one["picture"]["use"] if "picture" in one else one["use"])
    assert "length" in eyes[False] and "pick_score" in eyes[False] and not set(eyes[False]) & set(eyes[True])
    painters = [one["painter"] for one in rewards if "painter" in one]
    assert all(one == painters[0] for one in painters)


@pytest.mark.parametrize("name", BY_TOKENS)
def test_a_real_config_trains_a_tiny_model_that_draws_by_tokens(name: str):
    """Its algorithm, guidance and dtype stay."""
    plan = ["policy.plan.max_new_tokens=8"] if "t2i_r1" in name else []
    trains(name, TEXTS, *SMALL[:-1], *plan, "policy.model=tiny:janus", rewards=[{"use": "jpeg_size"}])


@pytest.mark.parametrize("name", ["tiny/image", "tiny/clips", "tiny/flow", "tiny/token_image"])
def test_the_tiny_one_trains_as_it_is(name: str):
    check_two_steps(configs.load(name))


def check_two_steps(resolved: Resolved) -> None:
    """Two updates and an evaluation give finite numbers."""
    job = build(resolved)
    for _ in range(2):
        metrics = job.trainer.step()
        assert math.isfinite(metrics["loss"])
        assert math.isfinite(metrics["policy/grad_norm"])
    assert job.evaluator is not None
    assert math.isfinite(job.evaluator.run(2)[0]["eval/total"])


def size_in(name: str) -> int:
    """GB in a config's name."""
    return int(name.removesuffix("gb").rpartition("_")[2])


@pytest.mark.parametrize("name", CARDS)
def test_adapters_train_beside_4_bits_of_a_model_that_can_be_planned(name: str):
    config = configs.load(name).config
    policy, head = config.policy, (shipped_folder("configs") / f"{name}.toml").read_text().splitlines()[0]
    assert not isinstance(policy, CodePolicyConfig)
    assert (policy.weights, policy.dtype) == ("nf4", "bfloat16") and policy.lora is not None and policy.gradient_checkpointing
    assert settings_of(config) is not None and f"one {size_in(name)} GB card" in head


@pytest.mark.evidence
@pytest.mark.parametrize("name", CARDS)
def test_it_fits_its_card(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    is_flow = isinstance(configs.load(name).config.policy, FlowPolicyConfig)
    Image.new("RGB", (640, 480)).save(tmp_path / "a.png")
    row = {"image": "a.png", "question": QUESTION, "box": [10, 20, 200, 180]}
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({**row, "id": str(i)}) for i in range(8)))
    data = TEXTS if is_flow else {"use": "grounding_jsonl", "path": str(tmp_path / "rows.jsonl")}
    resolved = configs.load(name)
    resolved.table.set(("data",), dict(data), "test")
    made = draw_up(configs.resolve(resolved.table, ["evaluation={}", "evaluate_every=0"]), on_card=True)
    assert advice(made.memory, int(size_in(name) * 0.98 * GIB), is_text=not is_flow) is None
