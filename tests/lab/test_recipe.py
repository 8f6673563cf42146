"""Recipes: their facts, the figures made of scores, missing files, and whole ways on a small scale."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmrl.app.chain.rows import look_ahead
from mmrl.app.cli import app
from mmrl.app.config import run as configs
from mmrl.app.config.data import data_tables
from mmrl.app.config.plug_ins import read_plug_ins
from mmrl.app.config.run import RunConfig
from mmrl.app.config.stages import stages_of
from mmrl.app.run.folder import RunDir
from mmrl.lab.recipes.facts import ENDING, UNKNOWN, Figure, Measure, find_recipe, read_recipe, recipe_files, recipes
from mmrl.lab.recipes.measure import Answered, as_tiny, draw_files, figure_of, interval, run_recipe, small_table
from mmrl.lab.recipes.pages import figures_of
from tests.support.each import for_each

RECIPES = {one.name: one for one in recipes()}
SHORT = ("gui_g1_screenspot", "flow_grpo_geneval")
"""Run in make test; all others by make evidence."""
pytestmark = pytest.mark.usefixtures("empty_desk")


def test_there_are_recipes_of_twenty_two_papers():
    assert len({one.recipe.arxiv for one in RECIPES.values()}) == 22
    tasks = {name for name in RECIPES if name.startswith("flow_grpo")}
    assert tasks == {"flow_grpo_geneval", "flow_grpo_ocr", "flow_grpo_pickscore"}


def data_of(config: RunConfig) -> list[object]:
    """The settings of the data that a run, or a stage of it, trains on."""
    return [value for _, one in data_tables(config.data, ("data",)) for value in one.args.values()]


@for_each("name", RECIPES)
def test_every_path_that_a_recipe_reads_is_one_of_its_files(name: str):
    """Who has the files that are named as missing can run it."""
    recipe = RECIPES[name]
    values = configs.load(str(recipe.config)).config
    assert values.evaluation.data is not None
    used = {str(value) for value in data_of(values)}
    used |= {str(value) for _, one in data_tables(values.evaluation.data, ("evaluation", "data")) for value in one.args.values()}
    used |= {str(value) for one in recipe.measure for value in one.data.values()}
    used |= {str(value) for one in stages_of(configs.load(str(recipe.config))) for value in data_of(one.resolved.config)}
    paths = {value for value in used if value.startswith("data/")}
    assert paths and {one for one in paths if one not in {file.path for file in recipe.file}} == set()
    assert all(file.source and file.licence and file.size and file.command for file in recipe.file)


@for_each("name", RECIPES)
def test_a_recipe_names_its_source_its_reasons_and_a_number_to_compare_with(name: str):
    recipe = RECIPES[name]
    assert recipe.deviation and all(one.why.endswith(".") for one in recipe.deviation)
    is_said = "none that could be read" in recipe.recipe.table
    assert is_said != any(paper != UNKNOWN for _, _, paper in figures_of(recipe))
    assert recipe.recipe.arxiv.count(".") == 1 and recipe.recipe.table


def test_flow_grpo_is_the_code_that_its_authors_ran():
    """48 prompts of 24 samples, 10 and 40 steps, noise 0.7, KL 0.04, 0.04, 0.01, deviation over the batch, averaged weights."""
    for task, coef in (("geneval", 0.04), ("ocr", 0.04), ("pickscore", 0.01)):
        config = configs.load(f"recipes/flow_grpo_{task}").config
        algorithm = config.algorithm.algorithm
        assert (config.prompts_per_step, algorithm.group_size, algorithm.updates) == (48, 24, 2)
        assert [value for value, _ in algorithm.objective] == [1.0, coef]
        schedule, advantage = algorithm.schedule, algorithm.advantage
        assert (schedule.num_steps, schedule.level, schedule.last) == (10, 0.7, "noisy")  # type: ignore[union-attr]
        assert (advantage.scale, advantage.ddof, advantage.eps, advantage.clip) == ("batch", 0, 1e-4, 5.0)  # type: ignore[attr-defined]
        assert (config.evaluation.num_steps, config.evaluation.weights) == (40, "ema")
        assert (config.policy.guidance, config.policy.lora.rank, config.optimizer.lr) == (4.5, 32, 3e-4)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "prompts", "samples", "updates", "steps", "guidance", "rank", "first"),
    [
        ("dgpo_geneval", 8, 16, 1, 10, 1.0, 64, {"beta": 100.0, "clip": 1e-3, "ref": "ref"}),
        ("dgpo_ocr", 8, 16, 1, 10, 1.0, 64, {"beta": 100.0, "clip": 1e-3, "ref": "ref"}),
        ("crd_geneval", 48, 24, 2, 10, 1.0, 32, {"beta": 1.0, "clip": 5.0, "normalized": True}),
        ("flow_dppo_pickscore", 48, 16, 2, 10, 1.0, 32, {"threshold": 1e-5, "divide": True}),
        ("flow_bp_hps", 64, 1, 1, 25, 3.5, 64, {"top": 0.55}),
        ("refl_hps", 64, 1, 1, 25, 3.5, 64, {"top": 0.55}),
    ],
)
def test_methods_of_2026_have_the_settings_of_their_code(
    name: str, prompts: int, samples: int, updates: int, steps: int, guidance: float, rank: int, first: dict[str, object]
):
    config = configs.load(f"recipes/{name}").config
    algorithm, policy = config.algorithm.algorithm, config.policy
    assert (config.prompts_per_step, algorithm.group_size, algorithm.updates) == (prompts, samples, updates)
    assert algorithm.schedule is not None and algorithm.schedule.at(0).num_steps == steps
    assert (policy.guidance, policy.lora.rank, policy.lora.alpha) == (guidance, rank, 2 * rank)  # type: ignore[union-attr]
    _, term = algorithm.objective[0]
    assert {key: getattr(term, key) for key in first} == first


CHAINS = {name: one for name, one in RECIPES.items() if configs.load(str(one.config)).config.stage}


@pytest.mark.parametrize("name", CHAINS)
def test_a_recipe_of_stages_passes_what_is_checked_before_a_model_loads(name: str):
    """With the published settings, and on a small scale with data that every stage can train on."""
    recipe = CHAINS[name]
    published = stages_of(configs.load(str(recipe.config)))
    small = stages_of(configs.resolve(small_table(recipe, draw_files(recipe)), [], name))
    look_ahead(small)
    assert [one.label for one in small] == [one.label for one in published]
    assert small[-1].end < published[-1].end


ANSWERED = [
    *(Answered("a", (value,)) for value in (1.0, 1.0, 0.0, 0.0)),
    *(Answered("b", (value,)) for value in (1.0, 1.0)),
    Answered("b", (0.5, 0.9)),
]
MEASURE = Measure("set", {}, {}, (), by="kind")


@pytest.mark.parametrize(
    ("figure", "value", "prompts"),
    [
        (Figure("mean"), (2 + 2 + 0.7) / 7, 7),
        (Figure("share", at_least=0.9), (2 + 2 + 0.5) / 7, 7),
        (Figure("percent", at_least=0.9, factor=100.0, kind="b"), 100 * 2.5 / 3, 3),
        (Figure("overall", at_least=0.9, over="kinds"), (0.5 + 2.5 / 3) / 2, 7),
        (Figure("nobody", kind="c"), math.nan, 0),
    ],
)
def test_figures_of_scores(figure: Figure, value: float, prompts: int):
    found = figure_of(MEASURE, figure, ANSWERED)
    assert found.value == pytest.approx(value, nan_ok=True) and found.prompts == prompts
    assert math.isnan(found.low) and math.isnan(found.high), "no interval of so few prompts"


def test_an_interval_is_of_prompts_drawn_again_kind_by_kind():
    half, same = [0.0, 1.0] * 50, [1.0] * 30
    value, low, high = interval([half, same])
    assert value == pytest.approx(0.75) and 0.65 < low < 0.72 and 0.78 < high < 0.85
    few = interval([half, [1.0] * 3])
    assert few[0] == pytest.approx(0.75) and math.isnan(few[1]) and math.isnan(few[2]), "no interval with a kind of three prompts"
    # Wilson's interval of 30 right answers out of 30
    assert interval([same]) == pytest.approx((1.0, 0.8865, 1.0), abs=1e-3)


def test_a_slip_in_the_facts_is_named_with_its_place(tmp_path: Path):
    recipe = RECIPES["flow_grpo_ocr"]
    text = recipe.config.with_name(f"flow_grpo_ocr{ENDING}").read_text()
    file = tmp_path / f"mine{ENDING}"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"mine\.recipe\.toml has no run next to it: write mine\.toml there"):
        read_recipe(file)
    (tmp_path / "mine.toml").write_text(recipe.config.read_text())
    assert replace(read_recipe(file), name=recipe.name, config=recipe.config) == recipe
    file.write_text(text.replace("licence =", "license =", 1))
    with pytest.raises(ValueError, match=r"mine\.recipe\.toml: file\.0\.license is unknown: did you mean 'licence'"):
        read_recipe(file)
    file.write_text(text.replace("base = 0.59", 'base = "about 0.59"'))
    with pytest.raises(ValueError, match=r"measure\.0\.figure\.0\.base"):
        read_recipe(file)


def test_recipes_of_the_working_directory_come_first(tmp_path: Path):
    folder = tmp_path / "configs" / "recipes"
    folder.mkdir(parents=True)
    recipe = RECIPES["flow_grpo_ocr"]
    for name, file in (("mine.toml", recipe.config), (f"mine{ENDING}", recipe.config.with_name(f"flow_grpo_ocr{ENDING}"))):
        (folder / name).write_text(file.read_text())
    assert set(recipe_files()) == {*RECIPES, "mine"}
    assert find_recipe("mine").recipe == recipe.recipe


def test_what_is_no_recipe_and_no_way_to_measure_one_is_refused():
    with pytest.raises(ValueError, match=r"there is no recipe 'vlm_r1_refcocco': did you mean 'vlm_r1_refcoco'"):
        find_recipe("vlm_r1_refcocco")
    with pytest.raises(ValueError, match="give one of the three"):
        run_recipe("flow_grpo_ocr", run=Path("runs/x"), untrained=True)


def mmrl(*words: str) -> str:
    """The words that a command prints."""
    done = CliRunner().invoke(app, ["recipe", *words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def test_ls_says_what_is_missing_here(tmp_path: Path):
    lines = mmrl("ls").splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    assert "2 files missing" in next(line for line in lines if line.startswith("flow_grpo_ocr"))
    (tmp_path / "data" / "ocr").mkdir(parents=True)
    for name in ("train", "test"):
        (tmp_path / "data" / "ocr" / f"{name}.txt").write_text('a sign that says "OPEN"\n')
    assert "ready" in next(line for line in mmrl("ls").splitlines() if line.startswith("flow_grpo_ocr"))


@pytest.mark.parametrize("name", RECIPES)
def test_show_prints_config_deviations_numbers_and_files(name: str):
    text, recipe = mmrl("show", name), RECIPES[name]
    assert f"arXiv:{recipe.recipe.arxiv}" in text and ('preset = "' in text or "[[stage]]" in text)
    flat = " ".join(text.split())
    assert all(f"- {one.setting}, " in flat for one in recipe.deviation)
    assert all(f"{file.path}: MISSING" in text and file.licence in flat for file in recipe.file)
    assert max(map(len, text.splitlines())) <= 140


def test_without_its_files_nothing_runs_and_all_is_told():
    with pytest.raises(ValueError, match=r"3 of its 3 files are missing") as refused:
        run_recipe("temp_samp_r1_charades")
    text = str(refused.value)
    assert "data/charades/Charades_v1_480: MISSING" in text
    assert "13 GB" in text and "for non-commercial use" in text and "unpack it into data/charades/" in text
    assert "mmrl recipe run temp_samp_r1_charades --scale tiny" in text


def test_made_up_prompts_have_the_published_layout_and_share_no_task(tmp_path: Path):
    for split in ("train", "held_out"):
        told = mmrl("prompts", "geneval-like", f"{split}.jsonl", "--size", "60", "--split", split)
        assert "60 prompts, geneval-like" in told
    train, held_out = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()] for name in ("train", "held_out")
    )
    assert {row["tag"] for row in train} == {"single_object", "two_object", "counting", "colors", "position", "color_attr"}
    assert all(set(row) == {"tag", "include", "exclude", "prompt"} for row in train)
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in held_out}
    mmrl("prompts", "ocr-like", "signs.txt", "--size", "20")
    lines = (tmp_path / "signs.txt").read_text().splitlines()
    assert len(lines) == 20 and all(line.count('"') == 2 for line in lines)
    done = CliRunner().invoke(app, ["recipe", "prompts", "ocr-like", "signs.txt"])
    assert isinstance(done.exception, FileExistsError)


@pytest.mark.parametrize("name", RECIPES)
def test_drawn_files_are_those_that_the_recipe_names_and_its_readers_take_them(name: str):
    """Every data set of the run and of the measures reads them: layouts, columns, boxes, clips."""
    recipe = RECIPES[name]
    folder = draw_files(recipe)
    assert [file.path for file in recipe.file if not (folder / file.path).exists()] == []
    small = as_tiny(recipe, folder)
    resolved = configs.resolve(small_table(recipe, folder), [], name)
    plug_ins = read_plug_ins(resolved)
    assert len(list(plug_ins.data())) >= 20
    for measure in small.measure:
        table = small_table(recipe, folder)
        table.set(("evaluation", "data"), dict(measure.data), "test")
        held_out = read_plug_ins(configs.resolve(table, [], name)).held_out
        assert held_out is not None
        found = list(held_out())
        assert len(found) >= 6 and all(measure.by in prompt.columns for prompt in found if measure.by)
        kinds = {prompt.columns[measure.by] for prompt in found} if measure.by else set()
        assert {figure.kind for figure in measure.figure if figure.kind} <= kinds


QUICK = {
    "gui_g1_screenspot": ["policy.model=tiny:qwen2_5_vl", "steps=2", "prompts_per_step=4", "algorithm.group_size=4"],
    "vlm_r1_refcoco": ["policy.model=tiny:qwen2_5_vl", "steps=2", "prompts_per_step=4", "algorithm.group_size=4"],
    "temp_samp_r1_charades": ["policy.model=tiny:qwen2_5_vl", "steps=2", "prompts_per_step=4", "algorithm.group_size=4"],
}
"""A random model of the published class in place of one that is taught first."""


@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in SHORT else pytest.mark.evidence) for one in RECIPES])
def test_a_recipe_on_a_small_scale(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Train and measure; every figure is a number, written beside the paper's."""
    words, output = QUICK.get(name, []), tmp_path / "run"
    found = run_recipe(name, words, is_tiny=True, output=output)
    recipe, kept = RECIPES[name], json.loads((output / "recipe.json").read_text())
    assert [one.paper for one in found] == [paper for _, _, paper in figures_of(recipe)]
    assert all(math.isfinite(one.value) and one.prompts > 0 for one in found)
    assert [row["value"] for row in kept["figures"]] == pytest.approx([one.value for one in found])
    assert kept["arxiv"] == recipe.recipe.arxiv
    lines = [json.loads(line) for line in RunDir.open(output).metrics_file.read_text().splitlines()]
    taken = [line["step"] for line in lines if "loss" in line]
    assert taken == list(range(1, len(taken) + 1)) and taken[1:]
    again = run_recipe(name, words, is_tiny=True, run=output)
    assert [one.value for one in again] == [one.value for one in found], "measured again, the same"
    printed = capsys.readouterr().out
    assert f"arXiv:{recipe.recipe.arxiv}" in printed and "95 % interval" in printed


@pytest.mark.evidence
@pytest.mark.parametrize("name", ["vlm_r1_refcoco", "gui_g1_screenspot", "temp_samp_r1_charades"])
def test_a_model_that_was_taught_badly_gets_better_by_the_recipe(name: str, tmp_path: Path):
    """The demos' models, which draw boxes and spans that are too large."""
    before = run_recipe(name, is_tiny=True, untrained=True)
    after = run_recipe(name, is_tiny=True, output=tmp_path / "run")
    gains = [later.value - sooner.value for sooner, later in zip(before, after, strict=True)]
    assert sum(gains) / len(gains) > 5, gains
