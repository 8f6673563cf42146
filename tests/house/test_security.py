"""What SECURITY.md promises about code that is never run, looked for in all shipped files."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(file for folder in ("mmrl", "rewards", "datasets") for file in (ROOT / folder).rglob("*.py"))
OWN_PROCESSES = {"mmrl/core/workers.py", "mmrl/policies/video_worker.py", "mmrl/policies/video_workers.py"}
"""Unpickle what a process they started, or that started them, wrote into a pipe."""


def called(file: Path) -> list[tuple[str, ast.Call]]:
    """Every call of a file, by the text of what is called."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]


def argument(call: ast.Call, name: str) -> object:
    return next((ast.unparse(word.value) for word in call.keywords if word.arg == name), None)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_file_is_read_in_a_way_that_runs_it(file: Path):
    name = file.relative_to(ROOT).as_posix()
    for function, call in called(file):
        if function == "torch.load":
            assert argument(call, "weights_only") == "True", f"{name}:{call.lineno}"
        assert argument(call, "allow_pickle") in (None, "False"), f"{name}:{call.lineno}"
        unpickles = re.fullmatch(r"(pickle|cloudpickle|dill|joblib|marshal|shelve)\.(loads?|open|Unpickler)", function)
        assert not unpickles or name in OWN_PROCESSES, f"{name}:{call.lineno} unpickles"
        assert function not in ("eval", "exec", "os.system", "yaml.load"), f"{name}:{call.lineno}"
        assert argument(call, "shell") is None, f"{name}:{call.lineno}"


def test_every_test_that_security_names_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 8
    for path, test in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, f"{path}::{test}"
