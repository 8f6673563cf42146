"""docs/one_step.md names files that a real step enters, and a step enters few files."""

import json
import re
from pathlib import Path

import pytest

from tests.house.test_docs_paths import ROOMS
from tests.house.test_figures import LIMITS
from tests.support.forked import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "one_step.md").read_text()
CONFIGS = ("tiny/image", "tiny/flow")
FILE = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w/]+\.py)`")


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Config -> the files of mmrl/ that the warm second step of its run enters."""
    program, cache = Path(__file__).parent / "programs" / "step_files.py", str(tmp_path_factory.mktemp("cache"))
    done = run(str(program), *CONFIGS, cwd=ROOT, variables=[{"MMRL_CACHE": cache}])
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: set(files) for name, files in json.loads(done.stdout.splitlines()[-1]).items()}


def test_the_page_names_both_configs():
    assert all(f"`configs/{name}.toml`" in PAGE for name in CONFIGS)


def test_every_file_on_the_page_is_entered_by_a_step(entered: dict[str, set[str]]):
    named = {f"mmrl/{path}" for path in FILE.findall(PAGE)}
    assert len(named) > 30
    assert sorted(named - set().union(*entered.values())) == []


def test_a_step_enters_few_files(entered: dict[str, set[str]]):
    files = entered["tiny/image"]
    assert len(files) <= LIMITS["files that a step of tiny/image enters"], "\n".join(sorted(files))
