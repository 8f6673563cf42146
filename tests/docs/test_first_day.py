"""The three jobs of docs/how_to/first_day.md, by the commands that a reader copies, in an empty folder of a fresh clone."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.support.blocks import ROOT, blocks, commands
from tests.support.forked import run

PAGE = "docs/how_to/first_day.md"
JOBS = {"boxes": "1. Grounding", "pictures": "2. Pictures", "clips": "3. Clips"}
EXPECTED = {
    "boxes": ("iou", "model.safetensors"),
    "pictures": ("colourful", "model_index.json"),
    "clips": ("temporal_iou", "model.safetensors"),
}
"""Job -> a reward of it, and a file of its export."""
PROGRAM = """
import json, runpy, sys
from mmrl.app.cli import main
for words in json.loads(sys.argv[1]):
    print("$", *words, flush=True)
    if words[0] == "python":
        sys.argv = words[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        continue
    sys.argv = words
    try:
        main()
    except SystemExit as left:
        if left.code:
            sys.exit(f"{words} left with {left.code}")
"""
"""The commands one after the other as the program `mmrl` runs them, in one process: the large libraries are loaded once."""


def page_commands(heading: str = "") -> list[list[str]]:
    """The commands of the page, or of the chapter with this heading, in their order."""
    chapters = (ROOT / PAGE).read_text().split("\n## ")
    text = "".join(chapter for chapter in chapters if chapter.startswith(heading))
    shell = [block.text for block in blocks() if block.doc == PAGE and block.language == "sh" and block.text in text]
    return [words for block in shell for words in commands(block)]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which all jobs were done, and what they printed."""
    folder = tmp_path_factory.mktemp("day")
    (folder / "examples").symlink_to(ROOT / "examples")
    done = run("-c", PROGRAM, json.dumps(page_commands()), cwd=folder, variables=[{"MMRL_CACHE": str(folder / "cache")}])
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    return folder, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_by_copying_its_commands(job: str, day: tuple[Path, str]):
    folder, said = day
    reward, file = EXPECTED[job]
    config = tomllib.loads((folder / "own" / f"{job}.toml").read_text())
    assert config["evaluate_every"] == 1 and "save_every" not in config
    assert config["evaluation"]["data"]["path"].startswith("own/")
    assert config["policy"]["dtype"] == "float32" and "lora" not in config["policy"]
    metrics = [json.loads(line) for line in (folder / "runs" / job / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if f"reward/{reward}" in line] == [1, 2]
    assert [line["step"] for line in metrics if f"eval/{reward}" in line] == [0, 1, 2]
    assert "million weights" in said and f"config: own/{job}.toml" in said
    assert (folder / "runs" / job / "report.html").stat().st_size > 1000
    assert list((folder / "own" / f"{job}_model").rglob(file))


def test_every_command_of_the_page_belongs_to_a_job():
    found = [words for heading in JOBS.values() for words in page_commands(heading)]
    assert page_commands() == [["python", "examples/toy_day.py", "own"], *found] and len(found) == 23
