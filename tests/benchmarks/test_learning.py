"""Scripts beside other people's code: equal time and an equal job, loops whose formulas are mmrl's, and which lines are run."""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from mmrl.core.types import Prompt
from mmrl.flow.dynamics import FlowSDE
from mmrl.lab.tiny.flow import pipelines


def test_a_race_counts_training_only(script, monkeypatch):
    learn = script("learn_vs_trl")
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])

    def evaluate() -> dict[str, float]:
        now[0] += 100.0
        return {"IoU": now[0]}

    race = learn.Race(evaluate, seconds=10.0, every=4.0)
    race.start()
    over = []
    for step in range(1, 5):
        now[0] += 3.0
        over.append(race.after_step(step))
    assert over == [False, False, False, True]
    assert [point[:2] for point in race.points] == [[0.0, 0], [6.0, 2], [9.0, 3], [12.0, 4]]


def test_lines_between_points(script):
    between = script("learn_vs_trl").between
    line = [(0.0, 1.0), (2.0, 3.0), (4.0, 3.0)]
    assert [between(line, x) for x in (0.0, 1.0, 3.0, 9.0)] == [1.0, 2.0, 3.0, 3.0]


def test_rows_name_sides_seeds_and_means(script):
    learn = script("learn_vs_trl")
    first = {"mean IoU": 0.3, "hits": 0.5}
    sides = {
        "mmrl": [[0.0, 0, first], [9.0, 20, {"mean IoU": 0.7, "hits": 0.9}]],
        "peer": [[0.0, 0, first], [9.0, 10, {"mean IoU": 0.5, "hits": 0.7}]],
    }
    rows = learn.rows_of("grounding", {"0": sides, "1": sides})
    assert rows[0] == ["grounding, mmrl, seed 0", "9", "20", "0.300 -> 0.700", "0.500 -> 0.900"]
    assert rows[-1] == ["**grounding, TRL, mean**", "9", "10", "**0.500**", "**0.700**"]


@pytest.fixture
def loop(script, tmp_path):
    """The plain loop on a tiny model of the same class, and the rewards it asked for."""
    module = script("flow_script")
    asked = []

    def reward(prompts, images):
        asked.append([prompt.text for prompt in prompts])
        return torch.tensor([float(sum(image.getpixel((0, 0)))) for image in images])

    prompts = [Prompt(str(i), f"a {i}") for i in range(3)]
    recipe = module.Recipe(num_steps=3, prompts=2, group_size=4, micro_batch=4, lr=1e-2)
    pipelines.build("sd3", tmp_path / "model")
    return module, module.Script(str(tmp_path / "model"), ["to_q", "to_k", "to_v"], prompts, reward, recipe, seed=0), asked


def test_the_loop_s_step_is_flow_sde(loop):
    """Mean, deviation and log-density of a step are those of mmrl's part, up to the constants that ratios do not see."""
    module, script, _ = loop
    torch.manual_seed(0)
    x, v, x_next = (torch.randn(2, 4, 8, 8, dtype=torch.float64) for _ in range(3))
    sigmas = torch.tensor(script.sigmas, dtype=torch.float64)
    for i in range(2):
        mean, std = script.transition(x, v, i)
        gaussian = FlowSDE(0.7).transition(x, v, sigmas, torch.full((2,), i))
        torch.testing.assert_close(mean, gaussian.mean, rtol=1e-6, atol=1e-6)
        own = module.logprob(x_next, mean, std)
        torch.testing.assert_close(own, gaussian.log_density(x_next), rtol=1e-5, atol=1e-5)


def test_the_loop_takes_two_updates_and_moves(loop):
    _, script, asked = loop
    before = [weight.detach().clone() for weight in script.weights]
    updates = []
    take = script.optimizer.step
    script.optimizer.step = lambda: updates.append(take())
    script.step()
    assert len(updates) == 2 and len(asked) == 1
    assert [asked[0].count(text) for text in sorted(set(asked[0]))] == [4, 4]
    moved = sum(float((a - b.detach()).norm()) for a, b in zip(before, script.weights, strict=True))
    assert math.isfinite(moved) and moved > 0


def test_latents_become_the_pictures_of_the_pipeline(script, tmp_path):
    """The autoencoder's shift moves every pixel, its scale too; both are far from 0 and 1 here."""
    pipelines.build("sd3", tmp_path / "model")
    loop = script("flow_step").Loop(argparse.Namespace(model=str(tmp_path / "model"), micro_batch=[2], guidance=1.0))
    loop.pipe.vae.register_to_config(shift_factor=0.5, scaling_factor=1.5)
    embeds, pooled = loop.encode(["a", "b"])
    noise = torch.randn(2, loop.net.config.in_channels, 8, 8, generator=torch.Generator().manual_seed(0))
    asked = {"prompt_embeds": embeds, "pooled_prompt_embeds": pooled, "latents": noise, "guidance_scale": 1.0}
    asked |= {"num_inference_steps": 2, "height": 8 * loop.scale, "width": 8 * loop.scale}
    latents, pictures = (loop.pipe(**asked, output_type=kind).images for kind in ("latent", "pil"))
    with torch.no_grad():
        found = loop.decode(latents)
    for ours, theirs in zip(found, pictures, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_a_gradient_that_one_side_lacks_is_a_difference(script):
    stages = script("stages_vs_trl")
    weights = {"a": torch.tensor([2.0, -4.0]), "b": torch.tensor([1.0])}
    one = stages.Found({(1, 2)}, [0.5, 0.25], [weights, weights])
    assert stages.differences(one, one) == (0.0, 0.0)
    other = stages.Found({(1, 2)}, [0.5, 0.75], [weights, {"a": weights["a"]}])
    assert stages.differences(other, one) == stages.differences(one, other) == (0.5, 0.25)
    with pytest.raises(SystemExit, match="other tokens train"):
        stages.differences(one, stages.Found({(1, 3)}, [0.5, 0.25], [weights, weights]))


def test_the_lines_of_a_script_are_cut_out_and_another_version_is_refused(script, tmp_path: Path):
    pictures = script("pictures_vs_scripts")
    (tmp_path / "train.py").write_text("if x:\n    noise = 1\n    if y:\n        loss = 2\n    accelerator.backward(loss)\n")
    one = pictures.Script("clone", "train.py", "sd3", "sft", "noise = 1")
    assert pictures.lines_of(one, tmp_path) == "noise = 1\nif y:\n    loss = 2"
    with pytest.raises(SystemExit, match=r"has no line 'noise = 2' before .*: it is another version"):
        pictures.lines_of(pictures.Script("clone", "train.py", "sd3", "sft", "noise = 2"), tmp_path)
