"""A small image generator's config; the model is built once per session."""

from pathlib import Path

import pytest

from mmrl.app.config import run as configs
from tests.support.flow_runs import Make


@pytest.fixture(scope="session")
def flow_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make(tmp_path: Path, flow_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """configs/tiny/flow.toml with overrides, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMRL_CACHE", str(flow_cache))
    return lambda *words: configs.load("tiny/flow", words)
