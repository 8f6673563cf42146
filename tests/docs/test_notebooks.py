"""Every notebook runs from top to bottom, on tiny models, twice in the same folder; and holds no output of somebody's machine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
RUNNER = Path(__file__).parent / "run_notebook.py"


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path):
    done = forked.run(str(RUNNER), str(notebook), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "report.html").is_file()
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
