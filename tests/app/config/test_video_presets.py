"""Presets for video in configs and commands."""

import pytest

from mmrl.algorithms.ema_decay import SteadyDecay
from mmrl.algorithms.planners.video import DifficultyAware
from mmrl.algorithms.views import MaskPatches
from mmrl.app.config import run as configs
from mmrl.app.config.algorithm import presets
from mmrl.app.inspect.show import description
from mmrl.app.plugins.catalog import catalog
from mmrl.app.run.build import build
from mmrl.policies.shared.weights import USUAL_DECAY
from tests.support.presets import VIDEO as PRESETS


def test_presets_are_listed_and_shown():
    listed = {one.name: one.summary for one in catalog("algorithms")}
    assert set(PRESETS) <= set(listed)
    assert set(PRESETS) <= set(presets())
    assert listed["tw_grpo"].endswith("(arXiv:2505.24718)")
    text = description("deepvideo_r1", ["algorithm.planner.window=50"])
    assert "algorithm.planner.window" in text and "AdvantageRegression" in text
    assert "planner.memory" not in text


def test_views_are_settings_of_their_parts():
    algorithm = configs.load("tiny/image", ["algorithm.preset=papo", "algorithm.objective.2.view.patch=28"]).config.algorithm
    assert algorithm.algorithm.views == {"masked": MaskPatches(patch=28)}
    assert algorithm.label == "papo + objective.2.view"
    own = configs.load("tiny/image", ["algorithm.planner.kind=DifficultyAware", "algorithm.planner.window=7"]).config.algorithm
    assert own.algorithm.planner == DifficultyAware(window=7)
    assert own.label == "grpo + planner"


@pytest.mark.parametrize("preset", ["t_grpo", "papo", "grpo_care"])
def test_the_policy_gets_views_and_shadows(preset: str):
    job = build(configs.load("tiny/image", [f"algorithm.preset={preset}", "policy.model=tiny:qwen3_vl"]))
    assert set(job.policy.views) == set(PRESETS[preset].views)  # type: ignore[attr-defined]
    assert job.policy.shadows == PRESETS[preset].shadows
    assert job.policy.ema_decay == (SteadyDecay(0.9995) if preset == "grpo_care" else USUAL_DECAY)  # type: ignore[attr-defined]
