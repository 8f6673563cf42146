"""What runs of one or several processes left, to be compared."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.commands import train as jobs
from tests.processes.run_cases import Seen, trained


@dataclass(frozen=True)
class Ran:
    """What every process saw of each case, and where the runs are."""

    folder: Path
    ranks: list[dict[str, Seen]]

    def rows(self, case: str) -> list[dict[str, torch.Tensor]]:
        """Of every step: group and sample -> its rewards and advantages, of all processes."""
        steps = zip(*(rank[case]["steps"] for rank in self.ranks), strict=True)
        return [{name: x for part in parts for name, x in part.items()} for parts in steps]

    def weights(self, case: str, when: str = "weights") -> dict[str, torch.Tensor]:
        return self.ranks[0][case][when]

    def metrics(self, case: str) -> list[dict[str, Any]]:
        """Without what a clock said."""
        lines = (self.folder / case / "metrics.jsonl").read_text().splitlines()
        return [{name: float(x) for name, x in json.loads(line).items() if not name.startswith("time/")} for line in lines]


def run_alone(folder: Path, cases: Iterable[str]) -> Ran:
    """The cases, trained by this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "announce", lambda run: None)
        return Ran(folder, [{case: trained(case, folder / case) for case in cases}])


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)
