"""Methods whose idea is a reward train with it or not at all."""

import tomllib
from pathlib import Path

import pytest

from mmrl.app.config import run as configs
from mmrl.app.config.algorithm import presets
from mmrl.app.config.reward_needs import names_in
from mmrl.app.plugins.resolve import load
from mmrl.app.toml.tables import Table

NEEDED = {
    "urpa": "pseudo_span",
    "pref_grpo": "pairwise_win_rate",
    "mm_upt": "majority_vote",
    "deepeyes": "tool_bonus",
    "openthinkimg": "turn_format",
    "pixelthink": "box_and_points",
}
SEVERAL = {"thyme": ("turn_format", "consistency")}
"""Methods that are made of more than one reward."""


def run(preset: str, reward: str, more: str = "") -> configs.Resolved:
    """A run's config with this preset and the [[reward]] tables of a text."""
    table = configs.load("tiny/flow" if preset == "pref_grpo" else "tiny/image").table
    table.set(("algorithm",), {"preset": preset, **tomllib.loads(more)}, "test")
    table.set(("reward",), tomllib.loads(reward)["reward"], "test")
    return configs.resolve(table)


def test_every_need_is_a_shipped_reward():
    assert {name: one.needs_rewards for name, one in presets().items() if one.needs_rewards} == {
        name: (reward,) for name, reward in NEEDED.items()
    } | SEVERAL
    for reward in (*NEEDED.values(), *SEVERAL["thyme"]):
        load(reward, "rewards")


@pytest.mark.parametrize(("preset", "needed"), NEEDED.items())
@pytest.mark.parametrize("other", ['use = "length"', 'use = "{needed}"\nweight = 0.0', 'use = "{needed}"\nweight = -1.0'])
def test_a_method_without_its_reward_is_refused(preset: str, needed: str, other: str):
    written = '[[reward]]\nuse = "format"\n[[reward]]\n' + other.replace("{needed}", needed)
    message = rf"algorithm.preset is '{preset}', a method that trains on the reward '{needed}'.* with use = '{needed}', or"
    with pytest.raises(ValueError, match=message):
        run(preset, written)
    assert run(preset, written, "needs_rewards = []").config.algorithm.algorithm.needs_rewards == ()


@pytest.mark.parametrize("preset", NEEDED)
@pytest.mark.parametrize("use", ["{}", "rewards/{}.py", "rewards/{}.py:Part", "http://127.0.0.1:8700/{}"])
def test_a_method_with_its_reward_passes(preset: str, use: str):
    resolved = run(preset, f'[[reward]]\nuse = "{use.format(NEEDED[preset])}"\nweight = 0.5')
    assert resolved.config.algorithm.algorithm.needs_rewards == (NEEDED[preset],)


def test_a_needed_reward_may_stand_inside_another():
    resolved = run("urpa", '[[reward]]\nuse = "by_type"\nspan = { use = "pseudo_span", gamma = 0.5 }')
    assert resolved.config.reward[0].use == "by_type"
    assert set(names_in("a.py:f", {"x": {"use": "b", "y": {"use": "c"}}, "n": 3})) == {"f", "a", "b", "c"}


def test_the_need_survives_the_run_folder(tmp_path: Path):
    config = run("mm_upt", '[[reward]]\nuse = "majority_vote"').config
    configs.save(config, tmp_path / "config.toml")
    assert configs.resolve(Table.read(tmp_path / "config.toml")).config == config
