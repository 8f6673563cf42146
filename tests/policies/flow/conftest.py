"""Tiny pipelines of every family, built once per session."""

from collections.abc import Callable
from functools import cache

import pytest
from diffusers.utils import logging

from mmrl.lab.tiny.flow.pipelines import build


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Family -> folder of a tiny pipeline."""
    logging.disable_progress_bar()
    return cache(lambda family: str(build(family, tmp_path_factory.mktemp(family))))
