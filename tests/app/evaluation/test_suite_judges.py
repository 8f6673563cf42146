"""Suites whose pictures a judge looks at: whole evaluations with a server on this machine, and headlines of the official code."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from mmrl.app.commands.options import EvalArguments
from mmrl.app.evaluation.command import run_evaluation
from mmrl.app.evaluation.tables import of_points, suite_figures, suite_numbers
from mmrl.app.plugins.suites import find_suite
from mmrl.app.report.rows import SampleLine
from mmrl.app.run.evaluation_folder import EvaluationDir
from mmrl.app.run.folder import Line
from mmrl.core.samples import Prompt
from mmrl.data.suites.suite import kinds_of, load_suite, part_of
from tests.plugins.test_judge_rewards import Server, judges
from tests.support.shelves import GOLDEN, suite_module

SMALL = ["evaluation.data.any_size=true", "policy.height=32", "policy.width=32", "evaluation.num_steps=2"]
SMALL += ["evaluation.batch_size=1"]
EDIT = {"id": "animal/1.png", "prompt": "Make it red.", "edit_type": "adjust"}
Answer = Callable[[str, list[Image.Image]], str]

pytestmark = pytest.mark.usefixtures("empty_desk")
serve = pytest.fixture(judges)


def write_dpg(folder: Path) -> None:
    folder.mkdir()
    with (folder / "dpg_bench.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["item_id", "text", "keywords", "proposition_id", "dependency", "tuple", "question_natural_language"])
        lines.writerow(["7", "A red cat, on a mat.", "", 1, 0, "entity - whole (cat)", "Is there a cat?"])
        lines.writerow(["7", "A red cat, on a mat.", "", 2, 1, "attribute - color (cat, red)", "Is the cat red?"])
        lines.writerow(["drawtext3", "A photo.", "", 1, 0, "global - (photo)", "Is this a photo?"])


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
    Image.new("RGB", (64, 48), (90, 20, 140)).save(folder / "animal" / "1.png")
    (folder / "singleturn.json").write_text(json.dumps({"12": EDIT, "13": EDIT | {"edit_type": "style"}}))
    asked = {kind: f"{kind}: <edit_prompt> Give marks." for kind in ("adjust", "style")}
    (folder / "judge_prompt.json").write_text(json.dumps(asked))


def answer(name: str, model: str, server: Server, *words: str) -> EvaluationDir:
    """The evaluation of a small generator on the files in the folder `name`."""
    words = (*SMALL, f"reward.0.server.url={server.url}", *words)
    run_evaluation(EvalArguments([model, *words], output=Path("eval"), data=name, suite=name))
    return EvaluationDir(Path("eval"))


def test_every_question_is_asked_about_four_pictures(tmp_path: Path, serve: Callable[[Answer], Server]):
    write_dpg(tmp_path / "dpg_bench")
    server = serve(lambda text, pictures: "no" if "cat?" in text else "yes")
    place = answer("dpg_bench", "tiny:sd3", server)
    summary, lines = json.loads(place.summary_file.read_text()), place.lines()
    found = {(one["kind"], one["figure"]): one["mean"] for one in summary["numbers"]}
    assert found["", "DPG-Bench"] == 0.5 and found["numbered", "DPG-Bench"] == 0 and found["drawtext", "DPG-Bench"] == 1
    assert [found["", kind] for kind in ("entity", "attribute", "global")] == [0, 1, 1] and found["", "relation"] is None
    assert len(lines) == 8 and len(server.asked) == 4 * 3
    assert summary["changed"] == ["evaluation.data.any_size"], "where the judge is changes nothing"
    whole = place.predictions.read_bytes()
    progress = json.loads(place.progress_file.read_text())
    first = b"".join(whole.splitlines(keepends=True)[:4])
    place.progress_file.write_text(json.dumps(progress | {"done": {"": 1}, "bytes": len(first)}))
    place.predictions.write_bytes(first)
    place.summary_file.unlink()
    assert answer("dpg_bench", "tiny:sd3", server).predictions.read_bytes() == whole and len(server.asked) == 12 + 4


def test_an_edit_is_shown_before_and_after_behind_its_question(tmp_path: Path, serve: Callable[[Answer], Server]):
    write_imgedit(tmp_path / "imgedit")
    server = serve(lambda text, pictures: "A: 4\nB: 3\nC: 4" if text.startswith("adjust") else "no marks")
    place = answer("imgedit", "tiny:kontext", server, "policy.max_prompt_tokens=24")
    [text, before, after] = server.asked[0][0]["messages"][0]["content"]
    assert text["text"] in ("adjust: Make it red. Give marks.", "style: Make it red. Give marks.")
    assert (before["type"], after["type"]) == ("image_url", "image_url")
    numbers = json.loads(place.summary_file.read_text())["numbers"]
    assert [(one["kind"], one["prompts"]) for one in numbers] == [("", 1), ("adjust", 1)]
    assert [one["mean"] for one in numbers] == pytest.approx([3.67, 3.67])
    assert [one["unparsed"] for one in numbers] == [0.5, 0.0]


def test_a_judge_that_is_not_there_is_named_before_anything_is_drawn(tmp_path: Path, serve: Callable[[Answer], Server]):
    write_unigenbench(tmp_path / "unigenbench")
    server = serve(lambda text, pictures: "")
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(ValueError, match=r"not ready: .* start the server .* published with UniGenBench-EvalModel"):
        answer("unigenbench", "tiny:sd3", server)


def row_of(prompt: int, parts: Line, columns: Line, score: float | None) -> Line:
    both = {"prompt": f"p{prompt}", "text": f"{prompt}", "columns": columns, "parts": parts, "box_space": None}
    return both | {"scores": {"suite_judge": score}}


def test_unigenbenchs_dimensions_are_those_of_its_own_code():
    found, suite = json.loads((GOLDEN / "unigenbench.json").read_text()), find_suite("unigenbench")
    assert suite.judge is not None
    lines: list[Line] = []
    for case in found["cases"]:
        columns = {"points": case["points"], "theme": case["theme"]}
        one = suite.judge.read(Prompt("p", columns=columns), [case["text"]])
        parts = {f"suite_judge/{name}": value for name, value in one.parts.items()}
        lines.append(row_of(case["prompt"], parts, columns, one.value))
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
        lines.append(row_of(number, parts, dict(prompts[case["item"]].columns), one.value))
    assert suite_numbers(suite, lines)[0].estimate.mean == pytest.approx(found["score"])
    kinds = {one.figure: one.estimate.mean for one in suite_numbers(suite, lines[3::4]) if not one.column}
    assert {name: kinds[name] for name in found["kinds_of_last_picture"]} == pytest.approx(found["kinds_of_last_picture"])


def test_imgedits_kinds_are_those_of_its_own_code():
    found, suite = json.loads((GOLDEN / "imgedit.json").read_text()), find_suite("imgedit")
    lines = [row_of(i, {}, {"edit_type": case["kind"]}, case["score"]) for i, case in enumerate(found["cases"])]
    numbers = suite_numbers(suite, lines)
    kinds = {one.kind: one.estimate.mean for one in numbers[1:]}
    assert kinds == pytest.approx(found["kinds"], abs=0.005)
    assert numbers[0].estimate.mean == pytest.approx(sum(kinds.values()) / 4)


def test_prompts_with_more_points_count_more_and_are_drawn_whole():
    """Of ten prompts one has all points but nine wrong; the interval is as wide as ten prompts are unlike."""
    points = ["Attribute - Color"] * 11
    lines = [row_of(0, {"suite_judge/attribute": 1.0}, {"points": points}, 1.0)]
    lines += [row_of(i, {"suite_judge/attribute": 0.0}, {"points": points[:1]}, 0.0) for i in range(1, 10)]
    one = of_points(["Attribute"], [SampleLine(line, None) for line in lines])
    assert one.mean == pytest.approx(11 / 20) and (one.low, one.num_prompts) == (0, 10) and one.high > 0.75
    assert of_points(["Style"], [SampleLine(line, None) for line in lines]).num_prompts == 0


def test_a_sample_counts_its_kinds_of_points_equally_where_two_models_are_compared():
    points = ["Attribute - Color", "Attribute - Size", "Style"]
    row = SampleLine(row_of(0, {"suite_judge/attribute": 0.5, "suite_judge/style": 1.0}, {"points": points}, 1.0), None)
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
    ],
)
def test_files_of_another_version_are_one_sentence(
    name: str, write: Callable[[Path], None], file: str, text: str, message: str, tmp_path: Path
):
    write(tmp_path / name)
    with pytest.raises(ValueError, match=r"was published with|is published|prompts of"):
        load_suite(find_suite(name), tmp_path / name)
    (tmp_path / name / file).write_text(text)
    with pytest.raises(ValueError, match=message) as found:
        load_suite(find_suite(name), tmp_path / name, any_size=True)
    assert "\n" not in str(found.value)


def test_a_question_about_a_question_that_is_not_there_is_refused(tmp_path: Path):
    write_dpg(tmp_path / "dpg_bench")
    file = tmp_path / "dpg_bench" / "dpg_bench.csv"
    file.write_text(file.read_text().replace(",2,1,", ",2,9,"))
    with pytest.raises(ValueError, match=r"names the question 9, which its prompt does not have"):
        load_suite(find_suite("dpg_bench"), tmp_path / "dpg_bench", any_size=True)
