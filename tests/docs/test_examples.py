"""Every example runs as typed, and every notebook from top to bottom, on tiny models; and none holds output of a machine."""

import ast
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from mmrl.policies.text import families
from mmrl.runtime.process_state import process_state, random_state, set_random_state
from tests.support.each import for_each
from tests.support.forked import ROOT, run

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
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


@for_each("example", EXAMPLES)
def test_example_is_short(example: Path):
    assert len(example.read_text().splitlines()) <= 100


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def run_cells(file: Path) -> dict[str, object]:
    """Run a notebook's code cells in one namespace and print what each ends with; the names after the last."""
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]), f"{file.name}, cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{file.name}, cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"{file.name}, cell {number}", "eval"), names)
            shown = value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
            print(f"cell {number}: {len(shown)} characters, {shown[:200]}")  # noqa: T201 - what a notebook would show
    return names


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path):
    done = run("-m", "tests.docs.test_examples", str(notebook), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").is_file()
    assert len(re.findall(r"^cell \d+: ", done.stdout, re.MULTILINE)) >= 4


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_as_jupyter_writes_it(notebook: Path):
    book = json.loads(notebook.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["metadata"]["kernelspec"]["name"]) == (4, "python3")
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids) >= 6
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(notebook, "code"))
    assert len(cells(notebook, "markdown")) >= 3


def test_there_are_two():
    assert [notebook.stem for notebook in NOTEBOOKS] == ["grounding", "text_to_image"]


if __name__ == "__main__":
    run_cells(Path(sys.argv[1]))
