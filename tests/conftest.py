"""Shared by all tests: one thread, offline, and quiet; a cache of tiny models, and an empty working directory."""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems() -> None:
    """Let what hypothesis draws depend on no constants of whichever files are imported, which it would read for seconds."""
    if "hypothesis" in sys.modules:
        from hypothesis.internal.conjecture import providers

        providers.is_local_module_file = lambda path: False  # type: ignore[reportPrivateImportUsage]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tiny models are made, each once per session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def empty_desk(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, and the session's cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMRL_CACHE", str(cache))
