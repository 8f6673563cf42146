"""One tiny model for all."""

from pathlib import Path

import pytest

from mmrl.lab.tiny.text.vlms import build


@pytest.fixture(scope="session")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny vision-language model; tests change copies of it."""
    return Path(build("qwen3_vl", tmp_path_factory.mktemp("vlm")))
