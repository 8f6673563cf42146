"""The best mixture of data sets by runs of a few: from their folders, and what does not tell it."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from mmrl.app.config import run as configs
from mmrl.lab.arena.mixtures import best_mixture, fit, shares_of

A, B, C = ({"a": x, "b": 1 - x} for x in (0.2, 0.5, 0.9))


SIX = [(0.6, 0.2, 0.2), (0.2, 0.6, 0.2), (0.2, 0.2, 0.6), (0.4, 0.4, 0.2), (0.4, 0.2, 0.4), (0.2, 0.4, 0.4)]


def write(folder: Path, shares: tuple[float, ...], *scores: float) -> Path:
    """A run of three data sets as far as this looks at it: its config, and what it measured."""
    folder.mkdir()
    resolved = configs.load("tiny/mixture", [f"data.{i}.weight={share}" for i, share in enumerate(shares)])
    configs.save(resolved.config, folder / "config.toml")
    lines = [json.dumps({"step": i, "eval/total": score}) for i, score in enumerate(scores)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_shares_are_all_ways_to_divide():
    assert sorted(shares_of(3, 2)) == [(0, 0, 2), (0, 1, 1), (0, 2, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)]


def test_a_surface_that_is_known_is_found():
    found = fit([A, B, C], [1 - (one["a"] - 0.7) ** 2 for one in (A, B, C)])
    weights, score = found.best()
    assert weights == pytest.approx({"a": 0.7, "b": 0.3}) and score == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("mixtures", "said"),
    [
        ([A, B], "2 runs do not tell a surface of 3 numbers for 2 data sets: make 3 runs or more"),
        ([A, B, B], "3 runs do not tell .* of mixtures that differ"),
        ([A, B, {"a": 0.5, "c": 0.5}], "one run mixes a, b, and another one a, c"),
        ([], "0 runs do not tell"),
    ],
)
def test_too_little_is_refused(mixtures: list[dict[str, float]], said: str):
    with pytest.raises(ValueError, match=said):
        fit(mixtures, [0.5] * len(mixtures))


def test_runs_tell_their_mixture_and_their_last_score(tmp_path: Path):
    runs = [write(tmp_path / str(i), one, 0.0, 1 - (one[0] - 0.7) ** 2 - (one[1] - 0.2) ** 2) for i, one in enumerate(SIX)]
    told = best_mixture(runs)
    assert (
        "expected best: " in told and " 0.7, " in told and " 0.2, " in told and "eval/total 1.000; best of the 6 runs: " in told
    )
    (runs[0] / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match="has no eval/total: give it"):
        best_mixture(runs)
    with pytest.raises(ValueError, match=r"odd has eval/total = nan at last: leave the run out"):
        best_mixture([write(tmp_path / "odd", SIX[0], 0.5, float("nan"))])
    alone = write(tmp_path / "alone", SIX[0], 1.0)
    configs.save(configs.load("tiny/image").config, alone / "config.toml")
    with pytest.raises(ValueError, match=r"is no run of \[\[data\]\] tables with weights"):
        best_mixture([alone])


def test_the_verb_takes_runs_or_methods():
    import_module("mmrl.app.cli.program")
    arena = import_module("mmrl.lab.verbs").arena
    with pytest.raises(ValueError, match="give --task, --methods and --budget-seconds, or --mixtures"):
        arena(None, None, None)
    with pytest.raises(ValueError, match="--mixtures reads finished runs, and nothing else"):
        arena("grounding", None, None, mixtures="a,b")
