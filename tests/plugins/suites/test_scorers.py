"""Suites are files found by their names; every scorer against the official one, whose answers to made-up ones golden/ holds."""

import ast
import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box, Space
from mmrl.app.evaluation.command import EvalArguments, run_evaluation
from mmrl.app.evaluation.compare import compare, read_side
from mmrl.app.plugins.resolve import SUITES, listing, load
from mmrl.app.plugins.suites import all_suites, find_suite
from mmrl.core.samples import MediaSize, Prompt, Sample, Scored
from mmrl.data.suites.suite import load_suite
from mmrl.serving.scorers.detectors import Detection
from tests.support.refused import refused
from tests.support.shelves import GOLDEN, suite_module

OWN = '''"""Colours: the colour that a sentence asks for."""


from mmrl import Prompt, Scored
from mmrl.data.suites.suite import Suite, SuiteFile, answer_text


def prompt_of(row, media):
    values = row.values
    return Prompt(values["id"], values["question"], answer=values["colour"], columns={"part": values["part"]})


def score(prompt, sample, space):
    return Scored(float(answer_text(sample) == prompt.answer), {})


SUITE = Suite(
    name="colours",
    measures="colours that sentences ask for",
    paper="2601.00001",
    files=(SuiteFile("colours.jsonl", "https://example.org/colours", "CC0"),),
    prompt=prompt_of,
    sizes={"easy": 2, "hard": 1},
    figures={"Accuracy": "suite"},
    by=("part",),
    exact="there is no other scorer",
    score=score,
    max_new_tokens=4,
)
'''


@pytest.fixture
def own(empty_desk: None, tmp_path: Path) -> Path:
    """A folder with the files of a suite of one's own."""
    rows = [{"id": str(i), "question": f"Sky {i}?", "colour": "blue", "part": "easy" if i else "hard"} for i in range(3)]
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "colours.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def evaluated(suite: str, folder: Path, output: str) -> Path:
    run_evaluation(EvalArguments(["tiny:qwen3_vl"], output=Path(output), data=str(folder), suite=suite))
    return Path(output)


def test_every_shipped_file_is_the_suite_of_its_name_and_refcocos_are_those_that_were_published():
    found = {listed.name: listed for listed in listing(SUITES)}
    assert {"refcoco", "refcoco+", "refcocog", "geneval"} <= found.keys()
    assert [suite.name for suite in all_suites()] == [*found]
    assert all(len(listed.summary) > 20 for listed in found.values())
    sizes = {name: dict(find_suite(name).sizes) for name in ("refcoco", "refcoco+", "refcocog")}
    assert sizes["refcoco+"] == {"val": 10758, "testA": 5726, "testB": 4889}
    assert sizes["refcocog"] == {"val": 4896, "test": 9602}
    assert find_suite("refcocog").files[0].name == "refs(umd).p" and find_suite("refcoco+").files[0].name == "refs(unc).p"


def test_a_suite_of_ones_own_is_answered_by_its_path(own: Path):
    Path("mine.py").write_text(OWN)
    summary = json.loads((evaluated("./mine.py", own, "one") / "summary.json").read_text())
    assert (summary["suite"], summary["published_prompts"], summary["changed"]) == ("colours", 3, [])
    assert [x["kind"] for x in summary["numbers"]] == ["", "easy", "hard"]
    assert {x["figure"] for x in summary["numbers"]} == {"Accuracy"}
    Path("mine.py").write_text("raise SystemExit(3)\n")
    assert read_side(Path("one")).suite is None, "what an evaluation names is not run to compare it"


def test_a_suite_in_the_folder_of_suites_is_found_by_its_name(own: Path):
    Path("datasets/suites").mkdir(parents=True)
    Path("datasets/suites/colours.py").write_text(OWN)
    place, other = evaluated("colours", own, "eval"), evaluated("colours", own, "other")
    assert read_side(place).suite is find_suite("colours")
    assert [found.name for found in compare(place, other).differences] == ["Accuracy"], "by the suite's own names"
    Path("datasets/suites/colours.py").unlink()
    assert read_side(place).suite is None, "its numbers can still be compared"


def test_a_file_without_a_suite_and_one_that_is_not_there(own: Path):
    Path("mine.py").write_text('"""No suite."""\n\nSUITE = 3\n')
    refused(r"mine\.py has no SUITE: write SUITE = Suite", find_suite, "./mine.py")
    with pytest.raises(FileNotFoundError, match=r"no file .*yours\.py for the suite '\./yours\.py': check the path"):
        find_suite("./yours.py")


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def scored(name: str, text: str, prompt: Prompt, size: tuple[int, int] | None = None, space: Space = "norm1") -> Scored:
    score = find_suite(name).score
    assert score is not None
    sizes = () if size is None else (MediaSize(*size, *size),)
    return score(prompt, Sample(text=text, media_sizes=sizes), space)


def test_boxes_score_as_lmms_eval_says():
    found = golden("refcoco")
    for case in found["cases"]:
        one = scored("refcoco", case["text"], Prompt("p", answer=Box(*case["truth"])), found["size"])
        assert one.parts["iou"] == pytest.approx(case["iou"], abs=1e-12), case
        assert [one.parts[f"acc{k}"] for k in (50, 70, 90)] == [case[f"acc{k}"] for k in (50, 70, 90)], case
        assert one.value == case["acc50"]
    assert {case["acc50"] for case in found["cases"]} == {True, False}


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("[64, 48, 320, 240]", "pixel"),
        ("(64,48),(320,240)", "pixel"),
        ('{"bbox_2d": [100, 100, 500, 500], "label": "cat"}', "norm1000"),
        ("<box>[[100, 100, 500, 500]]</box>", "norm1000"),
        ("<think>[0, 0, 1, 1]</think><answer>[64, 48, 320, 240]</answer>", "pixel"),
    ],
)
def test_a_box_counts_in_the_space_that_the_model_writes(text: str, space: Space):
    prompt = Prompt("p", answer=Box(64, 48, 320, 240))
    assert scored("refcocog", text, prompt, (640, 480), space).parts["iou"] == pytest.approx(1)


def test_points_hit_as_seeclick_says():
    found = golden("screenspot_v2")
    x, y, width, height = found["truth"]
    prompt = Prompt("p", answer=Box(x, y, x + width, y + height))
    for case in found["cases"]:
        one = scored("screenspot_v2", case["text"], prompt, found["size"])
        assert (one.value, one.parts["unparsed"]) == (case["hit"], case["unparsed"]), case
    assert {case["hit"] for case in found["cases"]} == {True, False}


@pytest.mark.parametrize(
    "text", ['{"point_2d": [250, 250], "label": "top 3"}', '[{"bbox_2d": [200, 200, 300, 300]}]', "(250, 250)"]
)
def test_a_point_may_be_json_in_the_models_own_pixels(text: str):
    prompt = Prompt("p", answer=Box(200, 200, 300, 300))
    assert scored("screenspot_v2", text, prompt, (1000, 500), "pixel").value == 1
    assert scored("screenspot_v2", text, prompt, (1000, 500), "norm1000").value == 0


def test_spans_score_as_lmms_eval_says():
    found = golden("charades_sta")
    all_scores = []
    for case in found["cases"]:
        one = scored("charades_sta", case["text"], Prompt("p", columns={"span": case["truth"]}))
        assert one.value == pytest.approx(case["iou"], abs=1e-12), case
        assert one.parts["unparsed"] == case["unparsed"], case
        all_scores.append(one)
    for name, part in (("IOU@3", "r3"), ("IOU@5", "r5"), ("IOU@7", "r7")):
        assert 100 * sum(one.parts[part] for one in all_scores) / len(all_scores) == pytest.approx(found["metrics"][name])
    mean = 100 * sum(one.value or 0 for one in all_scores) / len(all_scores)
    assert mean == pytest.approx(found["metrics"]["mIOU"])


def test_pictures_are_right_where_geneval_says_so(monkeypatch: pytest.MonkeyPatch):
    reward = load("object_counts", "rewards")(score="correct")
    picture = Image.new("RGB", (300, 300))
    for case in golden("geneval")["pictures"]:
        colours = {tuple(corners): colour for _, _, corners, colour in case["found"]}
        found = [Detection(name, score, tuple(corners)) for name, score, corners, _ in case["found"]]
        monkeypatch.setattr(type(reward), "_colour", lambda self, picture, one, known=colours: known[one.corners])
        clauses = partial(case["meta"].get)
        one = reward._score(picture, found, clauses("include"), clauses("exclude", []))
        assert one.value == case["correct"], case


def test_the_first_word_is_a_letter_as_mvbench_says():
    """Its notebook takes an empty answer and a lone bracket for right, which its model could not write."""
    for case in golden("mvbench")["cases"]:
        one = scored("mvbench", case["text"], Prompt("p", answer=case["answer"]))
        empty = case["text"].strip() in ("", "(", ")")
        assert one.value == (0 if empty else case["correct"]), case
        assert one.parts["unparsed"] == (empty or case["text"] in ("1", "[1]")), case


def test_letters_and_numbers_score_as_vsi_bench_says():
    for case in golden("vsibench")["cases"]:
        task = case["kind"].removesuffix("_easy").removesuffix("_medium").removesuffix("_hard")
        one = scored("vsibench", case["text"], Prompt("p", answer=case["truth"], columns={"task": task}))
        assert one.value == pytest.approx(case["value"], abs=1e-12), case


def test_letters_and_open_answers_are_read_as_mmmu_does():
    found = golden("mmmu")
    for case in found["choices"]:
        columns = {"question_type": "multiple-choice", "options": found["options"]}
        one = scored("mmmu", case["text"], Prompt("p", answer=case["letter"] or "A", columns=columns))
        assert (one.value, one.parts["unparsed"]) == (case["letter"] is not None, case["letter"] is None), case
    for case in found["open"]:
        truth = ast.literal_eval(case["answer"]) if case["answer"].startswith("[") else [case["answer"]]
        one = scored("mmmu", case["text"], Prompt("p", answer=truth, columns={"question_type": "open"}))
        assert one.value == case["correct"], case


def test_extracted_answers_compare_as_mathvista_says():
    found, mathvista = golden("mathvista"), suite_module("mathvista")
    prompts = [Prompt("p", answer=one["answer"], columns=one) for one in found["problems"]]
    for case in found["cases"]:
        prompt = prompts[case["problem"]]
        assert (mathvista.normalize(case["extraction"], prompt) == prompt.answer) == case["correct"], case
    for a, b, distance in found["distances"]:
        assert mathvista.edit_distance(a, b) == distance


@pytest.mark.parametrize(
    ("problem", "text", "right"),
    [
        (0, "145°", True), (0, "So the answer is C.", True), (0, 'The answer is "145°".', True),
        (0, "The answer is B", False), (3, "There are 12 apples.", True), (3, "12", True), (3, "either 12 or 13", False),
        (4, "It is about 1.24 m, so the answer is 1.24", True), (6, "The years are [2014, 2016].", True), (6, "2014", False),
    ],
)  # fmt: skip
def test_answers_are_extracted_from_responses_by_rules(problem: int, text: str, right: bool):
    columns = golden("mathvista")["problems"][problem]
    assert scored("mathvista", text, Prompt("p", answer=columns["answer"], columns=columns)).value == right


def judged(name: str, prompt: Prompt, *answers: str) -> Scored:
    judge = find_suite(name).judge
    assert judge is not None
    return judge.read(prompt, answers)


def test_questions_count_where_all_they_depend_on_are_yes_as_dpg_bench_says(tmp_path: Path):
    found = golden("dpg_bench")
    (tmp_path / "dpg_bench.csv").write_text("\n".join(found["csv"]))
    prompts = {prompt.id: prompt for prompt in load_suite(find_suite("dpg_bench"), tmp_path, any_size=True)}
    assert [prompt.columns["source"] for prompt in prompts.values()] == ["numbered", "numbered", "COCOval", "whoops"]
    for case in found["pictures"]:
        one = judged("dpg_bench", prompts[case["item"]], *case["answers"])
        assert one.value == pytest.approx(case["score"], abs=1e-12), case
    chat = judged("dpg_bench", prompts["0"], "Yes.", " yes\n", "**YES**", "No.", "Maybe yes")
    assert chat.value == 0.6


def test_points_are_asked_and_read_as_unigenbench_does(tmp_path: Path):
    found = golden("unigenbench")
    write_unigenbench(tmp_path, found["template"], found["meanings"], found["questions"])
    prompts = load_suite(find_suite("unigenbench"), tmp_path, any_size=True)
    assert [prompt.columns["questions"] for prompt in prompts] == [[case["question"]] for case in found["questions"]]
    for case in found["cases"]:
        one = judged("unigenbench", Prompt("p", columns={"points": case["points"]}), case["text"])
        wanted = None if case["score"] is None else pytest.approx(sum(case["score"]) / len(case["score"]))
        assert (one.value, one.parts["unparsed"]) == (wanted, wanted is None), case


def write_unigenbench(folder: Path, template: str, meanings: dict[str, str], rows: list[dict[str, Any]]) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "eval" / "src").mkdir(parents=True)
    own = suite_module("unigenbench")
    code = f"raise SystemExit\n{own.TEMPLATE} = {template!r}\n{own.MEANINGS} = {meanings!r}\n"
    (folder / "eval" / "src" / "eval_common.py").write_text(code)
    with (folder / "data" / "test_prompts_en.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["index", "prompt_en", "sub_dims_en"])
        for i, row in enumerate(rows):
            facts = {"Primary Categories": "Art", "Testpoints": row["points"], "Testpoint Description": row["clues"]}
            lines.writerow([i, row["prompt"], json.dumps(facts)])


def test_marks_of_edits_are_read_as_imgedit_does():
    for case in golden("imgedit")["cases"]:
        one = judged("imgedit", Prompt("p"), case["text"])
        assert (one.value, one.parts["unparsed"]) == (case["score"], case["score"] is None), case
