"""Tiny models of every family, built once per session."""

from collections.abc import Callable

import pytest

from mmrl.tiny.text.vlms import build


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Family -> folder of a tiny model."""
    built: dict[str, str] = {}

    def folder(family: str) -> str:
        if family not in built:
            built[family] = str(build(family, tmp_path_factory.mktemp(family)))
        return built[family]

    return folder
