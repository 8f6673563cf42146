"""Tiny models of every family, built once per session."""

from collections.abc import Callable
from functools import cache

import pytest

from mmrl.lab.tiny.text.vlms import build


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Family -> folder of a tiny model."""
    return cache(lambda family: str(build(family, tmp_path_factory.mktemp(family))))
