"""Tiny pipelines of every family, built once per session."""

from collections.abc import Callable
from functools import cache

import pytest
from diffusers.utils import logging

from mmrl.lab.tiny.flow.pipelines import build
from mmrl.policies.flow import loading


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a pipeline's weights is a failure of the test."""
    monkeypatch.setattr(loading, "load_pipeline", lambda *_: pytest.fail("weights were loaded"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Family -> folder of a tiny pipeline."""
    logging.disable_progress_bar()
    return cache(lambda family: str(build(family, tmp_path_factory.mktemp(family))))
