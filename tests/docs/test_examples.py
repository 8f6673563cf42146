"""Every example runs as typed, and every path and config block in the docs is real."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(example: Path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(example)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example_is_short(example: Path):
    assert len(example.read_text().splitlines()) <= 100


@pytest.mark.parametrize("doc", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(doc: Path):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", doc.read_text())
    missing = [link for link in links if "://" not in link and not (doc.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("doc", DOCS, ids=lambda path: path.name)
def test_toml_blocks_parse(doc: Path):
    for block in re.findall(r"```toml\n(.*?)```", doc.read_text(), re.DOTALL):
        assert tomllib.loads(block)
