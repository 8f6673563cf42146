"""Tiny pipelines of every family, built once per session."""

from collections.abc import Callable

import pytest
from diffusers.utils import logging

from mmrl.tiny.flow.pipelines import build


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Family -> folder of a tiny pipeline."""
    logging.disable_progress_bar()
    built: dict[str, str] = {}

    def folder(family: str) -> str:
        if family not in built:
            built[family] = str(build(family, tmp_path_factory.mktemp(family)))
        return built[family]

    return folder
