"""How far ahead methods may be sampled, and the sentences that refuse a config before its model is loaded."""

import pytest

from mmrl.algorithms.presets import PRESETS
from mmrl.app.config.run import load
from mmrl.app.run.beforehand import look_at_settings
from mmrl.core.ranks import Ranks
from mmrl.training.ahead.limits import max_ahead
from tests.support.fakes import FakeAccelerator

ENGINE = 'policy.engine.url=["http://127.0.0.1:9"]'
AHEAD = {"grpo": 1, "dapo": 1, "gspo": 1, "remix": 0, "t_grpo": 0, "arpo_gui": 0, "hapo": 0, "flow_grpo": 0}


@pytest.mark.parametrize("name", AHEAD)
def test_presets_know_how_far(name: str):
    assert max_ahead(PRESETS[name]) == AHEAD[name]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), r"there is no \[policy.engine\], so the network that trains writes"),
        ((ENGINE, "policy.engine.sleep=true"), "policy.engine.sleep has servers rest"),
        ((ENGINE, "policy.engine.sync=broadcast", "ahead=2"), "keeps one version of the weights, so it allows 1"),
        (
            (ENGINE, "algorithm.preset=remix"),
            "allows 0: BetweenReferences changes its reference at the end of a step; set ahead = 0",
        ),
        ((ENGINE, "algorithm.preset=hapo"), "allows 0: ByDoubt plans by what the step before trained on"),
        ((ENGINE, "algorithm.importance=[]", "ahead=2"), "allows 1: nothing in it corrects"),
    ],
)
def test_what_cannot_be_sampled_ahead_is_refused(overrides: tuple[str, ...], words: str):
    config = load("tiny/image", ["ahead=1", *overrides]).config
    with pytest.raises(ValueError, match=f"ahead is [12], and .*{words}"):
        look_at_settings(config, Ranks())


def test_several_processes_are_refused():
    with pytest.raises(ValueError, match="the run has 2 processes"):
        look_at_settings(load("tiny/image", ["ahead=1", ENGINE]).config, Ranks(FakeAccelerator(2)))


def test_an_engine_brings_what_a_lag_needs():
    config = load("tiny/image", ["ahead=2", ENGINE]).config
    look_at_settings(config, Ranks())
    assert max_ahead(config.algorithm.algorithm) == 2, "by the correction that comes with an engine"
