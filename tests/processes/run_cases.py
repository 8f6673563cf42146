"""Cases trained as `mmrl train` does it, by one or several processes; keeps what must not depend on their number."""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.commands import train as jobs
from mmrl.app.config import run as configs
from mmrl.app.run import context
from mmrl.app.run.build import Job
from mmrl.training.ahead.producer import check_lag
from mmrl.training.trainer import Trainer
from tests.processes.cases import BREADTH, CASES, ENGINES, ON_CARD, SAMPLERS, TEAMS, WRITERS
from tests.support.launcher import accelerator_of, end, keep, kinds_in, renew

Seen = dict[str, Any]


def trained(case: str, folder: Path, resume: Path | None = None) -> Seen:
    """Rewards and advantages of every step by group and sample, and the weights after the last one, whole."""
    seen: Seen = {"steps": []}
    credit, fit = Trainer.credit, jobs.fit

    def watched(self: Trainer, scores: Any, rollouts: Any, frozen: Any) -> Any:
        given = credit(self, scores, rollouts, frozen)
        pairs = zip(rollouts.group_ids.tolist(), rollouts.sample_ids.tolist(), strict=True)
        # behind a row's own actions stand as many zeros as the longest row of its process has more
        values = [torch.cat([scores.values[i], given.values[i][mask]]) for i, mask in enumerate(rollouts.action_mask)]
        seen["steps"].append({f"{group}/{sample}": x for (group, sample), x in zip(pairs, values, strict=True)})
        return given

    def fitted(job: Job, *rest: Any) -> None:
        policy: Any = job.policy
        weight: Any = next(iter(policy.parameters()))
        if hasattr(weight, "to_local"):
            seen["shard"] = weight.to_local().numel() / weight.numel()
        if hasattr(weight, "ds_tensor"):
            seen["shard"] = weight.ds_tensor.numel() / weight.ds_numel
        seen["lag"] = lag_refusal(job)
        seen["before"] = policy.weights.state_dict()["weights"]
        fit(job, *rest)
        seen["weights"] = policy.weights.state_dict()["weights"]
        policy.save(folder / "saved")

    world = os.environ.get("WORLD_SIZE", "1")
    known = WRITERS | TEAMS | BREADTH | ON_CARD | SAMPLERS | ENGINES | CASES
    name, *words = [word.replace("OUT", str(folder.parent)).replace("WORLD", world) for word in known[case]]
    Trainer.credit, jobs.fit = watched, fitted  # type: ignore[method-assign]
    try:
        jobs.run_training(configs.load(name, [*words, f"output='{resume or folder}'"]), resume)
    finally:
        Trainer.credit, jobs.fit = credit, fit  # type: ignore[method-assign]
    return seen


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


def lag_refusal(job: Job) -> str:
    """Why this run cannot be sampled ahead."""
    own = job.trainer
    try:
        check_lag(own.policy, own.collector.rewards, own.algorithm, replace(own.settings, ahead=1), own.ranks)
    except ValueError as error:
        return str(error)
    return ""


def main(kinds: str, out: str, *cases: str) -> None:
    """Each case is a name of cases.py, or NAME=RUN to go on with a run; of several kinds each has a folder.

    KIND:CASE is left out by the other kinds.
    """
    jobs.Ranks.close, jobs.announce = jobs.Ranks.wait, lambda run: None  # type: ignore[method-assign]
    for kind in kinds_in(kinds):
        accelerator, folder = accelerator_of(kind), Path(out) / kind if kind != kinds else Path(out)
        context.open_accelerator = lambda own=accelerator: own
        found: Seen = {}
        for words in cases:
            only, _, words = words.rpartition(":")
            if only not in ("", kind):
                continue
            renew(accelerator)
            case, _, run = words.partition("=")
            found[case] = trained(case, folder / case, folder / run if run else None)
        keep(accelerator, folder, found)
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
