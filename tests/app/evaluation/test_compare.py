import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mmrl.app.config import run as configs
from mmrl.app.evaluation.compare import compare, print_comparison, run_names, write_comparison
from mmrl.app.report.words import number, signed
from mmrl.app.run.evaluation_folder import READ, EvaluationDir, Subject
from mmrl.app.run.folder import RunDir
from tests.support.runs import write_run


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, RunDir]:
    folder = tmp_path_factory.mktemp("two")
    a = write_run(folder / "a", steps=40, num_prompts=8)
    b = write_run(folder / "b", steps=20, num_prompts=6)
    a.config_file.write_text('output = "here"\n' + a.config_file.read_text())
    b.config_file.write_text(b.config_file.read_text().replace('preset = "grpo"', 'preset = "dapo"\ngroup_size = 4'))
    return a, b


def test_settings_that_differ_and_only_those(two: tuple[RunDir, RunDir]) -> None:
    a, b = two
    assert compare(a.path, b.path).settings == [
        ("steps", "40", "20"),
        ("algorithm.preset", "grpo", "dapo"),
        ("algorithm.group_size", "(not set)", "4"),
    ]


def test_held_out_figures_are_those_of_shared_prompts(two: tuple[RunDir, RunDir]) -> None:
    a, b = two
    result = compare(a.path, b.path)
    assert result.num_shared == 6 and "2 held-out prompts were evaluated by one run only and are left out." in result.notices
    iou = next(row for row in result.held_out if row.name == "Mean IoU")
    # Both draw the same guesses before training, so over the same six prompts they start at the same figure.
    assert iou.first[0] == iou.first[1] and iou.best[0] >= iou.last[0]
    assert {change.num_prompts for change in result.differences} == {6}


def test_training_metrics_first_last_best_and_difference(tmp_path: Path) -> None:
    runs = [RunDir.create(tmp_path / name) for name in "ab"]
    for run, values in zip(runs, ([1.0, 5.0, 2.0], [math.nan, 3.0, 4.0]), strict=True):
        for step, value in enumerate(values, start=1):
            run.append(step, {"reward/total": value, "policy/kl": value})
    total, kl = compare(runs[0].path, runs[1].path).training
    assert (total.first, total.last, total.best, total.difference) == ((1.0, 3.0), (2.0, 4.0), (5.0, 4.0), 2.0)
    assert kl.last == (2.0, 4.0) and math.isnan(kl.best[0])


def test_runs_without_a_common_prompt_say_so(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", steps=1, kind="text", num_prompts=2)
    b = write_run(tmp_path / "b", steps=1, kind="boxes", num_prompts=2)
    result = compare(a.path, b.path)
    assert result.held_out == [] and "The runs share no held-out prompt, so their evaluations are not compared." in result.notices


def printed(two: tuple[RunDir, RunDir], width: int, terminal: bool) -> list[str]:
    out = io.StringIO()
    console = Console(width=width, file=out, force_terminal=terminal, color_system=None, highlight=False, legacy_windows=False)
    print_comparison(compare(two[0].path, two[1].path), console)
    return out.getvalue().splitlines()


def test_it_prints_and_writes_one_file_with_both_curves(two: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    text = "\n".join(printed(two, 200, True))
    assert "algorithm.preset" in text and "Held out: the 6 prompts that both evaluated" in text and "best b" in text
    result = compare(two[0].path, two[1].path)
    page = write_comparison(result, tmp_path / "compare.html").read_text()
    assert "http" not in page.replace("http-equiv", "") and page.count("<polyline") >= 2 * len(result.held_out)
    assert "higher : lower" in page


def test_at_eighty_columns_no_number_is_broken(two: tuple[RunDir, RunDir]) -> None:
    lines = printed(two, 80, True)
    assert max(map(len, lines)) <= 80
    result = compare(two[0].path, two[1].path)
    for one in result.differences:
        (line,) = [line for line in lines if line.startswith(f"{one.name} ")]
        ends = [number(one.before), number(one.after), signed(one.difference)]
        assert line.removeprefix(one.name).split()[:3] == ends and f"{one.higher}:{one.lower}" in line
    for row in result.training:
        assert any(line.split()[-3:] == [*map(number, row.last), signed(row.difference)] for line in lines), row.name


def test_into_a_pipe_goes_tsv_with_every_digit(two: tuple[RunDir, RunDir]) -> None:
    lines = [line.split("\t") for line in printed(two, 80, False)]
    result = compare(two[0].path, two[1].path)
    assert ["names", *result.names] in lines and ["setting", "steps", "40", "20"] in lines
    (head,) = [line for line in lines if line[:2] == ["table", "figure"]]
    found = {line[1]: dict(zip(head, line, strict=True)) for line in lines if line[0] == "held_out"}
    iou = next(one for one in result.differences if one.name == "Mean IoU")
    assert float(found["Mean IoU"]["a"]) == iou.before and float(found["Mean IoU"]["difference"]) == iou.difference
    assert (found["Mean IoU"]["higher"], found["Mean IoU"]["prompts"]) == (str(iou.higher), "6") and found["Mean IoU"][
        "low"
    ] == ""


def test_two_evaluations_are_compared_prompt_by_prompt(tmp_path: Path) -> None:
    """Their folders, or the files in them; samples of a further way to answer are compared with those of the same way."""
    config = configs.load("tiny/image").config
    for name, right in (("a", range(4)), ("b", range(3, 14))):
        place = EvaluationDir(tmp_path / name / "eval")
        place.begin(Subject(name, "same", 14), config)
        lines = [prediction(i, float(i in right)) for i in range(14)]
        place.add("", lines, 14)
        place.add("other", [prediction(i, float(i in right) / 2) | {"way": "other"} for i in range(12)], 12)
        place.add(f"of {name}", [prediction(0, 5.0) | {"way": f"of {name}"}], 1)
    result = compare(tmp_path / "a" / "eval", tmp_path / "b" / "eval")
    (change,) = result.differences
    assert (change.before, change.after, change.higher, change.lower) == (4 / 14, 11 / 14, 10, 3)
    # P(at most 3 of 13) = (1 + 13 + 78 + 286) / 8192, twice
    assert change.sign_p == pytest.approx(2 * 378 / 8192)
    assert result.names == ("a/eval", "b/eval") and result.settings == [] and result.charts == []
    assert any("a/eval: The evaluation is not finished" in notice for notice in result.notices)
    (other,) = result.also
    (change,) = other.differences
    assert (other.name, other.num_shared, change.before, change.after) == ("other", 12, 4 / 2 / 12, 9 / 2 / 12)
    assert [row.last for row in other.held_out] == [(change.before, change.after)]
    assert "Only a/eval has [[evaluation.also]] of a: its answers are left out." in result.notices
    files = compare(*(tmp_path / name / "eval" / "predictions.jsonl" for name in "ab"))
    assert files.differences == result.differences
    assert files.also == result.also
    assert "Held out, answered as other" in write_comparison(result, tmp_path / "c.html").read_text()
    assert "Curves" not in write_comparison(result, tmp_path / "c.html").read_text()


def with_way(run: RunDir, num_prompts: int, level: float) -> None:
    """Samples of [[evaluation.also]] greedy before and after training, of which the later ones are the ones compared."""
    for step, shift in ((0, -0.2), (20, 0.0)):
        lines = [prediction(i, min(1.0, level + shift + i / 100)) for i in range(num_prompts)]
        run.samples_file("also.greedy", step).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_further_ways_of_runs_have_a_table_each(tmp_path: Path) -> None:
    a, b = (write_run(tmp_path / name, steps=20, num_prompts=6) for name in "ab")
    with_way(a, 12, 0.3)
    with_way(b, 11, 0.5)
    result = compare(a.path, b.path)
    (greedy,) = result.also
    (change,) = greedy.differences
    assert greedy.num_shared == 11 and (change.before, change.after) == pytest.approx((0.35, 0.55)) and change.has_interval
    (row,) = greedy.held_out
    assert row.first == pytest.approx((0.15, 0.35)) and row.last == pytest.approx((0.35, 0.55))
    lines = printed((a, b), 80, True)
    assert max(map(len, lines)) <= 80 and any(line.startswith("Held out, answered as greedy: the 11 prompts") for line in lines)
    table = [line.split("\t") for line in printed((a, b), 80, False)]
    head = next(line for line in table if line[:2] == ["table", "way"])
    (piped,) = [dict(zip(head, line, strict=True)) for line in table if line[0] == "also"]
    assert (piped["way"], piped["figure"], float(piped["b"]), piped["higher"]) == ("greedy", change.name, change.after, "11")
    page = write_comparison(result, tmp_path / "c.html").read_text()
    assert "Held out, answered as greedy" in page and "The 11 prompts that both answered" in page


def prediction(i: int, value: float) -> dict[str, Any]:
    line = {
        "prompt": f"p{i}",
        "text": "?",
        "completion": "x",
        "total": value,
        "scores": {"r": value},
        "way": "",
        "box_space": None,
    }
    return line | {"answer_boxes": [], "media": [], "media_sizes": [], "parts": {}, "columns": {}}


def test_what_is_no_evaluation_is_named(tmp_path: Path) -> None:
    (tmp_path / "predictions.jsonl").write_text('{"prompt": "p"}\n')
    with pytest.raises(ValueError, match=r"predictions\.jsonl, line 1 has no 'text': give a predictions\.jsonl that"):
        compare(tmp_path, tmp_path)
    for name in READ:
        lines = [prediction(0, 0.5), {key: value for key, value in prediction(1, 0.5).items() if key != name}]
        (tmp_path / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(ValueError, match=rf"line 2 has no '{name}'"):
            compare(tmp_path, tmp_path)
    (tmp_path / "predictions.jsonl").write_text("")
    with pytest.raises(ValueError, match="has no samples yet"):
        compare(tmp_path / "predictions.jsonl", tmp_path)


def test_names_take_as_many_folders_as_tell_them_apart() -> None:
    a, b = Path("/runs/one/evaluations/step-3"), Path("/runs/two/evaluations/step-3")
    assert run_names(a, b) == ("one/evaluations/step-3", "two/evaluations/step-3")
    assert run_names(a, a) == ("step-3", "step-3")


def test_equal_folder_names_are_told_apart(tmp_path: Path) -> None:
    for parent in ("x", "y"):
        RunDir.create(tmp_path / parent / "run").append(1, {"loss": 1.0})
    assert compare(tmp_path / "x" / "run", tmp_path / "y" / "run").names == ("x/run", "y/run")


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        compare(tmp_path / "nothing-here", tmp_path)


def test_on_a_phone_every_number_says_what_it_is(two: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    page = write_comparison(compare(two[0].path, two[1].path), tmp_path / "c.html").read_text()
    for row in re.findall(r"<tr><td>[^<]*</td>(<td class=\"n\".*?)</tr>", page, re.DOTALL):
        assert row.count('<td class="n" data-word=') == row.count("<td") >= 7
    assert ".metrics td[data-word]::before { content: attr(data-word)" in page
