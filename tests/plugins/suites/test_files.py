"""A suite is a file that is found by its name: the shipped ones, one in ./datasets/suites, and one by its path."""

import json
from pathlib import Path

import pytest

from mmrl.app.evaluation.command import EvalArguments, run_evaluation
from mmrl.app.evaluation.compare import compare, read_side
from mmrl.app.plugins.resolve import SUITES, listing
from mmrl.app.plugins.suites import all_suites, find_suite
from tests.support.refused import refused

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


def test_every_shipped_file_is_the_suite_of_its_name():
    found = {listed.name: listed for listed in listing(SUITES)}
    assert {"refcoco", "refcoco+", "refcocog", "geneval"} <= found.keys()
    assert [suite.name for suite in all_suites()] == [*found]
    assert all(len(listed.summary) > 20 for listed in found.values())


def test_sentences_of_refcoco_and_its_relatives_are_those_that_were_published():
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
