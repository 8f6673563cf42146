"""Two processes, one of them without pictures and stopping at another step, equal one: replicated (DDP) and sharded (FSDP2)."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.types import Reading, Rollouts, Target
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.settings import TextTeacher
from tests.support import family_runs
from tests.support.family_runs import Joined, run, trained
from tests.support.launcher import KINDS, Kind, renew
from tests.support.text_policies import make, mixed, text_trace


def all_trained(kind: Kind, accelerator: Any, out: Path, models: Sequence[str]) -> dict[str, Any]:
    """What one process reads of every model, and of the first one with an adapter, beside which vision looks once at a prompt."""
    found = dict[str, Any]()
    for name, model, lora in [*((model, model, None) for model in models), ("adapter", models[0], LoraSettings(rank=2))]:
        renew(accelerator)
        torch.manual_seed(0)
        sampling = Sampling(max_new_tokens=12, stop=tuple("eaist"))
        checkpointing = "qwen3_vl" in Path(model).name
        teachers = () if lora is None else (TextTeacher("first", model=models[0], dtype="float32"),)
        policy = make(
            model, {"ref", "ema"}, sampling=sampling, lora=lora, gradient_checkpointing=checkpointing, teachers=teachers
        )
        # the third has no picture
        found[name], rollouts = trained(policy, kind, accelerator, mixed()[:3], out / Path(name).name)
        assert text_trace(rollouts.trace).packed
        assert lora is None or policy.net.features is not None
        if teachers:
            found[name]["rows"] |= compared(policy, accelerator, rollouts)
    return found


def compared(policy: TextPolicy, accelerator: Any, rollouts: Rollouts) -> dict[str, torch.Tensor]:
    """How far every group is from its teacher, the reference and the average; a process may have none of the pictures."""
    rows = dict[str, torch.Tensor]()
    for model in ("teacher", "ref", "ema"):
        reading = Reading("divergence", target=Target(model, beta=0.5))
        values = policy.read(rollouts.trace, [reading], rollouts.action_mask)[reading]
        accelerator.backward(values.sum())
        rows |= {f"{group.id} from {model}": values.detach()[rollouts.group_ids == group.id].sum() for group in rollouts.groups}
    return rows


pytestmark = pytest.mark.slow
FAMILIES, MORE = ("qwen3_vl",), ("llava_onevision",)
"""Here and in `make evidence`."""


@pytest.fixture(scope="module")
def joined(tiny: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Joined]]:
    """What these families save and their readings; they are trained together."""
    return family_runs.joined("tests.policies.text.test_processes", all_trained, tiny, tmp_path_factory.mktemp("processes"))


def saved(folder: Path, model: str) -> Path:
    return folder / Path(model).name / "model.safetensors"


@pytest.mark.parametrize(
    ("families", "family"),
    [*((FAMILIES, one) for one in FAMILIES), *(pytest.param(MORE, one, marks=pytest.mark.evidence) for one in MORE)],
)
def test_two_processes_equal_one(tiny: Callable[[str], str], joined: Any, families: tuple[str, ...], family: str):
    folder, of = joined(families)
    one = of("one", family)
    for kind in KINDS:
        torch.testing.assert_close(of(kind, family), one, atol=2e-5, rtol=1e-5)
        assert saved(folder / kind, tiny(family)).stat().st_size == saved(folder / "one", tiny(family)).stat().st_size
    assert one["rows"]["0 policy"] > one["rows"]["0 ema"] > one["rows"]["0 ref"]


def test_processes_that_keep_features_of_pictures_equal_one(joined: Any):
    """One of them sees no picture: sharded, it passes the vision part as often as the other; replicated, it never does."""
    folder, of = joined(FAMILIES)
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


if __name__ == "__main__":
    run(all_trained, *sys.argv[1:])
