import math
import os
from pathlib import Path

import pytest

from mmrl.app.watch.page import MOST_NAMES, MOST_POINTS, MetricTail, Tail


def test_a_half_written_line_is_left_until_it_is_whole(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    tail = Tail(file)
    assert tail.fresh() == []
    file.write_text('{"step": 1}\n{"step": 2, "re')
    assert tail.fresh() == [{"step": 1}]
    assert tail.fresh() == []
    with file.open("a") as stream:
        stream.write('ward": 0.5}\n')
    assert tail.fresh() == [{"step": 2, "reward": 0.5}] and tail.num_bad == 0


def test_what_was_read_is_not_read_again(tmp_path: Path):
    """Bytes in front of the offset may change unseen."""
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n')
    tail = Tail(file)
    tail.fresh()
    with file.open("r+") as stream:
        stream.write("x")
        stream.seek(0, os.SEEK_END)
        stream.write('{"step": 2}\n')
    assert tail.fresh() == [{"step": 2}] and tail.num_bad == 0


@pytest.mark.parametrize("text", ["no json", "[1]", "{}", '{"step": "x"}', '{"step": NaN}', "[" * 100_000, "\x00\xff"])
def test_lines_that_are_none_are_counted_and_left_out(tmp_path: Path, text: str):
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 1}}\n{text}\n{{"step": 2}}\n', encoding="latin-1")
    tail = Tail(file)
    assert [line["step"] for line in tail.fresh()] == [1, 2] and tail.num_bad == 1


def test_a_file_that_was_cut_or_written_anew_is_another(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n')
    tail = Tail(file)
    assert not tail.is_another()
    tail.fresh()
    assert not tail.is_another()
    os.truncate(file, 12)
    assert tail.is_another()
    tail = Tail(file)
    tail.fresh()
    fresh = tmp_path / "metrics.jsonl.new"
    fresh.write_text('{"step": 1}\n' * 3)
    os.replace(fresh, file)
    assert tail.is_another()
    file.unlink()
    assert tail.is_another()


def test_a_long_series_is_means_of_neighbouring_lines():
    series, steps = MetricTail(), 3 * MOST_POINTS
    for step in range(1, steps + 1):
        series.add({"step": step, "a": float(step), **({"b": 1.0} if step == 2 else {})})
    # 120 points of 1, then 61 of 2, then 61 of 4: two halvings
    assert series.width == 4 and len(series.lines()) == steps // 4
    first, second, *_, last = series.lines()
    assert first == {"step": 4, "a": (1 + 2 + 3 + 4) / 4, "b": 1.0} and second == {"step": 8, "a": 6.5}
    assert last["step"] == steps
    series.add({"step": steps + 1, "a": 7.0})
    assert series.lines()[-1] == {"step": steps + 1, "a": 7.0}


def test_what_is_not_finite_leaves_the_means():
    series = MetricTail()
    for step, value in enumerate(["NaN", 1.0, "Infinity", [3], None, {}, "1e400"], start=1):
        series.add({"step": step, "a": value})
    found = [line["a"] for line in series.lines()]
    assert found[1] == 1.0 and all(math.isnan(value) for i, value in enumerate(found) if i != 1)


def test_names_are_bounded():
    series = MetricTail()
    for step in range(3):
        series.add({"step": step, **{f"{step}/{i}": 1.0 for i in range(MOST_NAMES)}})
    assert len({name for line in series.lines() for name in line} - {"step"}) == MOST_NAMES
