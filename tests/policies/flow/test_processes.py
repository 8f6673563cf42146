"""Two processes with prompts of different cost and size equal one: replicated (DDP) and sharded (FSDP2)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policies.flow.run_families import all_trained
from tests.support import family_runs
from tests.support.family_runs import Joined
from tests.support.launcher import KINDS

pytestmark = pytest.mark.slow
FAMILIES = ("wan_a14b",)
"""It has two networks; a process may have no rows for one of them, and must not keep the other waiting."""
MORE = ("sd3", "qwen_image")
"""In `make evidence`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def joined(tiny: Callable[[str], str], folder: Path) -> Callable[[tuple[str, ...]], Joined]:
    """Readings of these families, which are trained together."""
    return family_runs.joined("tests.policies.flow.run_families", all_trained, tiny, folder)


def saved(folder: Path, model: str) -> dict[str, int]:
    """The networks' files and their sizes."""
    files = (folder / Path(model).name).glob("transformer*/diffusion_pytorch_model.safetensors")
    return {file.parent.name: file.stat().st_size for file in files}


@pytest.mark.parametrize(
    ("families", "family"),
    [*((FAMILIES, one) for one in FAMILIES), *(pytest.param(MORE, one, marks=pytest.mark.evidence) for one in MORE)],
)
def test_two_processes_equal_one(tiny: Callable[[str], str], joined: Any, folder: Path, families: tuple[str, ...], family: str):
    of = joined(families)
    one = of("one", family)
    for kind in KINDS:
        torch.testing.assert_close(of(kind, family), one, atol=5e-5, rtol=1e-4)
        assert saved(folder / kind, tiny(family)) == saved(folder / "one", tiny(family)) != {}
    assert len(saved(folder / "one", tiny(family))) == (2 if family == "wan_a14b" else 1)
    assert one["rows"]["0 policy"] > one["rows"]["0 ema"] > one["rows"]["0 ref"]
