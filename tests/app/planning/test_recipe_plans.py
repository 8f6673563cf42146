"""`mmrl plan` of every recipe: the published model's shape, data of the published ones' size, and the card that it names."""

import json
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.shapes import change, flux, stable_diffusion, vlm
from mmrl.app.commands.options import PlanArguments
from mmrl.app.commands.plan import plan
from mmrl.app.toml.tables import Table
from mmrl.data.drawn.public_layouts import draw, write_json
from mmrl.data.files.mp4 import write_mp4
from mmrl.lab.recipes.facts import find_recipe, recipe_files, recipes

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
    question = "the second person from the left in the blue jacket"
    rows = [
        {"id": str(i), "image": f"pictures/{image}", "question": f"{question}, {i}", "box": [10, 20, 200, 180], "split": split}
        for i in range(ROWS)
        for split in (("train", "val")[i % 2],)
    ]
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


def planned(name: str, is_shallow: bool, place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `mmrl plan recipes/NAME` prints of the card that the recipe names; AssertionError where it does not fit."""
    recipe = find_recipe(name)
    model = MODELS[Table.read(recipe.config).values["policy"]["model"]](place / f"model of {name}, {is_shallow}")
    if is_shallow:
        shallow(model)
    words = [f"recipes/{name}", f"policy.model='{model}'"]
    with chdir(place):
        fits = plan(PlanArguments(words, card=recipe.recipe.card, processes=recipe.recipe.processes))
    shown = capsys.readouterr().out
    assert fits, shown
    return shown


@pytest.mark.parametrize(
    ("name", "is_shallow"),
    [*((name, True) for name in QUICK), *(pytest.param(name, False, marks=pytest.mark.evidence) for name in NAMES)],
)
def test_a_recipe_fits_the_card_that_it_names(name: str, is_shallow: bool, place: Path, capsys: pytest.CaptureFixture[str]):
    shown = " ".join(planned(name, is_shallow, place, capsys).split())
    assert "fits a card of 80.0 GiB" in shown
    counted, _, missing = shown.partition("not counted: ")
    assert "of reward" not in missing, "the size of every model inside a reward is known"
    assert [model for model in JUDGES.get(name, ()) if model not in counted] == []
