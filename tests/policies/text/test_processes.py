"""Two processes, one of them without pictures and stopping at another step, equal one: replicated (DDP) and sharded (FSDP2).

They read packed rows; Qwen3-VL with gradient checkpointing, LLaVA-OneVision without.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policies.text.run_families import all_trained
from tests.support import family_runs
from tests.support.family_runs import Joined
from tests.support.launcher import KINDS

pytestmark = pytest.mark.slow
FAMILIES, MORE = ("qwen3_vl",), ("llava_onevision",)
"""Here and in `make evidence`."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def joined(tiny: Callable[[str], str], folder: Path) -> Callable[[tuple[str, ...]], Joined]:
    """Readings of these families, which are trained together."""
    return family_runs.joined("tests.policies.text.run_families", all_trained, tiny, folder)


def saved(folder: Path, model: str) -> Path:
    return folder / Path(model).name / "model.safetensors"


@pytest.mark.parametrize(
    ("families", "family"),
    [*((FAMILIES, one) for one in FAMILIES), *(pytest.param(MORE, one, marks=pytest.mark.evidence) for one in MORE)],
)
def test_two_processes_equal_one(tiny: Callable[[str], str], joined: Any, folder: Path, families: tuple[str, ...], family: str):
    of = joined(families)
    one = of("one", family)
    for kind in KINDS:
        torch.testing.assert_close(of(kind, family), one, atol=2e-5, rtol=1e-5)
        assert saved(folder / kind, tiny(family)).stat().st_size == saved(folder / "one", tiny(family)).stat().st_size
    assert one["rows"]["0 policy"] > one["rows"]["0 ema"] > one["rows"]["0 ref"]


def test_processes_that_keep_features_of_pictures_equal_one(joined: Any, folder: Path):
    """One of them sees no picture: sharded, it passes the vision part as often as the other; replicated, it never does."""
    of = joined(FAMILIES)
    one = of("one", "adapter")
    assert not one["state"]["shadows"].pop("ref"), "one process keeps no copy of a reference that is the bare model"
    for kind in KINDS:
        found = of(kind, "adapter")
        reference = found["state"]["shadows"].pop("ref")
        assert not any(bool(weight.any()) for name, weight in reference.items() if "lora_B" in name)
        torch.testing.assert_close(found, one, atol=2e-5, rtol=1e-5)
        sizes = [(folder / name / "adapter" / "adapter_model.safetensors").stat().st_size for name in (kind, "one")]
        assert sizes[0] == sizes[1]
    assert one["rows"]["0 policy"] != one["rows"]["0 ref"]
    # the reference is the teacher's model, and both processes ask both
    assert one["rows"]["0 from teacher"] > 1e-4
    torch.testing.assert_close(one["rows"]["0 from teacher"], one["rows"]["0 from ref"], atol=1e-5, rtol=1e-3)
    assert 1e-6 < one["rows"]["0 from ema"] < one["rows"]["0 from ref"]
