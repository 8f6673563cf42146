"""A step of each kind of model on another device: the same numbers as on the CPU, and no more waiting than is known of."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes.cases import ON_CARD
from tests.processes.ran import distance
from tests.support.each import for_each
from tests.support.launcher import forked

pytestmark = pytest.mark.slow
TABLE = Path(__file__).with_name("looks.toml")
CASES = [f"{case}=image" if case == "resumed" else case for case in ON_CARD]
Seen = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """What one process leaves of all cases, on either device."""
    out = tmp_path_factory.mktemp("card")
    done = forked("tests.processes.run_on_card", out, *CASES, processes=1, MMRL_CACHE=str(cache))
    assert done.returncode == 0, done.stderr[-4000:]
    return out


@for_each("case", ON_CARD)
def test_a_step_gives_the_same_numbers(folder: Path, case: str):
    ours, theirs = (torch.load(folder / device / f"{case}.pt", weights_only=True) for device in ("cpu", "card"))
    assert len(ours["steps"]) == len(theirs["steps"]) > 0
    for a, b in zip(ours["steps"], theirs["steps"], strict=True):
        torch.testing.assert_close(b, a, atol=0, rtol=0, equal_nan=True)
    moved, gap = distance(theirs["weights"], theirs["before"]), distance(theirs["weights"], ours["weights"])
    assert moved > 1e-5
    assert gap < min(1e-4, moved / 10), f"weights moved by {moved:.1e} and differ by {gap:.1e}"


@for_each("case", ON_CARD)
def test_the_host_waits_no_more_than_it_did(folder: Path, case: str):
    known, found = (tomllib.loads(path.read_text())[case] for path in (TABLE, folder / "looks.toml"))
    more = [
        f"{place} {known[kind].get(place, 0)} -> {n}"
        for kind in found
        for place, n in found[kind].items()
        if n > known[kind].get(place, 0)
    ]
    gone = [place for kind in known for place in known[kind] if place not in found[kind]]
    assert not more, f"the host waits for the card more often: {'; '.join(more)}"
    assert not gone, f"the host waits no more at {'; '.join(gone)}: take {folder / 'looks.toml'} as {TABLE.name}"
