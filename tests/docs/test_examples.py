"""Every example runs as typed, and every path and config block in the docs is real."""

import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest

from mmrl.policies.text import families
from mmrl.runtime.process_state import process_state, random_state, set_random_state
from tests.support.each import for_each

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


EXAMPLES = pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)


@EXAMPLES
def test_example_runs(example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """As `python examples/NAME.py`, in this process: most of what one of its own would do is to import torch."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [str(example)])
    monkeypatch.setattr(sys, "path", [str(example.parent), *sys.path])
    known = dict(families.FAMILIES)
    before, drawn = process_state(), random_state()
    try:
        runpy.run_path(str(example), run_name="__main__")
    finally:
        families.FAMILIES.clear()
        families.FAMILIES.update(known)
        before.restore()
        set_random_state(drawn)
    assert capsys.readouterr().out.strip()


@for_each("example", sorted((ROOT / "examples").glob("*.py")))
def test_example_is_short(example: Path):
    assert len(example.read_text().splitlines()) <= 100


def test_links_lead_somewhere():
    """In the repository: a link to what exists on the site only is dead there."""
    pages = [*DOCS, ROOT / "SECURITY.md", *(ROOT / "docs").glob("*/**/*.md")]
    links = [(doc, link) for doc in pages for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", doc.read_text())]
    assert [(doc.name, link) for doc, link in links if "://" not in link and not (doc.parent / link).exists()] == []


@for_each("doc", DOCS, ids=lambda path: path.name)
def test_toml_blocks_parse(doc: Path):
    for block in re.findall(r"```toml\n(.*?)```", doc.read_text(), re.DOTALL):
        assert tomllib.loads(block)
