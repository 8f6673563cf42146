"""`make check` runs the tests of the rooms that changed; here on a small tree of its own."""

import subprocess
from pathlib import Path

import pytest

from tests.changed import changed_files, places_to_run

TREE = {
    "mmrl/__init__.py": "",
    "mmrl/core/__init__.py": "",
    "mmrl/core/types.py": "",
    "mmrl/core/ranks.py": "",
    "mmrl/algorithms/masks.py": "from mmrl.core.types import Batch\n",
    "mmrl/app/toml/reader.py": "def f():\n    import mmrl.algorithms.masks\n",
    "mmrl/app/cli.py": "from mmrl.core import ranks\n",
    "mmrl/lonely/alone.py": "",
    "tests/core/test_types.py": "",
    "tests/algorithms/test_masks.py": "",
    "tests/app/test_cli.py": "",
    "tests/app/toml/test_keys.py": "",
    "tests/data/test_ranks.py": "from mmrl.core.ranks import Ranks\n",
    "tests/support/fakes.py": "",
    "tests/fuzz/test_fuzz.py": "from tests.support import fakes\n",
    "tests/fuzz/properties.py": "",
    "tests/house/test_layout.py": "",
    "tests/plugins/test_shipped.py": "",
    "tests/refusals/test_refusals.py": "",
    "rewards/iou.py": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("mmrl/core/types.py", ["tests/algorithms", "tests/core", "tests/house"]),
        ("mmrl/core/ranks.py", ["tests/app", "tests/core", "tests/data/test_ranks.py", "tests/house", "tests/refusals"]),
        ("mmrl/algorithms/masks.py", ["tests/algorithms", "tests/app/toml", "tests/house", "tests/refusals"]),
        ("mmrl/app/toml/reader.py", ["tests/app/toml", "tests/house", "tests/refusals"]),
        ("mmrl/app/page.html", ["tests/app", "tests/house", "tests/refusals"]),
        ("mmrl/core/deleted.py", ["tests/core", "tests/house"]),
        ("mmrl/lonely/alone.py", ["tests/house"]),
        ("tests/app/test_cli.py", ["tests/app/test_cli.py", "tests/house"]),
        ("tests/app/test_deleted.py", ["tests/house"]),
        ("tests/fuzz/properties.py", ["tests/fuzz", "tests/house"]),
        ("tests/support/fakes.py", ["tests/fuzz/test_fuzz.py", "tests/house", "tests/support"]),
        ("rewards/iou.py", ["tests/house", "tests/plugins"]),
        ("pyproject.toml", ["tests/house"]),
    ],
)
def test_a_change_has_its_own_room_those_that_import_it_and_files_that_do(tree: Path, path: str, wanted: list[str]):
    assert places_to_run([path], tree) == wanted


def test_a_file_inside_a_folder_that_runs_is_not_named_again(tree: Path):
    assert places_to_run(["tests/app/test_cli.py", "mmrl/app/cli.py"], tree) == ["tests/app", "tests/house", "tests/refusals"]


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"]
    subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=True)


def test_changed_is_what_differs_from_main_or_else_from_the_commit_before(tree: Path):
    git(tree, "init", "-b", "main")
    git(tree, "add", ".")
    git(tree, "commit", "-m", "first")
    assert changed_files(tree) == []
    (tree / "new.py").write_text("")
    (tree / "rewards/iou.py").write_text("x = 1\n")
    assert changed_files(tree) == ["new.py", "rewards/iou.py"]
    git(tree, "add", ".")
    git(tree, "commit", "-m", "second")
    assert changed_files(tree) == ["new.py", "rewards/iou.py"]
    git(tree, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    git(tree, "mv", "mmrl/app/cli.py", "mmrl/app/main.py")
    git(tree, "commit", "-m", "third")
    assert changed_files(tree) == ["mmrl/app/cli.py", "mmrl/app/main.py", "new.py", "rewards/iou.py"]
    git(tree, "update-ref", "refs/remotes/origin/main", "HEAD")
    assert changed_files(tree) == ["mmrl/app/cli.py", "mmrl/app/main.py"]
