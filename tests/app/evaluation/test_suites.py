"""`mmrl eval MODEL|RUN --suite NAME` on a handful of rows in the published layouts, with small models of the real classes."""

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants
from PIL import Image

from mmrl.app.commands.options import EvalArguments
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.evaluation.command import resolve_words, run_evaluation
from mmrl.app.evaluation.compare import compare
from mmrl.app.evaluation.tables import headline, suite_facts, suite_numbers
from mmrl.app.plugins.suites import find_suite
from mmrl.app.report.rows import SampleLine
from mmrl.app.run.evaluation_folder import EvaluationDir
from mmrl.app.run.folder import Line
from mmrl.data.suites.suite import load_suite
from mmrl.lab.tiny.scorers import detector
from mmrl.policies.text.settings import TextPolicyConfig
from tests.support.flow_runs import Make
from tests.support.shelves import GOLDEN, suite_module
from tests.support.videos import write_video

SMALL = ["evaluation.data.any_size=true", "policy.sampling.max_new_tokens=6"]


@pytest.fixture(autouse=True)
def no_hub(empty_desk: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def draw_picture(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 48), (90, 20, 140)).save(file)


def draw_refcoco(folder: Path) -> None:
    draw_picture(folder / "train2014" / "1.png")
    boxes = [{"id": i, "bbox": [4 * i, 4, 20, 30]} for i in range(3)]
    instances = {"images": [{"id": 7, "file_name": "1.png", "width": 64, "height": 48}], "annotations": boxes}
    (folder / "instances.json").write_text(json.dumps(instances))
    splits = ("val", "testA", "train")
    refs = [
        {
            "ref_id": i,
            "ann_id": i,
            "image_id": 7,
            "split": splits[i],
            "sentences": [{"sent": "the left cat"}, {"sent": f"cat {i}"}],
        }
        for i in range(3)
    ]
    (folder / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=2))


def draw_screenspot(folder: Path) -> None:
    draw_picture(folder / "screenspotv2_image" / "a.png")
    for platform in ("mobile", "desktop", "web"):
        row = {"img_filename": "a.png", "bbox": [4, 4, 20, 10], "instruction": "close it", "data_source": "shop"}
        rows = [row | {"data_type": kind} for kind in ("text", "icon")]
        (folder / f"screenspot_{platform}_v2.json").write_text(json.dumps(rows))


def draw_charades(folder: Path) -> None:
    (folder / "Charades_v1_480").mkdir(parents=True)
    write_video(folder / "Charades_v1_480" / "AO8RW.mp4", [i / 4 for i in range(12)])
    (folder / "charades_sta_test.txt").write_text("AO8RW 0.0 1.5##a person sits down.\nAO8RW 1.0 2.9##a person smiles.\n")


def draw_mvbench(folder: Path) -> None:
    (folder / "json").mkdir(parents=True)
    row = {"video": "AO8RW.mp4", "question": "What does the person do?", "candidates": ["sits", "smiles"], "answer": "smiles"}
    for task, clips in suite_module("mvbench").FOLDERS.items():
        place = folder / "video" / clips
        place.mkdir(parents=True, exist_ok=True)
        if task == "episodic_reasoning":
            for number in range(1, 8):
                draw_picture(place / "friends" / f"{number:05d}.jpg")
        else:
            write_video(place / "AO8RW.mp4", [i / 4 for i in range(8)])
        name = "friends" if task == "episodic_reasoning" else "AO8RW.mp4"
        (folder / "json" / f"{task}.json").write_text(json.dumps([row | {"video": name, "start": 0.5, "end": 1.5}]))


def draw_vsibench(folder: Path) -> None:
    (folder / "scannet").mkdir(parents=True)
    write_video(folder / "scannet" / "scene0000.mp4", [i / 4 for i in range(8)])
    row = {"dataset": "scannet", "scene_name": "scene0000", "question": "How many chairs are there?"}
    rows = [
        row | {"id": 1, "question_type": "object_counting", "ground_truth": "4", "options": None},
        row | {"id": 2, "question_type": "object_rel_direction_easy", "ground_truth": "A", "options": ["A. left", "B. right"]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "test-00000-of-00001.parquet")


def draw_mmmu(folder: Path) -> None:
    draw_picture(folder / "1.png")
    cell, row = {"bytes": (folder / "1.png").read_bytes(), "path": "1.png"}, {"image_1": None, "image_2": None}
    for subjects in suite_module("mmmu").SUBJECTS.values():
        for subject in subjects:
            choice = {"id": f"{subject}_1", "question": "Which is it, <image 1> or <image 2>?", "options": "['red', 'blue']"}
            both = row | choice | {"answer": "B", "question_type": "multiple-choice", "image_1": cell, "image_2": cell}
            one = {"id": f"{subject}_2", "question": "How many?", "options": "[]", "answer": "['3', '4']", "image_1": cell}
            (folder / subject).mkdir()
            rows = [both, row | one | {"question_type": "open"}]
            pq.write_table(pa.Table.from_pylist(rows), folder / subject / "validation-00000-of-00001.parquet")


def draw_mathvista(folder: Path) -> None:
    draw_picture(folder / "images" / "1.jpg")
    facts = {"task": "math word problem", "context": "table"}
    row = {"pid": "1", "image": "images/1.jpg", "choices": None, "precision": 1, "answer": "1.2", "metadata": facts}
    (folder / "testmini.json").write_text(json.dumps({"1": row | {"question_type": "free_form", "answer_type": "float"}}))
    (folder / "query.json").write_text(json.dumps({"1": "Hint: end with a number.\nQuestion: How long is it?"}))


def answer(name: str, folder: Path, *words: str, model: str = "tiny:qwen3_vl", output: str = "eval") -> EvaluationDir:
    """The evaluation of a small model on the files in a folder."""
    run_evaluation(EvalArguments([model, *SMALL, *words], output=Path(output), data=str(folder), suite=name))
    return EvaluationDir(Path(output))


def test_refcoco_has_a_headline_splits_and_a_rate_of_unread_answers(tmp_path: Path):
    draw_refcoco(tmp_path / "refcoco")
    place = answer("refcoco", tmp_path / "refcoco")
    lines, summary = place.lines(), json.loads(place.summary_file.read_text())
    assert [line["columns"]["split"] for line in lines] == ["val", "val", "testA", "testA"], "training rows stay out"
    assert lines[1]["text"].endswith("region this sentence describes: cat 0")
    assert (summary["suite"], summary["published_prompts"], summary["changed"]) == (
        *("refcoco", 21586),
        ["evaluation.data.any_size", "policy.sampling.max_new_tokens"],
    )
    found = [(one["column"], one["kind"], one["figure"]) for one in summary["numbers"]]
    assert found[:2] == [("", "", "Acc@0.5"), ("", "", "IoU")] and {kind for _, kind, _ in found} == {"", "val", "testA"}
    assert summary["numbers"][0]["unparsed"] is not None
    answer("refcoco", tmp_path / "refcoco", "seed=1", output="other")
    compared = compare(Path("eval"), Path("other"))
    assert compared.num_shared == 4
    assert [one.name for one in compared.differences] == ["Acc@0.5", "IoU", "Acc@0.7", "Acc@0.9"], "by the suite's own names"
    assert compared.notices[-1].startswith(
        "Suite refcoco: every prompt counts equally here; in the published figures every split"
    )


def test_a_run_answers_by_the_published_protocol_and_not_by_its_own():
    words = ["policy.sampling.max_new_tokens=7", "policy.answer_format=think", "policy.system_prompt=Be brief."]
    Path("run").mkdir()
    configs.save(configs.load("tiny/image", [*words, "evaluation.sampling.max_new_tokens=9"]).config, Path("run", "config.toml"))
    resolved, run = resolve_words(EvalArguments(["run", "evaluation.batch_size=2"], data="x", suite="charades_sta"))
    policy, evaluation = resolved.config.policy, resolved.config.evaluation
    assert run is not None and isinstance(policy, TextPolicyConfig) and evaluation.sampling is not None
    assert (policy.answer_format, policy.system_prompt, policy.sampling.max_new_tokens) == ("none", "", 50)
    assert (evaluation.sampling.max_new_tokens, evaluation.sampling.temperature, evaluation.batch_size) == (50, 0.0, 2)
    assert suite_facts(find_suite("charades_sta"), resolved)["changed"] == []


def test_a_killed_suite_goes_on_and_a_finished_one_tells_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draw_screenspot(tmp_path / "screens")
    place = answer("screenspot_v2", tmp_path / "screens", "evaluation.batch_size=4")
    whole = place.predictions.read_bytes()
    progress = json.loads(place.progress_file.read_text())
    first = b"".join(whole.splitlines(keepends=True)[:4])
    place.progress_file.write_text(json.dumps(progress | {"done": {"": 4}, "bytes": len(first)}))
    place.predictions.write_bytes(first + b"half a li")
    place.summary_file.unlink()
    answer("screenspot_v2", tmp_path / "screens", "evaluation.batch_size=4")
    assert place.predictions.read_bytes() == whole
    printed = capsys.readouterr()
    assert "going on after 4 of 6 prompts" in printed.err and "desktop icon\tAccuracy" in printed.out


def test_charades_shows_clips(tmp_path: Path):
    draw_charades(tmp_path / "charades")
    lines = answer("charades_sta", tmp_path / "charades", "policy.video.max_frames=4").lines()
    assert [line["columns"]["span"] for line in lines] == [[0.0, 1.5], [1.0, 2.9]]
    assert {"suite/r3", "suite/r5", "suite/r7", "suite/unparsed"} <= set(lines[0]["parts"])


@pytest.mark.parametrize(
    ("name", "draw", "asked", "media"),
    [
        ("mvbench", draw_mvbench, "select the best option", 20),
        ("vsibench", draw_vsibench, "These are frames of a video.\nHow many chairs are there?", 2),
        ("mmmu", draw_mmmu, "Which is it, <image> or <image>?\n(A) red\n(B) blue\n\nAnswer with the option's letter", 90),
        ("mathvista", draw_mathvista, "Hint: end with a number.\nQuestion: How long", 1),
    ],
)
def test_questions_are_asked_with_their_media(name: str, draw: Callable[[Path], None], asked: str, media: int, tmp_path: Path):
    draw(tmp_path / name)
    prompts = load_suite(find_suite(name), tmp_path / name, any_size=True)
    assert asked in prompts[0].text and sum(len(prompt.media) for prompt in prompts) == media
    lines = answer(name, tmp_path / name, "evaluation.num_prompts=2", "policy.video.max_frames=4").lines()
    assert len(lines) == min(2, len(prompts)) and all(line["scores"]["suite"] is not None for line in lines)


def test_a_part_of_a_folder_of_frames_is_a_clip(tmp_path: Path):
    draw_mvbench(tmp_path / "mvbench")
    prompts = load_suite(find_suite("mvbench"), tmp_path / "mvbench", any_size=True)
    (clip,) = next(prompt for prompt in prompts if prompt.columns["task"] == "episodic_reasoning").media
    assert [Path(name).stem for name in clip.source] == ["00002", "00003", "00004"] and clip.fps == 3
    (cut,) = prompts[0].media
    assert (cut.start, cut.end) == (0.5, 1.5) and prompts[0].answer == "B"


def test_vsi_benchs_headline_is_that_of_its_own_code():
    """Three levels of relative direction count as one of eight tasks."""
    found = json.loads((GOLDEN / "vsibench.json").read_text())
    columns = [
        {"question_type": kind, "task": kind.removesuffix("_easy").removesuffix("_medium").removesuffix("_hard")}
        for kind in (case["kind"] for case in found["cases"])
    ]
    lines = [_line(f"p{i}", columns[i], {"suite": case["value"]}) for i, case in enumerate(found["cases"])]
    numbers = suite_numbers(find_suite("vsibench"), lines)
    assert 100 * numbers[0].estimate.mean == pytest.approx(found["metrics"]["overall"])
    tasks = {one.kind: one.estimate.mean for one in numbers if one.column == "task"}
    assert 100 * tasks["object_rel_direction"] == pytest.approx(found["metrics"]["object_rel_direction_accuracy"])


def test_geneval_draws_four_pictures_of_a_prompt_and_a_run_may_evaluate_it_while_it_trains(tmp_path: Path, make: Make):
    detector(tmp_path / "detector")
    (tmp_path / "geneval").mkdir()
    row = {"tag": "single_object", "include": [{"class": "cat", "count": 1}], "prompt": "a photo of a cat"}
    counted = {"tag": "counting", "include": [{"class": "dog", "count": 2}], "prompt": "a photo of two dogs"}
    rows = [row, counted | {"exclude": [{"class": "dog", "count": 3}]}]
    (tmp_path / "geneval" / "evaluation_metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    small = ["policy.height=64", "policy.width=64", "evaluation.num_steps=2"]
    data = "evaluation.data={use = 'suite', suite = 'geneval', path = 'geneval', any_size = true}"
    judge = "evaluation.reward=[{use = 'object_counts', detector = 'detector'}]"
    run = run_training(make("steps=1", "output=run", *small, data, judge))
    assert any("eval/object_counts" in line for line in run.read_metrics().lines)
    words = ["evaluation.data.any_size=true", "reward.0.detector=detector", "reward.0.colour=lab"]
    run_evaluation(EvalArguments([str(run.path), *words], data="geneval", suite="geneval"))
    place = EvaluationDir(run.path / "evaluations" / "step-1")
    summary = json.loads(place.summary_file.read_text())
    assert len(place.lines()) == 8 and summary["numbers"][0]["figure"] == "Overall"
    assert {one["kind"] for one in summary["numbers"] if one["column"] == "tag"} == {"single_object", "counting"}
    with pytest.raises(ValueError, match="has a policy of kind 'flow', and suite refcoco is for 'text'"):
        run_evaluation(EvalArguments([str(run.path)], data="geneval", suite="refcoco"))


def test_genevals_headline_is_that_of_its_own_script():
    found = json.loads((GOLDEN / "geneval.json").read_text())
    rows = [
        SampleLine(_line(f"p{one['prompt']}", {"tag": one["tag"]}, {"object_counts/correct": float(one["correct"])}), None)
        for one in found["results"]
    ]
    numbers = suite_numbers(find_suite("geneval"), [row.line for row in rows])
    assert numbers[0].estimate.mean == pytest.approx(found["overall"], abs=5e-6)
    assert {one.kind: one.estimate.mean for one in numbers[1:]} == pytest.approx(found["tags"])
    assert numbers[0].estimate.low < numbers[0].estimate.mean < numbers[0].estimate.high


def _line(prompt: str, columns: Line, parts: Line) -> Line:
    return {"prompt": prompt, "text": "", "columns": columns, "scores": {}, "parts": parts, "box_space": None}


def test_the_interval_of_equal_kinds_is_wide_where_one_has_few_prompts():
    """Nine of ten prompts are of one kind, and each kind counts half."""
    rows = [SampleLine(_line(f"p{i}", {"tag": "few" if i < 10 else "many"}, {"c": float(i % 2)}), None) for i in range(100)]
    assert math.isnan(headline(("tag",), "other", rows).mean)
    both = headline(("tag",), "c", rows)
    many = headline(("tag",), "c", rows[10:])
    assert both.mean == pytest.approx(0.5) and both.high - both.low > many.high - many.low


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            EvalArguments(["m"], suite="refcoc"),
            r"no suite is called 'refcoc': did you mean 'refcoco'\?.*for a file of yours write \./ref",
        ),
        (EvalArguments([], suite="refcoco"), r"--suite refcoco needs a run's folder or a model"),
        (EvalArguments(["m"], task="grounding", suite="refcoco"), r"settles task and rewards"),
        (EvalArguments(["tiny:qwen3_vl"], step=2, suite="refcoco"), r"--step 2 needs a run's folder; tiny:qwen3_vl is a model"),
    ],
)
def test_words_that_make_no_suite(given: EvalArguments, message: str):
    with pytest.raises(ValueError, match=message):
        run_evaluation(given)


def test_missing_files_are_named_with_their_source(tmp_path: Path):
    with pytest.raises(
        FileNotFoundError,
        match=r"lacks files, and nothing is downloaded: get screenspot_mobile_v2.json \(https:.*, \.\. \(4 in all\)",
    ):
        run_evaluation(EvalArguments(["tiny:qwen3_vl"], suite="screenspot_v2"))
    with pytest.raises(FileNotFoundError, match=r"lacks files: there is no folder .*refcocoo, and nothing"):
        run_evaluation(EvalArguments(["tiny:qwen3_vl"], suite="refcoco", data=str(tmp_path / "refcocoo")))
    draw_refcoco(tmp_path / "refcoco")
    (tmp_path / "refcoco" / "instances.json").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"get instances\.json \(https://github.com/lichengunc/refer; CC BY 4\.0\) and name"
    ):
        answer("refcoco", tmp_path / "refcoco")
    draw_refcoco(tmp_path / "refcoco")
    (tmp_path / "refcoco" / "train2014").rename(tmp_path / "pictures")
    with pytest.raises(FileNotFoundError, match=r"set evaluation\.data\.media to the pictures or clips of suite refcoco"):
        answer("refcoco", tmp_path / "refcoco")
    answer("refcoco", tmp_path / "refcoco", f"evaluation.data.media={tmp_path / 'pictures'}")


def test_a_snapshot_of_the_hub_that_is_here_needs_no_data():
    repository = Path("hub", "datasets--OS-Copilot--ScreenSpot-v2")
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("c0ffee")
    draw_screenspot(repository / "snapshots" / "c0ffee")
    assert len(load_suite(find_suite("screenspot_v2"), any_size=True)) == 6


def test_files_of_another_version_are_one_sentence(tmp_path: Path):
    draw_screenspot(tmp_path / "screens")
    with pytest.raises(ValueError, match=r"has 2 prompts of platform 'mobile', and suite screenspot_v2 was published with 501"):
        run_evaluation(EvalArguments(["tiny:qwen3_vl"], data="screens", suite="screenspot_v2"))
    rows = [{"img_filename": "a.png", "bbox": [4, 4, 20, 10], "prompt": "close it"}] * 2
    (tmp_path / "screens" / "screenspot_web_v2.json").write_text(json.dumps(rows))
    with pytest.raises(
        ValueError,
        match=r"lacks something of suite screenspot_v2, or is .*: screenspot_web_v2.json:1: column instruction .*\(and 1 more\)",
    ):
        answer("screenspot_v2", tmp_path / "screens")
