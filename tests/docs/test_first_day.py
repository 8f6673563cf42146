"""The three jobs of docs/how_to/first_day.md, by the commands that a reader copies, in an empty folder of a fresh clone."""

import io
import json
import runpy
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import typer

from mmrl.app.cli import app
from tests.support.blocks import ROOT, blocks, commands

PAGE = "docs/how_to/first_day.md"
JOBS = {"boxes": "1. Grounding", "pictures": "2. Pictures", "clips": "3. Clips"}
EXPECTED = {
    "boxes": ("iou", "model.safetensors"),
    "pictures": ("colourful", "model_index.json"),
    "clips": ("temporal_iou", "model.safetensors"),
}


def lines_of(heading: str) -> list[list[str]]:
    """The commands below a heading of the page, in their order."""
    chapter = next(text for text in (ROOT / PAGE).read_text().split("\n## ") if text.startswith(heading))
    shell = [block.text for block in blocks() if block.doc == PAGE and block.language == "sh" and block.text in chapter]
    return [words for text in shell for words in commands(text)]


def run(words: list[str]) -> tuple[int, str]:
    """Exit code and output of a command of mmrl, run in this process as the program runs it."""
    assert words[0] == "mmrl", words
    with redirect_stdout(io.StringIO()) as output:
        try:
            typer.main.get_command(app).main(args=words[1:], prog_name="mmrl", standalone_mode=False)
        except typer.Exit as left:
            return left.exit_code, output.getvalue()
    return 0, output.getvalue()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy files, made by the page's own first command."""
    folder = tmp_path_factory.mktemp("first_day")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["toy_day.py", "own"])
        runpy.run_path(str(ROOT / "examples" / "toy_day.py"), run_name="__main__")
    return folder


@pytest.fixture
def at_desk(desk: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("MMRL_CACHE", str(desk / "cache"))
    yield desk


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_by_copying_its_commands(job: str, at_desk: Path):
    said = dict[str, str]()
    for words in lines_of(JOBS[job]):
        code, output = run(words)
        assert code == 0, f"{' '.join(words)}: {output}"
        said[words[1]] = output
    reward, file = EXPECTED[job]
    config = tomllib.loads((at_desk / "own" / f"{job}.toml").read_text())
    assert config["save_every"] == config["evaluate_every"] == 1 and config["evaluation"]["data"]["path"].startswith("own/")
    assert config["policy"]["dtype"] == "float32" and "lora" not in config["policy"]
    metrics = [json.loads(line) for line in (at_desk / "runs" / job / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if f"reward/{reward}" in line] == [1, 2]
    assert [line["step"] for line in metrics if f"eval/{reward}" in line] == [0, 1, 2]
    assert f"eval/{reward}" in said["eval"] and "million weights" in said["plan"]
    assert (at_desk / "runs" / job / "report.html").stat().st_size > 1000
    assert list((at_desk / "own" / f"{job}_model").rglob(file))


def test_every_command_of_the_page_belongs_to_a_job():
    found = [words for heading in JOBS.values() for words in lines_of(heading)]
    listed = [words for block in blocks() if block.doc == PAGE and block.language == "sh" for words in commands(block.text)]
    assert listed == [["python", "examples/toy_day.py", "own"], *found] and len(found) == 22
