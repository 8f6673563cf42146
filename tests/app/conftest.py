"""A small image generator's config, and a program that loads no model."""

import pytest

from mmrl.app.config import run as configs
from mmrl.app.run import build as building
from mmrl.policies.flow import loading
from mmrl.policies.shared.dry_run import DryRun
from tests.support.flow_runs import Make


@pytest.fixture
def make(empty_desk: None) -> Make:
    """configs/tiny/flow.toml with overrides, in an empty working directory."""
    return lambda *words: configs.load("tiny/flow", words)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model is a failure of the test."""
    for place, name in ((building, "policy_of_run"), (loading, "load_pipeline")):
        monkeypatch.setattr(place, name, lambda *_: pytest.fail("the model was loaded"))


@pytest.fixture
def what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans count the bytes of weights and what belongs to them, and go through no layer."""
    monkeypatch.setattr(DryRun, "activations", lambda self: {})
