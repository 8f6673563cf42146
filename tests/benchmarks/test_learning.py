"""Equal time, equal job: the clock of a race, and the plain loop whose formulas must be mmrl's."""

import math
import time

import pytest
import torch

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

    from mmrl.core.types import Prompt

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
