"""Log-ratios of runs whose engine kept caches from before an update, and of runs where rounding alone differs."""

import math
import random

import pytest

from mmrl.app.cli import program as cli
from mmrl.app.commands.check import check
from mmrl.app.report.page import write_report
from mmrl.app.run.folder import RunDir
from mmrl.training.watch.health import leaps, stale_sentence


def usual(size: float, count: int, seed: int = 0) -> list[float]:
    """What rounding makes: about `size`, twice as much at the end as at the beginning."""
    draw = random.Random(seed)
    return [size * (1 + i / count) * draw.uniform(0.5, 2.0) for i in range(count)]


def with_leaps(values: list[float], **at: float) -> list[float]:
    found = list(values)
    for place, value in at.items():
        found[int(place[1:])] = value
    return found


@pytest.mark.parametrize("size", [3e-7, 1e-5, 8e-3])
def test_rounding_alone_is_never_called_stale(size: float):
    for seed in range(20):
        assert leaps(usual(size, 200, seed)) == []


def test_a_stale_cache_is_seen_whichever_it_was():
    assert leaps(with_leaps(usual(3e-7, 50), _1=0.145, _2=0.0088, _30=0.02)) == [1, 2, 30]
    assert leaps(with_leaps(usual(8e-3, 50), _7=0.24)) == [7]
    assert leaps([3e-7] + [0.1] * 30) == list(range(1, 31)), "every step after the first"


def test_steps_without_a_number_are_passed_over():
    assert leaps([]) == leaps([math.nan]) == leaps([math.nan, 0.1, 0.1]) == []
    assert leaps([math.nan, 3e-7, math.nan, 0.1]) == [3]


def run_of(path, values: list[float]) -> RunDir:
    run = RunDir.create(path)
    run.config_file.write_text("steps = 8\n")
    for step, value in enumerate(values, start=1):
        run.append(step, {"reward/total": 0.5, "rollout/log_ratio": value})
    return run


def test_the_report_and_the_check_of_a_finished_run_say_where(tmp_path, capsys):
    bad = run_of(tmp_path / "bad", with_leaps(usual(3e-7, 8), _3=0.145, _5=0.0088))
    fine = run_of(tmp_path / "fine", usual(3e-7, 8))
    words = "at 2 of 8 steps (4, 6) the sampler&#39;s log-probabilities are up to 0.145 nats per action off"
    assert words in write_report(bad.path).read_text()
    assert "Stale samples" not in write_report(fine.path).read_text()
    assert not check(str(bad.path)) and check(str(fine.path))
    said = " ".join(capsys.readouterr().out.split())
    assert "FAIL at 2 of 8 steps (4, 6)" in said and "resume from a checkpoint before it" in said
    assert "ok its log-probabilities never leap" in said
    with pytest.raises(cli.typer.Exit) as left:
        cli.check(str(bad.path))
    assert left.value.exit_code == 2
    assert stale_sentence([1.0, 2.0], [1e-7, 1e-7]) == ""
    with pytest.raises(FileNotFoundError, match="give the output folder of a run"):
        check(str(tmp_path))
