"""`mmrl eval MODEL|RUN --suite NAME` on rows in the published layouts, with small models and a judge on this machine."""

import csv
import json
import math
import pickle
import re
from collections.abc import Callable, Sequence
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
from mmrl.app.evaluation.tables import headline, of_points, suite_facts, suite_figures, suite_numbers
from mmrl.app.plugins.suites import find_suite
from mmrl.app.report.rows import SampleLine
from mmrl.app.run.evaluation_folder import EvaluationDir
from mmrl.app.run.folder import Line
from mmrl.core.samples import Prompt
from mmrl.data.suites.suite import kinds_of, load_suite, part_of
from mmrl.lab.tiny.scorers import detector
from mmrl.policies.text.settings import TextPolicyConfig
from tests.plugins.test_judge_rewards import Server, judges
from tests.support.flow_runs import Make
from tests.support.refused import refused
from tests.support.shelves import GOLDEN, suite_module
from tests.support.videos import write_video

WRITTEN = ("policy.sampling.max_new_tokens=6",)
DRAWN = ["policy.height=32", "policy.width=32", "evaluation.num_steps=2", "evaluation.batch_size=1"]


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
    refs = [
        {"ref_id": i, "ann_id": i, "image_id": 7, "split": split, "sentences": [{"sent": "the left cat"}, {"sent": f"cat {i}"}]}
        for i, split in enumerate(("val", "testA", "train"))
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


def answer(name: str, *words: str, model: str = "tiny:qwen3_vl", small: Sequence[str] = WRITTEN) -> EvaluationDir:
    """The evaluation of a small model on the files in the folder `name`."""
    words = ("evaluation.data.any_size=true", *small, *words)
    run_evaluation(EvalArguments([model, *words], output=Path("eval"), data=name, suite=name))
    return EvaluationDir(Path("eval"))


def row_of(prompt: int, columns: Line, parts: Line, score: float | None = None) -> Line:
    both = {"prompt": f"p{prompt}", "text": f"{prompt}", "columns": columns, "parts": parts, "box_space": None}
    return both | {"scores": {"suite_judge": score}}


def kill_after_four_lines(place: EvaluationDir, prompts: int, more: bytes = b"") -> bytes:
    """Leave of an evaluation what a kill would; gives all that it had written."""
    whole, progress = place.predictions.read_bytes(), json.loads(place.progress_file.read_text())
    first = b"".join(whole.splitlines(keepends=True)[:4])
    place.progress_file.write_text(json.dumps(progress | {"done": {"": prompts}, "bytes": len(first)}))
    place.predictions.write_bytes(first + more)
    place.summary_file.unlink()
    return whole


def test_refcoco_has_a_headline_splits_and_a_rate_of_unread_answers(tmp_path: Path):
    draw_refcoco(tmp_path / "refcoco")
    place = answer("refcoco")
    lines, summary = place.lines(), json.loads(place.summary_file.read_text())
    assert [line["columns"]["split"] for line in lines] == ["val", "val", "testA", "testA"], "training rows stay out"
    assert lines[1]["text"].endswith("region this sentence describes: cat 0")
    assert (summary["suite"], summary["published_prompts"]) == ("refcoco", 21586)
    assert summary["changed"] == ["evaluation.data.any_size", "policy.sampling.max_new_tokens"]
    found = [(one["column"], one["kind"], one["figure"]) for one in summary["numbers"]]
    assert found[:2] == [("", "", "Acc@0.5"), ("", "", "IoU")] and {kind for _, kind, _ in found} == {"", "val", "testA"}
    assert summary["numbers"][0]["unparsed"] is not None
    compared = compare(Path("eval").rename("one"), answer("refcoco", "seed=1").path)
    assert compared.num_shared == 4
    assert [one.name for one in compared.differences] == ["Acc@0.5", "IoU", "Acc@0.7", "Acc@0.9"], "by the suite's own names"
    said = "Suite refcoco: every prompt counts equally here; in the published figures every split"
    assert compared.notices[-1].startswith(said)


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
    draw_screenspot(tmp_path / "screenspot_v2")
    place = answer("screenspot_v2", "evaluation.batch_size=4")
    whole = kill_after_four_lines(place, 4, b"half a li")
    answer("screenspot_v2", "evaluation.batch_size=4")
    assert place.predictions.read_bytes() == whole
    printed = capsys.readouterr()
    assert "going on after 4 of 6 prompts" in printed.err and "desktop icon\tAccuracy" in printed.out


def test_charades_shows_clips_and_mvbench_a_part_of_a_folder_of_frames(tmp_path: Path):
    draw_charades(tmp_path / "charades_sta")
    lines = answer("charades_sta", "policy.video.max_frames=4").lines()
    assert [line["columns"]["span"] for line in lines] == [[0.0, 1.5], [1.0, 2.9]]
    assert {"suite/r3", "suite/r5", "suite/r7", "suite/unparsed"} <= set(lines[0]["parts"])
    draw_mvbench(tmp_path / "mvbench")
    prompts = load_suite(find_suite("mvbench"), tmp_path / "mvbench", any_size=True)
    (clip,) = next(prompt for prompt in prompts if prompt.columns["task"] == "episodic_reasoning").media
    assert [Path(name).stem for name in clip.source] == ["00002", "00003", "00004"] and clip.fps == 3
    (cut,) = prompts[0].media
    assert (cut.start, cut.end) == (0.5, 1.5) and prompts[0].answer == "B"


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
    lines = answer(name, "evaluation.num_prompts=2", "policy.video.max_frames=4").lines()
    assert len(lines) == min(2, len(prompts)) and all(line["scores"]["suite"] is not None for line in lines)


def test_vsi_benchs_headline_is_that_of_its_own_code():
    """Three levels of relative direction count as one of eight tasks."""
    found = json.loads((GOLDEN / "vsibench.json").read_text())
    tasks = {kind: re.sub("_(easy|medium|hard)$", "", kind) for kind in (case["kind"] for case in found["cases"])}
    columns = [{"question_type": case["kind"], "task": tasks[case["kind"]]} for case in found["cases"]]
    lines = [row_of(i, columns[i], {"suite": case["value"]}) for i, case in enumerate(found["cases"])]
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
    correct = "object_counts/correct"
    lines = [row_of(one["prompt"], {"tag": one["tag"]}, {correct: float(one["correct"])}) for one in found["results"]]
    numbers = suite_numbers(find_suite("geneval"), lines)
    assert numbers[0].estimate.mean == pytest.approx(found["overall"], abs=5e-6)
    assert {one.kind: one.estimate.mean for one in numbers[1:]} == pytest.approx(found["tags"])
    assert numbers[0].estimate.low < numbers[0].estimate.mean < numbers[0].estimate.high


def test_the_interval_of_equal_kinds_is_wide_where_one_has_few_prompts():
    """Nine of ten prompts are of one kind, and each kind counts half."""
    rows = [SampleLine(row_of(i, {"tag": "few" if i < 10 else "many"}, {"c": float(i % 2)}), None) for i in range(100)]
    assert math.isnan(headline(("tag",), "other", rows).mean)
    both = headline(("tag",), "c", rows)
    many = headline(("tag",), "c", rows[10:])
    assert both.mean == pytest.approx(0.5) and both.high - both.low > many.high - many.low


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            EvalArguments(["m"], suite="refcoc"),
            r"no suite is called 'refcoc': did you mean 'refcoco'\?.*file of yours write \./ref",
        ),
        (EvalArguments([], suite="refcoco"), r"--suite refcoco needs a run's folder or a model"),
        (EvalArguments(["m"], task="grounding", suite="refcoco"), r"settles task and rewards"),
        (EvalArguments(["tiny:qwen3_vl"], step=2, suite="refcoco"), r"--step 2 needs a run's folder; tiny:qwen3_vl is a model"),
    ],
)
def test_words_that_make_no_suite(given: EvalArguments, message: str):
    refused(message, run_evaluation, given)


def test_missing_files_are_named_with_their_source_and_a_snapshot_of_the_hub_needs_none(tmp_path: Path):
    said = r"lacks files, and nothing is downloaded: get screenspot_mobile_v2.json \(https:.*, \.\. \(4 in all\)"
    refused(said, run_evaluation, EvalArguments(["tiny:qwen3_vl"], suite="screenspot_v2"), error=FileNotFoundError)
    with pytest.raises(FileNotFoundError, match=r"lacks files: there is no folder .*refcocoo, and nothing"):
        run_evaluation(EvalArguments(["tiny:qwen3_vl"], suite="refcoco", data=str(tmp_path / "refcocoo")))
    draw_refcoco(tmp_path / "refcoco")
    (tmp_path / "refcoco" / "instances.json").unlink()
    said = r"get instances\.json \(https://github.com/lichengunc/refer; CC BY 4\.0\) and name"
    refused(said, answer, "refcoco", error=FileNotFoundError)
    draw_refcoco(tmp_path / "refcoco")
    (tmp_path / "refcoco" / "train2014").rename(tmp_path / "pictures")
    refused(r"set evaluation\.data\.media to the pictures or clips of suite refcoco", answer, "refcoco", error=FileNotFoundError)
    answer("refcoco", f"evaluation.data.media={tmp_path / 'pictures'}")
    repository = Path("hub", "datasets--OS-Copilot--ScreenSpot-v2")
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("c0ffee")
    draw_screenspot(repository / "snapshots" / "c0ffee")
    assert len(load_suite(find_suite("screenspot_v2"), any_size=True)) == 6


def test_files_of_another_version_are_one_sentence(tmp_path: Path):
    draw_screenspot(tmp_path / "screenspot_v2")
    with pytest.raises(ValueError, match=r"has 2 prompts of platform 'mobile', and suite screenspot_v2 was published with 501"):
        run_evaluation(EvalArguments(["tiny:qwen3_vl"], data="screenspot_v2", suite="screenspot_v2"))
    rows = [{"img_filename": "a.png", "bbox": [4, 4, 20, 10], "prompt": "close it"}] * 2
    (tmp_path / "screenspot_v2" / "screenspot_web_v2.json").write_text(json.dumps(rows))
    said = r"lacks something of suite screenspot_v2, or is .*: screenspot_web_v2.json:1: column instruction .*\(and 1 more\)"
    refused(said, answer, "screenspot_v2")


EDIT = {"id": "animal/1.png", "prompt": "Make it red.", "edit_type": "adjust"}
Answer = Callable[[str, list[Image.Image]], str]

serve = pytest.fixture(judges)


DPG = """item_id,text,keywords,proposition_id,dependency,tuple,question_natural_language
7,"A red cat, on a mat.",,1,0,entity - whole (cat),Is there a cat?
7,"A red cat, on a mat.",,2,1,"attribute - color (cat, red)",Is the cat red?
drawtext3,A photo.,,1,0,global - (photo),Is this a photo?
"""


def write_dpg(folder: Path) -> None:
    folder.mkdir()
    (folder / "dpg_bench.csv").write_text(DPG)


def write_unigenbench(folder: Path) -> None:
    for below in ("data", "eval/src"):
        (folder / below).mkdir(parents=True)
    template = "Judge {prompt} for {testpoint}. {explanation} {test_explanation}"
    own = suite_module("unigenbench")
    code = f"{own.TEMPLATE} = {template!r}\n{own.MEANINGS} = {{'Style': 'art'}}"
    (folder / "eval" / "src" / "eval_common.py").write_text(code)
    facts = {"Primary Categories": "Art", "Testpoints": ["Style"], "Testpoint Description": ["ink"]}
    with (folder / "data" / "test_prompts_en.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["index", "prompt_en", "sub_dims_en"], [0, "a cat, in ink", json.dumps(facts)]])


def write_imgedit(folder: Path) -> None:
    for name in suite_module("imgedit").FOLDERS:
        (folder / name).mkdir(parents=True)
    draw_picture(folder / "animal" / "1.png")
    (folder / "singleturn.json").write_text(json.dumps({"12": EDIT, "13": EDIT | {"edit_type": "style"}}))
    asked = {kind: f"{kind}: <edit_prompt> Give marks." for kind in ("adjust", "style")}
    (folder / "judge_prompt.json").write_text(json.dumps(asked))


def judged(name: str, model: str, server: Server, *words: str) -> EvaluationDir:
    """The evaluation of a small generator, whose pictures a server looks at."""
    return answer(name, f"reward.0.server.url={server.url}", *words, model=model, small=DRAWN)


def test_every_question_is_asked_about_four_pictures(tmp_path: Path, serve: Callable[[Answer], Server]):
    write_dpg(tmp_path / "dpg_bench")
    server = serve(lambda text, pictures: "no" if "cat?" in text else "yes")
    place = judged("dpg_bench", "tiny:sd3", server)
    summary, lines = json.loads(place.summary_file.read_text()), place.lines()
    found = {(one["kind"], one["figure"]): one["mean"] for one in summary["numbers"]}
    assert found["", "DPG-Bench"] == 0.5 and found["numbered", "DPG-Bench"] == 0 and found["drawtext", "DPG-Bench"] == 1
    assert [found["", kind] for kind in ("entity", "attribute", "global")] == [0, 1, 1] and found["", "relation"] is None
    assert len(lines) == 8 and len(server.asked) == 4 * 3
    assert summary["changed"] == ["evaluation.data.any_size"], "where the judge is changes nothing"
    whole = kill_after_four_lines(place, 1)
    assert judged("dpg_bench", "tiny:sd3", server).predictions.read_bytes() == whole and len(server.asked) == 12 + 4


def test_an_edit_is_shown_before_and_after_behind_its_question(tmp_path: Path, serve: Callable[[Answer], Server]):
    write_imgedit(tmp_path / "imgedit")
    server = serve(lambda text, pictures: "A: 4\nB: 3\nC: 4" if text.startswith("adjust") else "no marks")
    place = judged("imgedit", "tiny:kontext", server, "policy.max_prompt_tokens=24")
    [text, before, after] = server.asked[0][0]["messages"][0]["content"]
    assert text["text"] in ("adjust: Make it red. Give marks.", "style: Make it red. Give marks.")
    assert (before["type"], after["type"]) == ("image_url", "image_url")
    numbers = json.loads(place.summary_file.read_text())["numbers"]
    assert [(one["kind"], one["prompts"]) for one in numbers] == [("", 1), ("adjust", 1)]
    assert [one["mean"] for one in numbers] == pytest.approx([3.67, 3.67])
    assert [one["unparsed"] for one in numbers] == [0.5, 0.0]


def test_a_judge_that_is_not_there_is_named_before_anything_is_drawn(tmp_path: Path):
    write_unigenbench(tmp_path / "unigenbench")
    server = Server(lambda text, pictures: "", "http://127.0.0.1:9/v1")
    refused(r"not ready: .* start the server .* published with UniGenBench-EvalModel", judged, "unigenbench", "tiny:sd3", server)


def test_unigenbenchs_dimensions_are_those_of_its_own_code():
    found, suite = json.loads((GOLDEN / "unigenbench.json").read_text()), find_suite("unigenbench")
    assert suite.judge is not None
    lines: list[Line] = []
    for case in found["cases"]:
        columns = {"points": case["points"], "theme": case["theme"]}
        one = suite.judge.read(Prompt("p", columns=columns), [case["text"]])
        parts = {f"suite_judge/{name}": value for name, value in one.parts.items()}
        lines.append(row_of(case["prompt"], columns, parts, one.value))
    numbers = {one.figure: one.estimate for one in suite_numbers(suite, lines) if not one.column}
    known = {**found["sub"], **found["primary"]}
    assert {name: one.mean for name, one in numbers.items() if one.num_prompts and name != "Overall"} == pytest.approx(known)
    overall = numbers["Overall"]
    assert overall.mean == pytest.approx(sum(found["primary"].values()) / len(found["primary"]))
    assert overall.unread == sum(case["score"] is None for case in found["cases"]) / len(found["cases"])
    assert overall.how == "bootstrap" and overall.low < overall.mean < overall.high
    themes = [one for one in suite_numbers(suite, lines) if one.column == "theme"]
    assert {one.figure for one in themes} == {"Overall"} and len(themes) == len({case["theme"] for case in found["cases"]})


def test_dpg_benchs_headline_and_kinds_are_those_of_its_own_code(tmp_path: Path):
    found, suite = json.loads((GOLDEN / "dpg_bench.json").read_text()), find_suite("dpg_bench")
    (tmp_path / "dpg_bench.csv").write_text("\n".join(found["csv"]))
    prompts = {prompt.id: prompt for prompt in load_suite(suite, tmp_path, any_size=True)}
    assert suite.judge is not None
    lines: list[Line] = []
    for case in found["pictures"]:
        one = suite.judge.read(prompts[case["item"]], case["answers"])
        parts = {f"suite_judge/{name}": value for name, value in one.parts.items()}
        number = list(prompts).index(case["item"])
        lines.append(row_of(number, dict(prompts[case["item"]].columns), parts, one.value))
    assert suite_numbers(suite, lines)[0].estimate.mean == pytest.approx(found["score"])
    kinds = {one.figure: one.estimate.mean for one in suite_numbers(suite, lines[3::4]) if not one.column}
    assert {name: kinds[name] for name in found["kinds_of_last_picture"]} == pytest.approx(found["kinds_of_last_picture"])


def test_imgedits_kinds_are_those_of_its_own_code():
    found, suite = json.loads((GOLDEN / "imgedit.json").read_text()), find_suite("imgedit")
    lines = [row_of(i, {"edit_type": case["kind"]}, {}, case["score"]) for i, case in enumerate(found["cases"])]
    numbers = suite_numbers(suite, lines)
    kinds = {one.kind: one.estimate.mean for one in numbers[1:]}
    assert kinds == pytest.approx(found["kinds"], abs=0.005)
    assert numbers[0].estimate.mean == pytest.approx(sum(kinds.values()) / 4)


def test_prompts_with_more_points_count_more_and_are_drawn_whole():
    """Of ten prompts one has all points but nine wrong; the interval is as wide as ten prompts are unlike."""
    points = ["Attribute - Color"] * 11
    lines = [row_of(0, {"points": points}, {"suite_judge/attribute": 1.0}, 1.0)]
    lines += [row_of(i, {"points": points[:1]}, {"suite_judge/attribute": 0.0}, 0.0) for i in range(1, 10)]
    one = of_points(["Attribute"], [SampleLine(line, None) for line in lines])
    assert one.mean == pytest.approx(11 / 20) and (one.low, one.num_prompts) == (0, 10) and one.high > 0.75
    assert of_points(["Style"], [SampleLine(line, None) for line in lines]).num_prompts == 0


def test_a_sample_counts_its_kinds_of_points_equally_where_two_models_are_compared():
    points = ["Attribute - Color", "Attribute - Size", "Style"]
    row = SampleLine(row_of(0, {"points": points}, {"suite_judge/attribute": 0.5, "suite_judge/style": 1.0}, 1.0), None)
    kinds = {figure.name: figure.value(row) for figure in suite_figures(find_suite("unigenbench"))}
    assert kinds["Attribute"] == 0.5 and kinds["Style"] == 1.0
    assert kinds["Overall"] == 0.75, "of the kinds that were asked"
    assert math.isnan(kinds["Grammar"])
    assert kinds_of("Style") == ("Style",) and part_of("Action - Hand (Character/Anthropomorphic)").isidentifier()


@pytest.mark.parametrize(
    ("name", "write", "file", "text", "message"),
    [
        ("imgedit", write_imgedit, "judge_prompt.json", "{}", r"column edit_type is 'adjust', for which judge_prompt\.json"),
        ("imgedit", write_imgedit, "judge_prompt.json", "[]", r"must hold an object with an entry per edit"),
        ("imgedit", write_imgedit, "singleturn.json", json.dumps({"1": EDIT | {"id": "../x.png"}}), r"leads out of the folder"),
        ("unigenbench", write_unigenbench, "eval/src/eval_common.py", "x = 1", r"does not set SYSTEM_PROMPT_EN_TEMPLATE and"),
        ("unigenbench", write_unigenbench, "eval/src/eval_common.py", "def", r"cannot be read as the published file: invalid"),
        ("unigenbench", write_unigenbench, "data/test_prompts_en.csv", "index,prompt_en\n0,a cat", r"holds no JSON object"),
        ("dpg_bench", write_dpg, "dpg_bench.csv", "item_id,text\n7,a cat", r"column proposition_id"),
        (
            "dpg_bench",
            write_dpg,
            "dpg_bench.csv",
            DPG.replace(",2,1,", ",2,9,"),
            "names the question 9, which its prompt does not",
        ),
    ],
)
def test_what_judged_suites_are_made_of_in_another_version_is_one_sentence(
    name: str, write: Callable[[Path], None], file: str, text: str, message: str, tmp_path: Path
):
    write(tmp_path / name)
    refused(r"was published with|is published|prompts of", load_suite, find_suite(name), tmp_path / name)
    (tmp_path / name / file).write_text(text)
    found = refused(message, load_suite, find_suite(name), tmp_path / name, any_size=True)
    assert "\n" not in str(found.value)
