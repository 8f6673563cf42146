"""docs/how_to/drive.md: its commands in their order, in an empty folder, and the keys that it names."""

import json
import re
from pathlib import Path

import pytest

from tests.docs.test_blocks import parsed, ran
from tests.support.blocks import ROOT, blocks, commands

PAGE = "docs/how_to/drive.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
LINES = [words for block in blocks() if block.doc == PAGE for words in commands(block.text)]
KEYS = {name: set(re.findall(r"`(\w+)`", keys)) for name, keys in re.findall(r"^\| `mmrl (\w+)` \| (.*) \|$", TEXT, re.MULTILINE)}
LISTS = ("ls", "show")


def refuse(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Command -> the JSON that it printed."""
    found: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("driven"))
        for words in LINES:
            if words[0] == "touch":
                Path(words[1]).touch()
                continue
            name, context = parsed(words[1:])
            code, output = ran(context)
            assert code == 0, words
            if "--json" in words:
                found[name] = json.loads(output, parse_constant=refuse)
        assert not Path("runs/first/checkpoint.request").exists()
    return found


def test_every_command_with_json_is_on_the_page(said: dict[str, object]):
    assert set(said) == set(KEYS) == {"ls", "show", "plan", "report", "eval", "compare", "ask"}


@pytest.mark.parametrize("name", [name for name in KEYS if name not in LISTS])
def test_the_page_names_the_keys(said: dict[str, object], name: str):
    found = said[name]
    assert isinstance(found, dict) and set(found) <= KEYS[name]


@pytest.mark.parametrize("name", LISTS)
def test_the_page_names_what_entries_have(said: dict[str, object], name: str):
    found = said[name]
    assert isinstance(found, list) and found
    assert KEYS[name] - {"file", "not_set", "document", "card", "parts", "label", "rewards"} <= set(found[0])


def test_an_entry_of_changes_has_what_the_page_says(said: dict[str, object]):
    compared = said["compare"]
    assert isinstance(compared, dict)
    words = TEXT.partition("An entry of `changes` has")[2].partition("\n\n")[0]
    assert set(compared["changes"][0]) == set(re.findall(r"`(\w+)`", words))


def test_numbers_are_those_of_the_run(said: dict[str, object]):
    report, evaluation = said["report"], said["eval"]
    assert isinstance(report, dict) and isinstance(evaluation, dict)
    assert report["steps"] == report["steps_wanted"] == 3
    assert report["training"]["reward/total"]["steps"] == [1, 2, 3] and len(report["training"]["loss"]["values"]) == 3
    assert evaluation["prompts"] == 2 and {one["figure"] for one in evaluation["numbers"]} >= {"Mean IoU", "Reward"}
