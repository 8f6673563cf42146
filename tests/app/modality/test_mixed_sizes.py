"""Columns `width` and `height` through the commands: runs, plans, resuming, and what is refused before weights load."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmrl.app.commands.plan import draw_up, print_geometry
from mmrl.app.commands.train import TrainArguments, run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.modality.flow_checks import refuse_sizes
from mmrl.app.modality.registry import modality_of
from mmrl.app.run import build as building
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.core.types import Prompt
from mmrl.lab.tiny.flow.pipelines import PIPELINES
from mmrl.policies.flow import loading
from tests.support.flow_runs import ALONE, Make, train_steps, with_preset

ROWS = [{"prompt": "a red fox"}, {"prompt": "two dogs", "width": 32, "height": 16}, {"prompt": "hi", "width": 32, "height": 32}]
STEPS = {"sd3": 4, "flux": 4, "qwen_image": 8, "z_image": 4, "flux2": 4, "flux2_klein": 4, "sana": 2, "sd15": 2, "sdxl": 2}
STEPS |= {"krea2": 8, "chroma": 4, "lumina2": 16, "qwen_image21": 32, "kontext": 4}
STEPS |= {"qwen_edit": 8, "qwen_edit_2511": 8, "wan": 16, "wan_5b": 32, "wan_a14b": 16}
STEPS |= {"wan_i2v": 16, "wan_i2v_a14b": 16, "hunyuan15": 4, "hunyuan15_i2v": 4, "sana_video": 16, "sana_i2v": 16}
STEPS |= {"ltx2": 4, "ltx23": 4, "ltx2_i2v": 4}
"""Family -> the pixels whose multiples its tiny model draws."""


def lines_of(rows: Sequence[dict[str, object]], folder: Path) -> str:
    file = folder / "sizes.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


def mixed(make: Make, folder: Path, *words: str, rows: Sequence[dict[str, object]] = ROWS, preset: str = "flow_grpo") -> Resolved:
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

    def numbers(run: RunDir) -> list[dict[str, float]]:
        lines = [line for line in run.read_metrics().lines if "loss" in line]
        return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]

    assert len(numbers(whole)) == 2
    for one, other in zip(numbers(whole), numbers(cut), strict=True):
        assert one == pytest.approx(other, abs=1e-6, nan_ok=True)
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


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """No weights may be loaded."""
    monkeypatch.setattr(building, "policy_of_run", lambda *_: pytest.fail("weights were loaded"))
    monkeypatch.setattr(loading, "load_pipeline", lambda *_: pytest.fail("weights were loaded"))


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("family", sorted(set(PIPELINES) - {"stable_audio3"}))
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
    with pytest.raises(
        ValueError, match=r"prompt '0' has a width \(512\) and no height.* \(and 2 more of 3 prompts cannot be drawn\)"
    ):
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
    with pytest.raises(pytest.fail.Exception, match="weights were loaded"):
        build(configs.resolve(resolved.table))


def test_editors_take_the_columns_of_their_rows(make: Make, tmp_path: Path):
    rows: list[dict[str, object]] = []
    for i, columns in enumerate([{}, {"width": 32, "height": 16}]):
        Image.fromarray(np.full((16, 16, 3), 40 * i, np.uint8)).save(tmp_path / f"{i}.png")
        rows.append({"image": f"{i}.png", "instruction": "make it red", **columns})
    resolved = make("policy.model=tiny:kontext", "policy.max_prompt_tokens=24", "evaluation.num_prompts=0", "prompts_per_step=2")
    resolved.table.set(("data",), {"use": "edits", "path": lines_of(rows, tmp_path)}, "test")
    job = build(configs.resolve(resolved.table))
    samples = job.trainer.collect().rollouts.groups
    assert sorted(group.samples[0].image.size for group in samples) == [(16, 16), (32, 16)]  # type: ignore[attr-defined]
