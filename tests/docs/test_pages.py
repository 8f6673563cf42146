"""What pages list is what there is: layouts, models, methods, metrics, and where their links lead."""

import json
import re
from pathlib import Path

import pytest

from docs import generate
from docs.pages.lines import cell, code
from mmrl.algorithms.presets import PRESETS
from mmrl.app.planning.known import files_by_name
from mmrl.data.layouts.source import guess
from mmrl.data.layouts.table import LAYOUTS
from mmrl.training.metric_names import metric_of
from tests.support.blocks import DOCS, ROOT


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


BLOCKS = [
    (name, block)
    for name, words in re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", page("docs/how_to/layouts.md"), re.MULTILINE | re.DOTALL)
    for block in re.findall(r"```text\n(.*?)```", words, re.DOTALL)
]


def test_every_layout_has_an_example():
    assert {name for name, _ in BLOCKS} == LAYOUTS.keys()


@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(BLOCKS)])
def test_an_example_has_two_lines_and_is_recognised(name: str, block: str, tmp_path: Path):
    lines = [line.partition(" | ")[::2] for line in block.splitlines()]
    assert len(lines) == 2
    files = {file: [text for other, text in lines if other == file] for file, _ in lines}
    for file, texts in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        # an object may take both lines
        whole = file.endswith(".jsonl") and not texts[0].endswith("}")
        (tmp_path / file).write_text((" " if whole else "\n").join(texts) + "\n", encoding="utf-8")
    assert guess(tmp_path / next(iter(files)) if len(files) == 1 else tmp_path).layout == name


def test_the_page_lists_the_models_that_come_with_mmrl():
    found = re.findall(r"^\| `(\S+/\S+)` \| ([\d,]+) \|$", page("docs/how_to/models.md"), re.MULTILINE)
    known = [json.loads(file.read_text()) for file in files_by_name().values()]
    assert {name: int(count.replace(",", "")) for name, count in found} == {one["repository"]: one["weights"] for one in known}


def test_links_lead_somewhere():
    """In the repository: a link to what exists on the site only is dead there."""
    links = [
        (doc, link) for doc in [*DOCS, ROOT / "SECURITY.md"] for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", doc.read_text())
    ]
    assert [(doc.name, link) for doc, link in links if "://" not in link and not (doc.parent / link).exists()] == []


def test_the_reference_is_what_the_code_says():
    assert generate.stale() == [], "run python docs/generate.py"


def test_a_page_that_is_no_longer_written_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "gone.md").write_text("# gone")
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    monkeypatch.setattr(generate, "COMMITTED", {})
    assert generate.stale() == ["reference/gone.md"]


def test_code_in_tables_is_not_escaped():
    assert cell("a <b> | `<split>`") == "a &lt;b> \\| `<split>`" and code("runs/<name> | x") == "`runs/<name> \\| x`"


NAMED = {"reward/total": "reward", "reward/iou/std": "reward", "time/reward/iou/p95_s": "seconds", "eval/plain/iou/hit": "reward"}


@pytest.mark.parametrize("name", [*NAMED, "policy/new_thing"])
def test_a_metric_that_is_documented_is_found_by_its_name(name: str):
    found = metric_of(name)
    assert (found and found.unit) == NAMED.get(name)


def test_the_reference_names_every_preset():
    assert set(re.findall(r"^\| `(\w+)` \|", page("docs/reference/algorithms.md"), re.MULTILINE)) >= set(PRESETS)


def test_the_readme_counts_the_presets():
    assert f"{len(PRESETS)} methods" in page("README.md")
