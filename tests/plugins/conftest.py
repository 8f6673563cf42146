"""Loading plug-in files as the app does, and groups to score."""

from pathlib import Path

import pytest

from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, MediaSize, Prompt, Sample

ROOT = Path(__file__).resolve().parents[2]
SIZE = MediaSize(640, 480, 644, 476)


@pytest.fixture
def reward():
    """name, fields -> the shipped reward."""
    return lambda name, **fields: load(str(ROOT / "rewards" / f"{name}.py"), "rewards")(**fields)


@pytest.fixture
def dataset():
    """name -> the shipped data set's load function."""
    return lambda name: load(str(ROOT / "datasets" / f"{name}.py"), "datasets")


@pytest.fixture
def group_of():
    """answer, texts -> a group on one picture of 640 x 480 pixels."""

    def build(answer, *texts, sizes=(SIZE,)):
        samples = tuple(Sample(text, tuple(range(len(text.split()))), media_sizes=sizes) for text in texts)
        return Group(0, Prompt("p7", "Where?", ("cat.jpg",), answer), samples)

    return build
