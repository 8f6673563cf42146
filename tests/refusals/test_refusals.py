"""Every row of tests/refusals/*.toml is refused in its words, before a model is loaded."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from mmrl.app.cluster.placement import place
from mmrl.app.commands.plan import draw_up
from mmrl.app.commands.train import run_job
from mmrl.app.config import run as configs
from mmrl.app.config.plug_ins import read_plug_ins
from mmrl.app.config.run import Resolved
from mmrl.app.config.stages import stages_of
from mmrl.app.modality.base import PolicyNeeds
from mmrl.app.modality.registry import modality_of
from mmrl.app.plugins.resolve import shipped_folder
from mmrl.app.run import build as building
from mmrl.app.run.beforehand import check_axes
from mmrl.app.run.build import build, with_local_model
from mmrl.policies.flow import loading
from tests.refusals.table import TABLES, Refusal, refusals

REFUSE: dict[str, Callable[[Resolved], object]] = {
    "load": lambda resolved: resolved,
    "plug_ins": read_plug_ins,
    "stages": stages_of,
    "axes": lambda resolved: check_axes(resolved.config),
    "plan": draw_up,
    "build": build,
    "place": lambda resolved: place(resolved, [resolved.name], ["127.0.0.1"], shipped_folder("configs"), 0),
    "train": run_job,
    "policy": lambda resolved: modality_of(resolved.config.policy).build(
        with_local_model(resolved.config).policy, PolicyNeeds(frozenset())
    ),
}
"""Who refuses -> what is asked of the config once it is read."""


class LoadedError(OSError):
    """A model was loaded, too late for a refusal; what wraps errors of loading lets an OSError pass."""


@pytest.fixture(autouse=True)
def no_weights(empty_desk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LoadedError("a model was loaded")

    monkeypatch.setattr(building, "policy_of_run", refuse)
    monkeypatch.setattr(loading, "load_pipeline", refuse)
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", refuse)


def faults(rows: Iterable[Refusal], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is wrong with these rows, each in a working directory of its own."""
    found: list[str | None] = []
    for number, row in enumerate(rows):
        (folder / str(number)).mkdir()
        monkeypatch.chdir(folder / str(number))
        found.append(row.fault(lambda config, words, by=row.by: REFUSE[by](configs.load(config, words))))
    return [one for one in found if one is not None]


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_all_rows_are_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = faults(refusals(file), tmp_path, monkeypatch)
    assert not found, "\n".join(found)


def test_what_is_taken_or_refused_otherwise_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    taken = Refusal("load", "tiny/image", ("steps=3",), "")
    other = Refusal("load", "tiny/image", ("steps=-1",), "did you mean")
    error = Refusal("load", "tiny/image", ("steps=-1",), "", errors=("FileNotFoundError",))
    late = Refusal("build", "tiny/image", (), "")
    right = Refusal("load", "tiny/image", ("steps=-1",), "steps is -1")
    found = faults([taken, other, right, error, late], tmp_path, monkeypatch)
    assert [one.splitlines()[0] for one in found] == [
        *("load tiny/image steps=3", "load tiny/image steps=-1", "load tiny/image steps=-1", "build tiny/image ")
    ]
    assert "was taken" in found[0] and "steps is -1" in found[1] and "ValueError" in found[2] and "LoadedError" in found[3]
