"""`mmrl eval MODEL|RUN --suite NAME` on a handful of rows in the published layouts, with small models of the real classes."""

import json
import pickle
from pathlib import Path

import pytest
from PIL import Image

from mmrl.app.commands.train import run_training
from mmrl.app.lab.comparison.compare import compare
from mmrl.app.lab.evaluation.command import EvalArguments, run_evaluation
from mmrl.app.lab.evaluation.suites import headline, suite_numbers
from mmrl.app.report.rows import Row
from mmrl.app.run.evaluation_folder import EvaluationDir
from mmrl.app.run.folder import Line
from mmrl.data.suites.load import find_suite
from mmrl.tiny.scorers import detector
from tests.support.flow_runs import Make
from tests.support.videos import write_video

SMALL = ["evaluation.data.any_size=true", "policy.sampling.max_new_tokens=6"]
GOLDEN = Path(__file__).parents[2] / "data" / "suites" / "golden"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, flow_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMRL_CACHE", str(flow_cache))


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
    assert compare(Path("eval"), Path("other")).num_shared == 4


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


def test_geneval_draws_four_pictures_of_a_prompt_with_a_model_or_with_a_run(tmp_path: Path, make: Make):
    detector(tmp_path / "detector")
    (tmp_path / "geneval").mkdir()
    row = {"tag": "single_object", "include": [{"class": "cat", "count": 1}], "prompt": "a photo of a cat"}
    counted = {"tag": "counting", "include": [{"class": "dog", "count": 2}], "prompt": "a photo of two dogs"}
    rows = [row, counted | {"exclude": [{"class": "dog", "count": 3}]}]
    (tmp_path / "geneval" / "evaluation_metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["evaluation.data.any_size=true", f"reward.0.detector={tmp_path / 'detector'}", "reward.0.colour=lab"]
    run = run_training(make("steps=1", "output=run", "policy.height=64", "policy.width=64", "evaluation.num_steps=2"))
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
        Row(_line(f"p{one['prompt']}", {"tag": one["tag"]}, {"object_counts/correct": float(one["correct"])}), None)
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
    rows = [Row(_line(f"p{i}", {"tag": "few" if i < 10 else "many"}, {"c": float(i % 2)}), None) for i in range(100)]
    suite = find_suite("geneval")
    both = headline(suite, "c", rows)
    many = headline(suite, "c", rows[10:])
    assert both.mean == pytest.approx(0.5) and both.high - both.low > many.high - many.low


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (EvalArguments(["m"], suite="refcoc"), r"no suite is called 'refcoc': known are refcoco, "),
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
        FileNotFoundError, match=r"not whole in this machine's hub cache.* screenspot_mobile_v2.json \(https://hugg"
    ):
        run_evaluation(EvalArguments(["tiny:qwen3_vl"], suite="screenspot_v2"))
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


def test_files_of_another_version_are_one_sentence(tmp_path: Path):
    draw_screenspot(tmp_path / "screens")
    with pytest.raises(ValueError, match=r"has 2 prompts of platform 'mobile', and suite screenspot_v2 was published with 501"):
        run_evaluation(EvalArguments(["tiny:qwen3_vl"], data="screens", suite="screenspot_v2"))
    rows = [{"img_filename": "a.png", "bbox": [4, 4, 20, 10], "prompt": "close it"}] * 2
    (tmp_path / "screens" / "screenspot_web_v2.json").write_text(json.dumps(rows))
    with pytest.raises(
        ValueError,
        match=r"holds another version of suite screenspot_v2: screenspot_web_v2.json:1: column instruction .*\(and 1 more\)",
    ):
        answer("screenspot_v2", tmp_path / "screens")
