"""Tiny models of every family, built once per session."""

from collections.abc import Callable
from functools import cache

import pytest

from mmrl.lab.tiny.byte_tokens import TEXT
from mmrl.lab.tiny.text.vlms import build


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Family -> folder of a tiny model."""
    return cache(lambda family: str(build(family, tmp_path_factory.mktemp(family))))


@pytest.fixture(scope="session")
def folder(tiny: Callable[[str], str]) -> str:
    return tiny("qwen3_vl")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another model with the tokens of `folder`."""
    return str(build("qwen3_vl", tmp_path_factory.mktemp("other"), seed=1))


@pytest.fixture(scope="session")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Qwen3-VL of one layer: a compiler goes through every one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TEXT, "num_hidden_layers", 1)
        return str(build("qwen3_vl", tmp_path_factory.mktemp("shallow")))
