import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from mmrl.app.commands.compare import compare, print_comparison, write_comparison
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


def test_it_prints_and_writes_one_file_with_both_curves(two: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    a, b = two
    result = compare(a.path, b.path)
    console = Console(width=200, record=True, file=(tmp_path / "out.txt").open("w"))
    print_comparison(result, console)
    text = console.export_text()
    assert "algorithm.preset" in text and "Held out: the 6 prompts that both evaluated" in text
    page = write_comparison(result, tmp_path / "compare.html").read_text()
    assert "http" not in page.replace("http-equiv", "") and page.count("<polyline") >= 2 * len(result.held_out)


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
