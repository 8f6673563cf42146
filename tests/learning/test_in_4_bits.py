"""Adapters beside weights in 4 bits learn as adapters beside the weights as they are: eight paired seeds of two demos.

`MMRL_PAIRS=pairs.jsonl` names the file of runs, so that a test which was stopped goes on where it was.
"""

import json
import os
import statistics
from pathlib import Path

import pytest

from benchmarks import learn_in_4_bits
from benchmarks.learn_in_4_bits import SEEDS, SIDES, TASKS, Outcome, collect, differences, interval, read, table

WORSE = 0.05
"""How much worse 4 bits may be on held-out prompts, at the lower end of the interval of 95 %."""


@pytest.mark.evidence
@pytest.mark.parametrize("task", TASKS)
def test_adapters_beside_4_bits_learn_as_well(task: str, tmp_path: Path):
    kept = Path(os.environ.get("MMRL_PAIRS", tmp_path / "pairs.jsonl"))
    found = {run: numbers for run, numbers in collect(kept, [task], SEEDS).items() if run[0] == task}
    assert interval(differences(found, task))[0] > -WORSE, table(found, task)
    assert statistics.mean(after - before for before, after in found.values()) > 2 * WORSE, table(found, task)


@pytest.mark.evidence
@pytest.mark.parametrize("task", TASKS)
def test_a_short_pair_is_made(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    found = collect(tmp_path / "pairs.jsonl", [task], [1], short=True)
    assert set(found) == {(task, 1, side) for side in SIDES} and found == read(tmp_path / "pairs.jsonl")
    float_side, small = (found[task, 1, side] for side in SIDES)
    assert all(0 <= number <= 1 for number in (*float_side, *small)) and f"| seed 1 | {float_side[0]:.3f}" in table(found, task)


def test_the_interval_of_eight_differences():
    """Mean .01, deviation .02: half the width is 2.365 x .02 / sqrt(8) = .016723."""
    step = 0.02 * (7 / 8) ** 0.5
    found = interval([0.01 + step, 0.01 - step] * 4)
    assert found == pytest.approx((0.01 - 0.016723, 0.01 + 0.016723), abs=1e-6)


def test_runs_that_were_written_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = list[tuple[str, int, str]]()

    def outcome(task: str, folder: Path, seed: int, side: str, short: bool) -> Outcome:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append((task, seed, side))
        return 0.25, 0.5 + 0.125 * (side == "nf4") * seed

    monkeypatch.setattr(learn_in_4_bits, "outcome", outcome)
    file = tmp_path / "pairs.jsonl"
    with pytest.raises(KeyboardInterrupt):
        collect(file, ["t2i"], [0, 1])
    assert [json.loads(line)["side"] for line in file.read_text().splitlines()] == ["float", "nf4", "float"]
    made.clear()
    found = collect(file, ["t2i"], [0, 1])
    assert made == [("t2i", 1, "nf4")] and set(found) == {("t2i", seed, side) for seed in (0, 1) for side in SIDES}
    assert differences(found, "t2i") == [0.0, 0.125]
    assert "| seed 1 | 0.250 -> 0.500 | 0.250 -> 0.625 | +0.125 |" in table(found, "t2i")
