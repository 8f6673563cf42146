"""`mmrl eval`: every sample in a file, intervals on every number, tables by kind, and a killed one that goes on."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from mmrl.app.commands.options import EvalArguments
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.evaluation import command
from mmrl.app.evaluation.command import ProgressLine, run_evaluation
from mmrl.app.evaluation.tables import COLUMNS, number_table, numbers
from mmrl.app.run import build as building
from mmrl.app.run.evaluation_folder import EvaluationDir, Subject
from mmrl.app.run.sample_files import digest
from mmrl.core.types import Sample
from tests.support.flow_runs import Make
from tests.support.forked import run
from tests.support.launcher import forked

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
    done = run("-c", program, variables=[{"MMRL_CACHE": str(cache)}])
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


def test_a_finished_evaluation_tells_its_numbers_again_without_the_model(
    boxes: Path, whole: EvaluationDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
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
        with pytest.raises(ValueError, match=message):
            copy.begin(subject, config)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty, and holds no evaluation"):
        run_evaluation(asked(boxes, tmp_path))


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
    with pytest.raises(ValueError, match=message):
        run_evaluation(given)
    assert not (tmp_path / "runs").exists()


def test_a_column_with_a_value_per_prompt_is_no_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"prompt": f"scene {i}", "number": i}) for i in range(70)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows) + "\n")
    words = ["evaluation.data.texts=[]", "evaluation.data.path=prompts.jsonl", "evaluation.by=['number']"]
    with pytest.raises(ValueError, match="'number', which has 70 different values"):
        run_evaluation(EvalArguments(["tiny/flow", *words]))


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
    run = run_training(make("steps=1", "output=run", "evaluation.by=['level']", "evaluation.data.texts=[]", path_of_levels()))
    found = run_evaluation(EvalArguments(["run"]))
    last = [line for line in run.read_metrics().lines if "eval/total" in line][-1]
    assert found == pytest.approx({name: value for name, value in last.items() if name.startswith("eval/")})
    assert {"eval/by/level/easy/total", "eval/diversity"} <= set(found)
    noted = [json.loads(line) for line in run.samples_file("train", 1).read_text().splitlines()]
    assert all(line["parts"]["jpeg_size/kb"] == pytest.approx(-line["total"] / 10, rel=0.2) for line in noted)
    assert EvaluationDir(run.path / "evaluations" / "step-1").is_finished
    run_evaluation(EvalArguments(["run"]))
    assert EvaluationDir(run.path / "evaluations" / "step-1-2").is_finished, "a finished one is not written over"


def path_of_levels() -> str:
    """A file of prompts with a column, in the working directory."""
    rows = [{"prompt": "a yellow bird", "level": "easy"}, {"prompt": "three small cats", "level": "hard"}]
    Path("levels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "evaluation.data.path=levels.jsonl"


def test_tables_fit_eighty_columns(whole: EvaluationDir):
    from rich.console import Console

    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - lives as long as the test
    found = numbers(whole.lines(), ["split"])
    for column in ("", "split", "box size"):
        console.print(number_table(column, [one for one in found if one.column == column]))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("Mean IoU" in line for line in lines) == 1 + 2 + 3
    assert all("to" in line or "none: " in line for line in lines if "Mean IoU" in line)


def test_every_kind_of_figure_is_told_once(whole: EvaluationDir):
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
    assert capsys.readouterr().err.splitlines() == [
        *("2 of 10 prompts", "6 of 10 prompts", "10 of 10 prompts", "10 of 10 prompts, plain")
    ]


def test_kinds_of_a_config_are_kept_in_it(tmp_path: Path):
    resolved = configs.load("tiny/image", ["evaluation.by=['split', 'kind']"])
    assert resolved.config.evaluation.by == ("split", "kind")
    configs.save(resolved.config, tmp_path / "saved.toml")
    assert configs.load(str(tmp_path / "saved.toml")).config == resolved.config
