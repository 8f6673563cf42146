"""Presets for video in configs and commands."""

from dataclasses import replace
from pathlib import Path

import pytest

from mmrl.algorithms.ema_decay import SteadyDecay
from mmrl.algorithms.planners.video import DifficultyAware
from mmrl.algorithms.views import MaskPatches
from mmrl.app.config import run as configs
from mmrl.app.config.algorithm import PART_SLOTS, presets
from mmrl.app.config.slots import kinds
from mmrl.app.inspect.show import description
from mmrl.app.plugins.catalog import catalog
from mmrl.app.run.build import build
from mmrl.policies.shared.weights import USUAL_DECAY
from tests.support.presets import VIDEO as PRESETS


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_saved_config_is_the_same_run(preset: str, tmp_path: Path):
    config = configs.load("tiny/image", [f"algorithm.preset={preset}", "algorithm.needs_rewards=[]"]).config
    configs.save(config, tmp_path / "saved.toml")
    again = configs.load(str(tmp_path / "saved.toml")).config
    assert again == config
    assert replace(again.algorithm.algorithm, group_size=8) == replace(PRESETS[preset], needs_rewards=())
    assert config.algorithm.label == preset


def test_presets_are_listed_and_shown():
    listed = {one.name: one.summary for one in catalog("algorithms")}
    assert set(PRESETS) <= set(listed)
    assert set(PRESETS) <= set(presets())
    assert listed["tw_grpo"].endswith("(arXiv:2505.24718)")
    text = description("deepvideo_r1", ["algorithm.planner.window=50"])
    assert "algorithm.planner.window" in text and "AdvantageRegression" in text
    assert "planner.memory" not in text


def test_every_part_has_a_kind():
    for name, algorithm in PRESETS.items():
        for slot in PART_SLOTS:
            value = getattr(algorithm, slot)
            for item in value if isinstance(value, tuple) else (value,):
                part = item[1] if isinstance(item, tuple) else item
                assert part is None or kinds(slot)[type(part).__name__] is type(part), f"{name}.{slot}"


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


def test_image_generators_have_no_views():
    words = ["algorithm.planner.kind=Probed", "policy.model=tiny:sd3"]
    with pytest.raises(ValueError, match=r"shows prompts in other ways \(shuffled\), but policy.kind is 'flow'"):
        build(configs.load("tiny/flow", words))
