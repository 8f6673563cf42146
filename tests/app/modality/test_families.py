"""Families of generators and of editors through the commands: they train, are planned and exported, at sizes of their own."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import diffusers
import numpy as np
import pytest
from PIL import Image

from mmrl.app.commands.plan import draw_up, print_geometry
from mmrl.app.commands.train import TrainArguments, run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.config.tasks import one_line
from mmrl.app.export.export import export
from mmrl.app.modality.flow_checks import refuse_sizes
from mmrl.app.modality.prompt_view import prompt_view
from mmrl.app.modality.registry import modality_of
from mmrl.app.planning.choices import ModelFacts
from mmrl.app.plugins.resolve import load
from mmrl.app.run import build as building
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.core.types import Prompt, Request
from mmrl.lab.tiny.flow.pipelines import PIPELINES
from mmrl.lab.tiny.flow.pipelines import build as build_tiny
from tests.support.flow_runs import ALONE, FAMILIES, LATE_FAMILIES, Make, of_family, train_steps, with_preset
from tests.support.runs import assert_same_numbers

ROWS = [{"prompt": "a red fox"}, {"prompt": "two dogs", "width": 32, "height": 16}, {"prompt": "hi", "width": 32, "height": 32}]
STEPS = dict.fromkeys(set(PIPELINES) - {"stable_audio3"}, 4) | {"sana": 2, "sd15": 2, "sdxl": 2}
STEPS |= dict.fromkeys(("qwen_image", "krea2", "qwen_edit", "qwen_edit_2511"), 8) | {"wan_5b": 32, "qwen_image21": 32}
STEPS |= dict.fromkeys(("lumina2", "wan", "wan_a14b", "wan_i2v", "wan_i2v_a14b", "sana_video", "sana_i2v"), 16)
"""Family -> the pixels whose multiples its tiny model draws."""


def lines_of(rows: Sequence[Mapping[str, object]], folder: Path) -> str:
    file = folder / "sizes.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


def mixed(
    make: Make, folder: Path, *words: str, rows: Sequence[Mapping[str, object]] = ROWS, preset: str = "flow_grpo"
) -> Resolved:
    """The tiny config on rows of several sizes."""
    resolved = make()
    for table in (("data",), ("evaluation", "data")):
        resolved.table.set(table, {"use": "prompts", "path": lines_of(rows, folder)}, "test")
    return with_preset(lambda: resolved, preset, "prompts_per_step=3", *words)


def test_a_run_draws_every_prompt_at_its_size_and_goes_on_where_it_stopped(make: Make, tmp_path: Path):
    words = ("save_every=1", "evaluate_every=2")
    whole = run_training(mixed(make, tmp_path, *words, "steps=2", "output=whole"))
    cut = run_training(mixed(make, tmp_path, *words, "steps=1", "output=cut"))
    run_training(TrainArguments(["steps=2"], resume=cut.path).resolve(), cut.path)

    assert_same_numbers(cut, whole, [1, 2])
    expected = {"a red fox": (16, 16), "two dogs": (32, 16), "hi": (32, 32)}
    for file in (whole.samples_file("eval", 2), whole.samples_file("train", 1)):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert {line["text"] for line in lines} == set(expected)
        for line in lines:
            assert Image.open(whole.samples / line["image"]["file"]).size == expected[line["text"]]
    assert whole.report_file.read_text().count("data:image/png") >= 6


OF_EACH_KIND = (
    *("flow_grpo", "grpo_guard", "dance_grpo", "flow_dppo", "temp_flow_grpo", "branch_mix_grpo"),
    *("diffusion_nft", "dgpo", "flow_dpo", "sol_rl"),
)
"""Of each kind of schedule, and of each kind of term that compares latents or rows."""


@pytest.mark.parametrize(
    "preset", [pytest.param(name, marks=() if name in OF_EACH_KIND else pytest.mark.evidence) for name in ALONE]
)
def test_presets_take_a_step_on_sizes_of_their_own(make: Make, tmp_path: Path, preset: str):
    """The ratio gate (1e-6) passes."""
    needs = ["algorithm.minibatches=1"] if preset != "temp_flow_grpo" else []
    job = build(mixed(make, tmp_path, "evaluation.num_prompts=0", *needs, preset=preset))
    train_steps(job)


def test_a_plan_counts_every_size(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made = draw_up(mixed(make, tmp_path, "evaluation.num_prompts=0"))
    rollout = made.usual.counts["rollout"]
    # 3 prompts x 4 samples x 4 steps without guidance, of 16, 32 and 64 tokens
    assert (rollout.rows, rollout.positions) == (48, 16 * (16 + 32 + 64))
    assert made.usual.drawn == {(16, 16): 4, (32, 16): 4, (32, 32): 4}
    assert made.memory.host["decoded samples"] == 4 * 3 * (256 + 512 + 1024)
    print_geometry(made)
    said = " ".join(capsys.readouterr().out.split())
    assert "sizes of pictures 16 x 16 (4 samples), 32 x 16 (4 samples), 32 x 32 (4 samples)" in said
    same = draw_up(mixed(make, tmp_path, "evaluation.num_prompts=0", rows=[{"prompt": text} for text in "abc"]))
    # 16 pictures of 16 tokens fill a forward; so do 4 of 64, and 12 of 16 are beside them
    assert 0 < made.memory.phases["update"] <= same.memory.phases["update"]
    assert made.memory.host["latents of a step's rollouts"] * 3 == same.memory.host["latents of a step's rollouts"] * (1 + 2 + 4)


def test_a_plans_memory_is_that_of_the_largest_prompts(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Though neither step that is counted meets them: only the first 32 rows are looked at, and the largest stand last."""
    small: list[dict[str, object]] = [{"prompt": f"fox {i}"} for i in range(40)]
    large: list[dict[str, object]] = [{"prompt": f"dog {i}", "width": 64, "height": 32 * (1 + i)} for i in range(2)]
    words = ("evaluation.num_prompts=0", "policy.decode_rows=1")
    few, made, alone = (
        draw_up(mixed(make, tmp_path, *words, *more, rows=rows))
        for rows, more in ((small, ()), ([*small, *large], ()), ([large[1]] * 3, ()))
    )
    assert few.usual.drawn == made.usual.drawn == {(16, 16): 12} and not few.heaviest and not alone.heaviest
    assert made.heaviest == {(64, 64): 4, (64, 32): 4, (16, 16): 4}
    assert made.usual.counts == few.usual.counts
    assert made.memory.host["decoded samples"] == 4 * 3 * (64 * 64 + 64 * 32 + 16 * 16)
    assert made.memory.phases["decode"] == alone.memory.phases["decode"] > 3 * few.memory.phases["decode"]
    print_geometry(made)
    said = " ".join(capsys.readouterr().out.split())
    assert "largest step 16 x 16 (4 samples), 64 x 32 (4 samples), 64 x 64 (4 samples): memory is counted for it" in said


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("family", sorted(STEPS))
def test_every_familys_grid_is_known_before_its_weights_load(make: Make, tmp_path: Path, family: str):
    """For the run's own size and for a prompt's, with the nearest sizes that fit; a sound has a length alone."""
    step = STEPS[family]
    low, high = 32 // step * step or step, (32 // step + 1) * step
    words = [f"policy.model=tiny:{family}", f"policy.max_prompt_tokens={512 if family == 'wan_i2v' else 3}"]
    words += ["policy.frames=5"] if "i2v" in family else []
    own = make(*words, f"policy.height={low + 1}", f"policy.width={low}")
    takes_a_picture = any(word in family for word in ("kontext", "edit", "i2v"))
    media = (Image.fromarray(np.zeros((32, 32, 3), np.uint8)),) if takes_a_picture else ()
    with pytest.raises(ValueError, match=rf"policy\.height is {low + 1}, but this model draws multiples of {step} pixels.*{low}"):
        check(own, [Prompt("a", "a red fox", media)])
    fits = make(*words, f"policy.height={low}", f"policy.width={low}")
    check(fits, [Prompt("a", "a red fox", media, columns={"width": low, "height": high})])
    message = rf"'a' asks for {low} x {high - 1} pixels, but this model draws multiples of {step} pixels.*: take .*{low} x {high}"
    with pytest.raises(ValueError, match=message):
        check(fits, [Prompt("a", "a red fox", media, columns={"width": low, "height": high - 1})])


def check(resolved: Resolved, prompts: Sequence[Prompt]) -> None:
    config = building.with_local_model(resolved.config)
    modality_of(config.policy).check_prompts(config.policy, prompts)


def test_several_bad_rows_are_counted():
    prompts = [Prompt(str(i), "x", columns={"width": 512}) for i in range(3)]
    said = r"prompt '0' has a width \(512\) and no height.* \(and 2 more of 3 prompts cannot be drawn\)"
    with pytest.raises(ValueError, match=said):
        refuse_sizes(prompts, None)


@pytest.mark.usefixtures("no_weights")
def test_an_objective_over_whole_minibatches_is_refused_where_sizes_differ(make: Make, tmp_path: Path):
    """By `mmrl train` and by `mmrl plan`, before weights load; sizes of held-out prompts are never compared."""
    words = ("algorithm.objective.0.bias=batch", "algorithm.minibatches=1", "algorithm.epochs=2")
    sizes = "16 x 16, 32 x 16, 32 x 32"
    for refused in (build, draw_up):
        with pytest.raises(ValueError, match=rf"compares latents \(mean, sampled_mean\) .* drawn at {sizes} pixels: draw all"):
            refused(mixed(make, tmp_path, *words, preset="grpo_guard"))
    assert draw_up(mixed(make, tmp_path, *words[1:], preset="grpo_guard")).usual.updates
    resolved = mixed(make, tmp_path, *words, preset="grpo_guard")
    (tmp_path / "alike").mkdir()
    alike = lines_of([{"prompt": text, "width": 32, "height": 16} for text in "abc"], tmp_path / "alike")
    resolved.table.set(("data",), {"use": "prompts", "path": alike}, "test")
    with pytest.raises(pytest.fail.Exception, match="the model was loaded"):
        build(configs.resolve(resolved.table))


def test_editors_take_the_columns_of_their_rows(make: Make, tmp_path: Path):
    rows: list[dict[str, object]] = []
    for i, columns in enumerate([{}, {"width": 32, "height": 16}]):
        Image.fromarray(np.full((16, 16, 3), 40 * i, np.uint8)).save(tmp_path / f"{i}.png")
        rows.append({"image": f"{i}.png", "instruction": "make it red", **columns})
    resolved = make("policy.model=tiny:kontext", "policy.max_prompt_tokens=24", "evaluation.num_prompts=0", "prompts_per_step=2")
    resolved.table.set(("data",), {"use": "edits", "path": lines_of(rows, tmp_path)}, "test")
    job = build(configs.resolve(resolved.table))
    groups: Sequence[Any] = job.trainer.collect().rollouts.groups
    assert sorted(group.samples[0].image.size for group in groups) == [(16, 16), (32, 16)]


PRESETS = ("flow_grpo", "mix_grpo", "branch_grpo")
RESULTS = ("z_image", "flux2", "sd15", "sdxl")
"""Of these one that trains on the results, too; of the others in make evidence."""
WAYS = [
    *(pytest.param("diffusion_nft", family, marks=() if family in RESULTS else pytest.mark.evidence) for family in LATE_FAMILIES),
    *(
        pytest.param(preset, family, marks=() if i % len(PRESETS) == j else pytest.mark.evidence)
        for i, family in enumerate(LATE_FAMILIES)
        for j, preset in enumerate(PRESETS)
    ),
]
"""Of each family a preset that trains on the way to its results."""
PLANNED = ("z_image", "sd15")
"""A transformer of flow matching and a U-Net of noise levels, planned in make test; the others in make evidence."""
TABLE = ["algorithm.schedule.spacing.kind=DiffusionTable"]


def late(make: Make, preset: str, family: str, *words: str) -> Resolved:
    """A preset on a tiny model of a family; models of noise levels keep their own."""
    resolved = with_preset(make, preset, *of_family(family), "algorithm.minibatches=2", *words)
    return configs.resolve(resolved.table, TABLE) if family in ("sd15", "sdxl") and preset != "diffusion_nft" else resolved


@pytest.mark.parametrize(("preset", "family"), WAYS)
def test_it_trains_two_steps(make: Make, preset: str, family: str):
    """With guidance and an adapter; the ratio gate (1e-6) passes."""
    job = build(late(make, preset, family, "prompts_per_step=2"))
    for metrics in train_steps(job, 2):
        assert math.isfinite(metrics["reward/total"])


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in PLANNED else pytest.mark.evidence) for name in LATE_FAMILIES]
)
def test_its_calls_latents_and_bytes_are_planned_without_weights(make: Make, family: str):
    resolved = late(make, "flow_grpo", family, "prompts_per_step=2")
    planned, policy = draw_up(resolved), cast(Any, build(resolved).policy)
    assert planned.memory.parameters == sum(weight.numel() for weight in policy.net.transformer.parameters())
    assert planned.memory.trained == sum(weight.numel() for weight in policy.parameters())
    passes = policy.net.passes()
    # 2 prompts of 4 samples, 4 steps, of which the first 3 train
    assert planned.usual.counts["rollout"].rows == 2 * 4 * 4 * passes
    assert planned.usual.counts["update"].rows == 2 * 4 * 3 * passes
    assert planned.memory.stays["vae"] == 4 * sum(weight.numel() for weight in policy.pipeline.vae.parameters())


@pytest.mark.parametrize("family", ["z_image", "sdxl"])
def test_what_a_run_exports_loads_in_diffusers(make: Make, tmp_path: Path, family: str):
    run = run_training(late(make, "flow_grpo", family, "steps=1", "output=run", "prompts_per_step=2"))
    merged = export(run.path, tmp_path / "merged", merge=True)
    pipeline = diffusers.DiffusionPipeline.from_pretrained(merged)  # type: ignore[reportPrivateImportUsage]
    assert not [name for name in pipeline.components if "lora" in name]
    card = (export(run.path, tmp_path / "adapter") / "README.md").read_text()
    assert "pipeline_tag: text-to-image" in card and "load_lora_weights" in card


def test_guidance_for_a_model_that_was_made_without_is_said(make: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path):
    """Turbo is known by its name."""
    folder = build_tiny("z_image", tmp_path / "Z-Image-Turbo")
    with caplog.at_level(logging.WARNING):
        build(late(make, "few_step", "z_image", f"policy.model={folder}"))
        assert "was made to be drawn without guidance" in caplog.text and "reads weights" not in caplog.text
        build(late(make, "dgpo", "z_image", f"policy.model={folder}"))
    assert "the objective reads weights with guidance 4.5" in caplog.text


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("family", ["z_image", "flux2_klein", "flux"])
def test_noise_that_stays_is_refused_of_a_distilled_model(make: Make, tmp_path: Path, family: str):
    """Turbo and schnell are known by their names, klein by its index."""
    folder = build_tiny(family, tmp_path / "of-turbo-and-schnell")
    for file, facts in (("model_index.json", {"is_distilled": True}), ("transformer/config.json", {"guidance_embeds": False})):
        if family in ("flux2_klein", "flux"):
            (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **facts}))
    tokens = (FAMILIES | LATE_FAMILIES)[family]
    words = [f"policy.model={folder}", "policy.guidance=1.0", f"policy.max_prompt_tokens={tokens}"]
    with pytest.raises(ValueError, match=r'dynamics is .flow_sde.*distilled to few steps.*preset = "few_step"'):
        build(with_preset(make, "flow_grpo", *words))
    with pytest.raises(pytest.fail.Exception, match="the model was loaded"):
        build(with_preset(make, "few_step", *words))


def test_a_family_of_ones_own_trains_is_planned_and_is_exported(make: Make, tmp_path: Path):
    """The example's AuraFlow, named in a config."""
    example = Path(__file__).parents[3] / "examples/my_generator.py"
    folder = load(f"{example}:tiny_aura_flow", "families")(tmp_path / "aura")
    words = [f"policy.model={folder}", f"policy.family={example}:AuraFlow", "policy.max_prompt_tokens=24", "policy.lora.rank=2"]
    resolved = make(*words, "steps=1", "output=run", "policy.guidance=2.0")
    assert draw_up(resolved).usual.counts["rollout"].rows > 0
    run = run_training(resolved)
    out = export(run.path, tmp_path / "out", merge=True)
    assert (out / "transformer" / "config.json").is_file()


TOKENS = {"kontext": 24, "qwen_edit": 40, "flux2_klein": 40, "qwen_image21": 40}
FRAME_TOKENS = {"wan_i2v": 512, "wan_i2v_a14b": 12, "wan_5b": 12, "hunyuan15_i2v": 12, "sana_i2v": 12, "ltx2_i2v": 12}
SIZES = {"qwen_image21": 32, "kontext": 0, "qwen_edit": 0, "flux2_klein": 0, "hunyuan15_i2v": 16, "ltx2_i2v": 16}
"""Family -> its side where it is not the usual one: of some, tokens are of 4 x 4 pixels; 0: that of the config."""
EDITED = "reward=[{use = 'keeps_rest'}, {use = 'jpeg_size', scale = 0.1}]"
MOVED = 'reward=[{use="first_frame", limit=1.0}, {use="over_frames", frames=2, picture={use="jpeg_size", scale=0.1}}]'
EDITED_WAYS = [
    *(("kontext", name) for name in ("flow_grpo", "mix_grpo", "branch_grpo", "diffusion_nft")),
    *(("qwen_edit", "mix_grpo"), ("qwen_edit", "diffusion_nft"), ("flux2_klein", "flow_grpo"), ("flux2_klein", "branch_grpo")),
    *(("qwen_image21", "flow_grpo"), ("wan_i2v", "flow_grpo"), ("wan_i2v_a14b", "mix_grpo"), ("wan_i2v_a14b", "diffusion_nft")),
    *(("wan_5b", "branch_grpo"), ("wan_5b", "diffusion_nft"), ("hunyuan15_i2v", "flow_grpo"), ("sana_i2v", "flow_grpo")),
    pytest.param("ltx2_i2v", "flow_grpo", marks=pytest.mark.evidence),
]


def picture(seed: int, size: tuple[int, int] = (16, 16)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def rows_of(family: str, folder: Path) -> Path:
    """A file of five edits, or of four first frames for a model that goes on from them."""
    edits, frames = (5, 16, {"instruction": "make it red"}), (4, 32, {"prompt": "it moves left"})
    count, side, columns = frames if family in FRAME_TOKENS else edits
    for i in range(count):
        picture(i, (side, side)).save(folder / f"{i}.png")
    rows = [{"image": f"{i}.png", "id": str(i), **columns} for i in range(count)]
    return Path(lines_of(rows, folder))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return rows_of("kontext", tmp_path)


@pytest.fixture
def frame_rows(tmp_path: Path) -> Path:
    return rows_of("wan_i2v", tmp_path)


def editing(make: Make, name: str, family: str, rows: Path, *words: str) -> Resolved:
    """A preset on a tiny editor, or on a model that goes on from first frames."""
    resolved = make()
    for table in (("data",), ("evaluation", "data")):
        resolved.table.set(table, {"use": "edits", "path": str(rows)}, "test")
    own = [f"policy.model=tiny:{family}", f"policy.max_prompt_tokens={(TOKENS | FRAME_TOKENS)[family]}"]
    own += ["policy.guidance=2.0", "policy.lora.rank=2", "prompts_per_step=2", MOVED if family in FRAME_TOKENS else EDITED]
    own += ["policy.frames=5"] if family in FRAME_TOKENS else []
    side = SIZES.get(family, 32)
    own += [f"policy.height={side}", f"policy.width={side}"] if side else []
    return with_preset(lambda: resolved, name, *own, *words)


@pytest.mark.parametrize(("family", "name"), EDITED_WAYS)
def test_presets_take_two_steps_on_pictures_of_ones_own(make: Make, tmp_path: Path, family: str, name: str):
    """The ratio gate (1e-6) passes."""
    words = ["algorithm.minibatches=2"] if name == "branch_grpo" else []
    for metrics in train_steps(build(editing(make, name, family, rows_of(family, tmp_path), *words)), 2):
        parts = metrics.keys() & {"reward/first_frame/difference", "reward/keeps_rest/idle"}
        assert [math.isfinite(metrics[name]) for name in parts] == [True]


def shown(make: Make, family: str, rows: Path) -> tuple[RunDir, dict[str, Any]]:
    """A run of one step whose report shows two sources, and its first held-out line."""
    words = ("output='run'", "steps=1", "evaluation.num_prompts=2", "evaluation.num_steps=2")
    run = run_training(editing(make, "flow_grpo", family, rows, *words))
    gallery = run.report_file.read_text().partition('<section id="gallery">')[2].partition("</section>")[0]
    assert gallery.count('<p class="label">source</p>') == 2
    return run, json.loads(run.samples_file("eval", 0).read_text().splitlines()[0])


def test_a_run_leaves_source_before_and_after_and_can_be_looked_at(make: Make, rows: Path):
    run, line = shown(make, "kontext", rows)
    stored = Image.open(run.samples / line["media"][0]["file"])
    assert np.array_equal(np.asarray(stored), np.asarray(picture(int(line["prompt"]))))
    assert line["image"]["file"] != line["media"][0]["file"]


def test_a_run_shows_the_frame_beside_its_clips(make: Make, frame_rows: Path):
    run, line = shown(make, "wan_i2v_a14b", frame_rows)
    assert line["video"]["kind"] == "video" and (run.samples / line["media"][0]["file"]).is_file()


def test_a_plan_counts_the_tokens_of_pictures(make: Make, rows: Path):
    def tokens(*words: str, family: str = "kontext") -> tuple[int, int]:
        usual = draw_up(editing(make, "flow_grpo", family, rows, *words)).usual.counts
        return usual["rollout"].rows, usual["rollout"].positions

    latents, same_size = tokens()
    again, four_times = tokens(f"policy.source_pixels={32 * 32}")
    # 16 x 16 pixels are 16 tokens of noise; the picture has as many, and at four times the area 64.
    assert latents == again and same_size == latents * (16 + 16) and four_times == latents * (16 + 64)
    latents, same_size = tokens(family="qwen_image21")
    # Its network asks where in the text pictures are: 4 tokens of noise, and 4 of the picture.
    assert same_size == latents * (4 + 4)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("family", "data", "words"),
    [
        ("flux", "edits", r"5 of 5 prompts hold 1 picture each .* draws from text alone: remove the pictures"),
        ("kontext", "prompts", r"6 of 6 prompts hold 0 pictures each \(the first is '1'\), but .* takes prompts with 1"),
        ("qwen_edit", "prompts", r"hold 0 pictures .* takes prompts with 1 to 3: name them in the data's column image or images"),
    ],
)
def test_prompts_that_the_model_cannot_take_are_refused_before_weights_load(
    make: Make, rows: Path, family: str, data: str, words: str
):
    resolved = make(f"policy.model=tiny:{family}", "policy.max_prompt_tokens=24", "evaluation.num_prompts=0")
    if data == "edits":
        resolved.table.set(("data",), {"use": "edits", "path": str(rows)}, "test")
    with pytest.raises(ValueError, match=words):
        build(configs.resolve(resolved.table))


def test_pictures_that_are_stretched_are_warned_of(make: Make, rows: Path, caplog: pytest.LogCaptureFixture):
    picture(0, (32, 16)).save(rows.with_name("0.png"))
    build(editing(make, "flow_grpo", "kontext", rows, "evaluation.num_prompts=0"))
    assert "1 of 5 pictures of prompts have another shape than the 16 x 16 pixels that the model sees" in caplog.text
    assert "the first is prompt '0''s of 32 x 16" in caplog.text
    caplog.clear()
    build(editing(make, "flow_grpo", "kontext", rows, "evaluation.num_prompts=0", "policy.source_fit=pad", "reward.0.fit=pad"))
    assert "another shape" not in caplog.text


def test_a_prompt_is_shown_as_the_editor_sees_it(make: Make, rows: Path):
    job = build(editing(make, "flow_grpo", "kontext", rows, f"policy.source_pixels={32 * 32}"))
    seen = prompt_view(job.policy, Request(Prompt("p", "<image> make it red", (picture(1),)), 1, 0))
    assert seen.text == "make it red" and [(name, image.size) for name, image in seen.pictures] == [("picture-0", (32, 32))]


def test_one_line_trains_an_editor(rows: Path):
    words = ["policy.model=tiny:kontext", "steps=1"]
    config: Any = one_line("edit", "tiny:kontext", str(rows), ["keeps_rest=0.5"], words).config
    assert (config.data.use, config.algorithm.label.split()[0]) == ("edits", "flow_grpo")
    assert (config.policy.height, config.saves_by_time, config.evaluate_every) == (512, True, 0)
    with pytest.raises(ValueError, match=r"--task edit needs --reward, for example mmrl train --task edit .*Kontext"):
        one_line("edit", "tiny:kontext", str(rows), [], [])


@pytest.mark.parametrize("family", sorted(FRAME_TOKENS))
def test_a_plan_counts_the_network_that_it_goes_through(make: Make, frame_rows: Path, family: str):
    """A first frame adds no token; its channels and CLIP's view pass the network in full size."""
    made = draw_up(editing(make, "flow_grpo", family, frame_rows))
    tokens = {"wan_i2v": 8, "wan_i2v_a14b": 8, "wan_5b": 2, "hunyuan15_i2v": 48, "sana_i2v": 8, "ltx2_i2v": 48}[family]
    counted = made.usual.counts["rollout"]
    assert counted.positions == counted.rows * tokens
    assert made.memory.phases["update"] > 0


def test_one_line_goes_on_from_first_frames(frame_rows: Path):
    words = ["policy.max_prompt_tokens=12"]
    config: Any = one_line("i2v", "tiny:wan_i2v_a14b", str(frame_rows), ["first_frame=0.5"], words).config
    assert (config.data.use, config.algorithm.label.split()[0]) == ("edits", "flow_grpo_fast")
    assert (config.policy.frames, config.policy.height, config.policy.width) == (33, 256, 448)
    fives = building.with_local_model(one_line("i2v", "tiny:wan_5b", str(frame_rows), ["first_frame"], []).config).policy
    assert ModelFacts.of(fives, ()).token_side == 32, "of an autoencoder that takes patches"
    config = one_line("i2v", "tiny:ltx2", str(frame_rows), ["first_frame"], words).config
    assert config.policy.frames == 33
    with pytest.raises(ValueError, match=r"--task i2v needs --reward, for example mmrl train --task i2v .*Wan2\.2-TI2V-5B"):
        one_line("i2v", "tiny:wan_i2v_a14b", str(frame_rows), [], [])
