"""`mmrl eval` and `mmrl compare`: every sample in a file, intervals on every number, tables by kind, and two side by side."""

import io
import json
import math
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw
from rich.console import Console

from mmrl.app.commands.options import EvalArguments
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.evaluation import command
from mmrl.app.evaluation.command import ProgressLine, run_evaluation
from mmrl.app.evaluation.compare import Comparison, compare, print_comparison, run_names, write_comparison
from mmrl.app.evaluation.tables import COLUMNS, number_table, numbers
from mmrl.app.report.words import number, signed
from mmrl.app.run import build as building
from mmrl.app.run.evaluation_folder import READ, EvaluationDir, Subject
from mmrl.app.run.folder import RunDir
from mmrl.app.run.sample_files import digest
from mmrl.core.types import Sample
from tests.support import forked as forks
from tests.support.flow_runs import Make
from tests.support.launcher import forked
from tests.support.refused import refused
from tests.support.runs import write_run

WORDS = ["evaluation.batch_size=4", "policy.sampling.max_new_tokens=6", "evaluation.by=['split', 'level']"]
SIDES = (20, 60, 120)
"""Of the squares: small, medium and large boxes."""
KILL = """
import os, signal
from mmrl.app.run.evaluation_folder import EvaluationDir
from mmrl.app.commands.options import EvalArguments
from mmrl.app.evaluation.command import run_evaluation
note, calls = EvaluationDir._note, [0]
def dying(*arguments):
    calls[0] += 1
    if calls[0] == 3:  # the second chunk is written, and not yet noted
        os.kill(os.getpid(), signal.SIGKILL)
    note(*arguments)
EvaluationDir._note = dying
run_evaluation(EvalArguments({words!r}, output={output!r}, task="grounding", model="tiny:qwen3_vl", data={data!r}))
"""


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures of a square each, of three sizes and two splits."""
    folder = tmp_path_factory.mktemp("boxes")
    rows: list[str] = []
    for i in range(12):
        side = SIDES[i % 3]
        picture = Image.new("RGB", (160, 128), (20 * i, 90, 140))
        ImageDraw.Draw(picture).rectangle((4, 4, 4 + side, 4 + side), fill="white")
        picture.save(folder / f"{i}.png")
        row = {"image": f"{i}.png", "question": "Where is the square?", "box": [4, 4, 4 + side, 4 + side], "id": f"p{i}"}
        rows.append(json.dumps(row | {"split": "testA" if i < 6 else "testB", "level": i % 2}))
    (folder / "boxes.jsonl").write_text("\n".join(rows) + "\n")
    return folder / "boxes.jsonl"


def asked(boxes: Path, output: Path | None = None, *words: str) -> EvalArguments:
    return EvalArguments([*WORDS, *words], output=output, task="grounding", model="tiny:qwen3_vl", data=str(boxes))


@pytest.fixture(scope="module")
def whole(boxes: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> EvaluationDir:
    """An evaluation that nobody disturbed."""
    place = EvaluationDir(tmp_path_factory.mktemp("whole") / "eval")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_CACHE", str(cache))
        run_evaluation(asked(boxes, place.path))
    return place


def test_a_line_per_sample_holds_prompt_truth_answer_what_was_read_and_every_reward(whole: EvaluationDir):
    lines = whole.lines()
    assert [line["prompt"] for line in lines] == [f"p{i}" for i in range(12)]
    for i, line in enumerate(lines):
        side = SIDES[i % 3]
        assert line["answer_boxes"] == [[4, 4, 4 + side, 4 + side, None]] and line["columns"]["level"] == i % 2
        assert isinstance(line["completion"], str) and line["tokens"] <= 6 and isinstance(line["parsed"], list)
        assert set(line["scores"]) == {"iou"} and {"iou/hit", "iou/acc50", "iou/unparsed"} <= set(line["parts"])
        assert (whole.path / line["media"][0]["file"]).is_file()


def test_the_summary_has_every_number_with_an_interval_or_the_reason_for_none(whole: EvaluationDir):
    summary = json.loads(whole.summary_file.read_text())
    found = summary["numbers"]
    assert summary["prompts"] == 12 and all(list(one) == list(COLUMNS) for one in found)
    over_all = {one["figure"]: one for one in found if not one["column"]}
    assert {"Mean IoU", "Hits", "Acc@0.5", "Reward", "iou/hit"} <= set(over_all)
    assert over_all["Acc@0.5"]["interval"] == "wilson" and over_all["Acc@0.5"]["low"] is not None
    assert all(one["unparsed"] is not None for one in over_all.values())
    splits = [one for one in found if one["column"] == "split"]
    assert {one["kind"] for one in splits} == {"testA", "testB"}
    assert all(one["interval"] == "none: 6 of 10 prompts" and one["low"] is None for one in splits)
    sizes = list(dict.fromkeys(one["kind"] for one in found if one["column"] == "box size"))
    assert sizes == ["small", "medium", "large"]
    assert {one["figure"] for one in found if one["column"] == "box size"} == {"Mean IoU", "Hits", "Acc@0.5"}
    assert {"eval/total", "eval/iou", "eval/iou/unparsed", "eval/by/split/testA/total"} <= set(summary["metrics"])


def test_a_killed_evaluation_goes_on_and_ends_as_one_that_nobody_disturbed(
    boxes: Path, whole: EvaluationDir, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The kill comes between the lines of a chunk and the note of it, so that these lines are thrown away."""
    place = EvaluationDir(tmp_path / "eval")
    program = KILL.format(words=WORDS, output=place.path, data=str(boxes)).replace("PosixPath(", "__import__('pathlib').Path(")
    done = forks.run("-c", program, variables=[{"MMRL_CACHE": str(cache)}])
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert len(place.lines()) == 8 and place.num_done("") == 4 and not place.is_finished
    monkeypatch.setenv("MMRL_CACHE", str(cache))
    run_evaluation(asked(boxes, place.path))
    assert place.predictions.read_bytes() == whole.predictions.read_bytes()
    assert place.summary_file.read_bytes() == whole.summary_file.read_bytes()


@pytest.mark.slow
def test_two_processes_write_what_one_writes(boxes: Path, whole: EvaluationDir, cache: Path, tmp_path: Path):
    place = EvaluationDir(tmp_path / "eval")
    words = ["eval", "--task", "grounding", "--model", "tiny:qwen3_vl", "--data", boxes, "--output", place.path, *WORDS]
    done = forked("mmrl", *words, MMRL_CACHE=str(cache))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[0] == "\t".join(COLUMNS), "the main process alone prints"
    for mine, theirs in zip(place.lines(), whole.lines(), strict=True):
        assert mine == theirs | {"scores": mine["scores"], "total": mine["total"], "parts": mine["parts"]}
        assert mine["scores"] == pytest.approx(theirs["scores"])


def test_a_finished_evaluation_tells_its_numbers_again_without_the_model(boxes: Path, whole: EvaluationDir, capsys, monkeypatch):
    monkeypatch.setattr(building, "policy_of_run", lambda *_: pytest.fail("the model was loaded"))
    monkeypatch.setattr(command, "prepare", lambda *_: pytest.fail("the model was loaded"))
    found = run_evaluation(asked(boxes, whole.path))
    assert found["eval/total"] == json.loads(whole.summary_file.read_text())["metrics"]["eval/total"]
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert tuple(lines[0]) == COLUMNS and all(len(line) == len(COLUMNS) for line in lines)
    assert float(next(line for line in lines if line[3] == "Reward")[5]) == found["eval/total"]


def test_a_folder_with_another_evaluation_is_left_alone(boxes: Path, whole: EvaluationDir, tmp_path: Path):
    with pytest.raises(ValueError, match=r"holds another evaluation \(evaluation\.num_samples 1 -> 2\): choose another --output"):
        run_evaluation(asked(boxes, whole.path, "evaluation.num_samples=2"))
    config, subject = configs.load(str(whole.config_file)).config, Subject("tiny:qwen3_vl as it is", "other", 12)
    assert whole.differences(subject, config) == ["its 12 prompts are others"]
    (first, *_) = whole.differences(replace(subject, weights="runs/a, step 3"), config)
    assert first == "its weights are those of tiny:qwen3_vl as it is, not runs/a, step 3"
    torn = [("progress.json", "{}", "is damaged"), ("predictions.jsonl", "", r"has 0 bytes, and had \d+: remove")]
    for name, text, message in torn:
        copy = EvaluationDir(Path(shutil.copytree(whole.path, tmp_path / name / "eval")))
        (copy.path / name).write_text(text)
        copy.summary_file.unlink()
        refused(message, copy.begin, subject, config)
    (tmp_path / "notes.txt").write_text("mine")
    refused("is not empty, and holds no evaluation", run_evaluation, asked(boxes, tmp_path))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (EvalArguments([]), r"give a run's folder, a config .* or --task with --model and --data"),
        (EvalArguments(["tiny/image"], task="grounding"), r"give a run or config \(tiny/image\) or --task grounding, not both"),
        (EvalArguments(["tiny/image"], model="m"), r"--model goes with --task"),
        (EvalArguments(["tiny/image"], step=3), r"--step 3 needs a run's folder; tiny/image is a config"),
        (EvalArguments([], task="grounding", data="digits_grounding"), r"--task grounding needs --model"),
        (EvalArguments(["tiny/image", "evaluation.by=['split']"]), r"names the column 'split', which no held-out prompt has"),
        (EvalArguments(["tiny/image", "evaluation.num_prompts=0"]), r"evaluation\.num_prompts is 0"),
    ],
)
@pytest.mark.usefixtures("empty_desk")
def test_refused_before_a_model_is_loaded(given: EvalArguments, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "prepare", lambda *_: pytest.fail("the model was loaded"))
    refused(message, run_evaluation, given)
    assert not (tmp_path / "runs").exists()


def test_a_column_with_a_value_per_prompt_is_no_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"prompt": f"scene {i}", "number": i}) for i in range(70)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows) + "\n")
    words = ["evaluation.data.texts=[]", "evaluation.data.path=prompts.jsonl", "evaluation.by=['number']"]
    refused("'number', which has 70 different values", run_evaluation, EvalArguments(["tiny/flow", *words]))


def test_drawn_pictures_are_kept_pixel_for_pixel_and_every_way_to_answer_has_numbers(make: Make, tmp_path: Path):
    make()
    also = "evaluation.also=[{name = 'short', num_steps = 2}]"
    words = ["tiny/flow", "policy.height=64", "policy.width=64", "evaluation.num_samples=1", "evaluation.num_steps=3", also]
    found = run_evaluation(EvalArguments(words, output=tmp_path / "eval"))
    place = EvaluationDir(tmp_path / "eval")
    lines = place.lines()
    assert [(line["prompt"], line["way"]) for line in lines] == [("1", ""), ("2", ""), ("1", "short"), ("2", "short")]
    for line in lines:
        with Image.open(place.path / line["image"]["file"]) as picture:
            assert picture.format == "PNG" and picture.size == (64, 64)
            assert digest(Sample(image=picture.copy())) == line["digest"]
        assert line["parsed"] is None
    assert {"eval/total", "eval/short/total"} <= set(found) and found["eval/total"] != found["eval/short/total"]
    assert {one.way for one in numbers(lines, ())} == {"", "short"}


def test_the_numbers_of_a_run_are_those_that_it_wrote_and_lie_in_its_folder(make: Make):
    rows = [{"prompt": "a yellow bird", "level": "easy"}, {"prompt": "three small cats", "level": "hard"}]
    Path("levels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["evaluation.by=['level']", "evaluation.data.texts=[]", "evaluation.data.path=levels.jsonl"]
    run = run_training(make("steps=1", "output=run", *words))
    found = run_evaluation(EvalArguments(["run"]))
    last = [line for line in run.read_metrics().lines if "eval/total" in line][-1]
    assert found == pytest.approx({name: value for name, value in last.items() if name.startswith("eval/")})
    assert {"eval/by/level/easy/total", "eval/diversity"} <= set(found)
    noted = [json.loads(line) for line in run.samples_file("train", 1).read_text().splitlines()]
    assert all(line["parts"]["jpeg_size/kb"] == pytest.approx(-line["total"] / 10, rel=0.2) for line in noted)
    assert EvaluationDir(run.path / "evaluations" / "step-1").is_finished
    run_evaluation(EvalArguments(["run"]))
    assert EvaluationDir(run.path / "evaluations" / "step-1-2").is_finished, "a finished one is not written over"


def test_tables_fit_eighty_columns_and_tell_every_kind_of_figure_once(whole: EvaluationDir):
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - lives as long as the test
    found = numbers(whole.lines(), ["split"])
    for column in ("", "split", "box size"):
        console.print(number_table(column, [one for one in found if one.column == column]))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("Mean IoU" in line for line in lines) == 1 + 2 + 3
    assert all("to" in line or "none: " in line for line in lines if "Mean IoU" in line)
    lines = [line | {"source": f"set{i % 2}"} for i, line in enumerate(whole.lines())]
    for by in ([], ["source"], ["split"]):
        found = [(one.column, one.kind, one.figure) for one in numbers(lines, by)]
        assert len(found) == len(set(found)) and {"set0", "set1"} == {kind for column, kind, _ in found if column == "source"}


def test_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]):
    now = [0.0]
    meter = ProgressLine(10, every_s=5.0, clock=lambda: now[0])
    for done in (2, 4, 6, 10):
        now[0] += 3.0
        meter.move("", done)
    meter.move("plain", 10)
    meter.close()
    told = ["2 of 10 prompts", "6 of 10 prompts", "10 of 10 prompts", "10 of 10 prompts, plain"]
    assert capsys.readouterr().err.splitlines() == told


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("two")
    a = write_run(folder / "a", steps=40, num_prompts=8)
    b = write_run(folder / "b", steps=20, num_prompts=6)
    a.config_file.write_text('output = "here"\n' + a.config_file.read_text())
    b.config_file.write_text(b.config_file.read_text().replace('preset = "grpo"', 'preset = "dapo"\ngroup_size = 4'))
    return compare(a.path, b.path)


def test_settings_are_those_that_differ_and_held_out_figures_those_of_shared_prompts(result: Comparison) -> None:
    assert result.settings == [
        ("steps", "40", "20"),
        ("algorithm.preset", "grpo", "dapo"),
        ("algorithm.group_size", "(not set)", "4"),
    ]
    assert result.num_shared == 6 and "2 held-out prompts were evaluated by one run only and are left out." in result.notices
    iou = next(row for row in result.held_out if row.name == "Mean IoU")
    # Both draw the same guesses before training, so over the same six prompts they start at the same figure.
    assert iou.first[0] == iou.first[1] and iou.best[0] >= iou.last[0]
    assert {change.num_prompts for change in result.differences} == {6}


def test_training_metrics_first_last_best_and_difference_and_runs_without_a_common_prompt(tmp_path: Path):
    runs = [RunDir.create(tmp_path / name) for name in "ab"]
    for run, values in zip(runs, ([1.0, 5.0, 2.0], [math.nan, 3.0, 4.0]), strict=True):
        for step, value in enumerate(values, start=1):
            run.append(step, {"reward/total": value, "policy/kl": value})
    total, kl = compare(runs[0].path, runs[1].path).training
    assert (total.first, total.last, total.best, total.difference) == ((1.0, 3.0), (2.0, 4.0), (5.0, 4.0), 2.0)
    assert kl.last == (2.0, 4.0) and math.isnan(kl.best[0])
    a = write_run(tmp_path / "text", steps=1, kind="text", num_prompts=2)
    b = write_run(tmp_path / "boxes", steps=1, kind="boxes", num_prompts=2)
    result = compare(a.path, b.path)
    assert result.held_out == [] and "The runs share no held-out prompt, so their evaluations are not compared." in result.notices


def printed(result: Comparison, width: int, terminal: bool) -> list[str]:
    out = io.StringIO()
    console = Console(width=width, file=out, force_terminal=terminal, color_system=None, highlight=False, legacy_windows=False)
    print_comparison(result, console)
    return out.getvalue().splitlines()


def test_it_prints_and_writes_one_file_with_both_curves(result: Comparison, tmp_path: Path) -> None:
    """On a phone every number says what it is."""
    text = "\n".join(printed(result, 200, True))
    assert "algorithm.preset" in text and "Held out: the 6 prompts that both evaluated" in text and "best b" in text
    page = write_comparison(result, tmp_path / "compare.html").read_text()
    assert "http" not in page.replace("http-equiv", "") and page.count("<polyline") >= 2 * len(result.held_out)
    assert "higher : lower" in page
    for row in re.findall(r"<tr><td>[^<]*</td>(<td class=\"n\".*?)</tr>", page, re.DOTALL):
        assert row.count('<td class="n" data-word=') == row.count("<td") >= 7
    assert ".metrics td[data-word]::before { content: attr(data-word)" in page


def test_at_eighty_columns_no_number_is_broken(result: Comparison) -> None:
    lines = printed(result, 80, True)
    assert max(map(len, lines)) <= 80
    for one in result.differences:
        (line,) = [line for line in lines if line.startswith(f"{one.name} ")]
        ends = [number(one.before), number(one.after), signed(one.difference)]
        assert line.removeprefix(one.name).split()[:3] == ends and f"{one.higher}:{one.lower}" in line
    for row in result.training:
        assert any(line.split()[-3:] == [*map(number, row.last), signed(row.difference)] for line in lines), row.name


def test_into_a_pipe_goes_tsv_with_every_digit(result: Comparison) -> None:
    lines = [line.split("\t") for line in printed(result, 80, False)]
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
    lines = printed(result, 80, True)
    assert max(map(len, lines)) <= 80 and any(line.startswith("Held out, answered as greedy: the 11 prompts") for line in lines)
    table = [line.split("\t") for line in printed(result, 80, False)]
    head = next(line for line in table if line[:2] == ["table", "way"])
    (piped,) = [dict(zip(head, line, strict=True)) for line in table if line[0] == "also"]
    assert (piped["way"], piped["figure"], float(piped["b"]), piped["higher"]) == ("greedy", change.name, change.after, "11")
    page = write_comparison(result, tmp_path / "c.html").read_text()
    assert "Held out, answered as greedy" in page and "The 11 prompts that both answered" in page


def prediction(i: int, value: float) -> dict[str, Any]:
    line = {"prompt": f"p{i}", "text": "?", "completion": "x", "total": value, "scores": {"r": value}, "way": ""}
    return line | {"box_space": None, "answer_boxes": [], "media": [], "media_sizes": [], "parts": {}, "columns": {}}


def test_what_is_no_run_and_no_evaluation_is_named(tmp_path: Path) -> None:
    refused("nothing-here", compare, tmp_path / "nothing-here", tmp_path, error=FileNotFoundError)
    (tmp_path / "predictions.jsonl").write_text('{"prompt": "p"}\n')
    refused(r"predictions\.jsonl, line 1 has no 'text': give a predictions\.jsonl that", compare, tmp_path, tmp_path)
    for name in READ:
        lines = [prediction(0, 0.5), {key: value for key, value in prediction(1, 0.5).items() if key != name}]
        (tmp_path / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        refused(rf"line 2 has no '{name}'", compare, tmp_path, tmp_path)
    (tmp_path / "predictions.jsonl").write_text("")
    refused("has no samples yet", compare, tmp_path / "predictions.jsonl", tmp_path)


def test_names_take_as_many_folders_as_tell_them_apart(tmp_path: Path) -> None:
    a, b = Path("/runs/one/evaluations/step-3"), Path("/runs/two/evaluations/step-3")
    assert run_names(a, b) == ("one/evaluations/step-3", "two/evaluations/step-3")
    assert run_names(a, a) == ("step-3", "step-3")
    for parent in ("x", "y"):
        RunDir.create(tmp_path / parent / "run").append(1, {"loss": 1.0})
    assert compare(tmp_path / "x" / "run", tmp_path / "y" / "run").names == ("x/run", "y/run")
