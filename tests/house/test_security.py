"""SECURITY.md's promises about code that is never run, looked for in all shipped files."""

import ast
import re
from pathlib import Path

from tests.support.each import for_each

ROOT = Path(__file__).parents[2]
FOLDERS = ("mmrl", "rewards", "datasets", "environments", "benchmarks", "examples")
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
OWN_PROCESSES = {"mmrl/runtime/workers.py"}
"""Unpickles what a process it started, or that started it, wrote into a pipe."""
DATA_ONLY = {"mmrl/data/layouts/refer.py"}
"""Reads a published data set that is a pickle, with an unpickler that refuses every class and function."""
PLUG_INS = {"mmrl/app/plugins/resolve.py", "mmrl/runtime/workers.py"}
"""Run files that the user named, here and in a process of its own."""
LOCKED = {"mmrl/runtime/sandbox/worker.py"}
"""Runs a model's code, in a process that has locked itself."""
CLONES = {"benchmarks/pictures_vs_scripts.py"}
"""Runs lines of a script in a clone that the user named."""
CLIENTS = {"mmrl/runtime/net/fetch.py", "mmrl/runtime/workers.py", "mmrl/serving/guard.py"}
CLIENTS |= {"mmrl/engine/server.py", "mmrl/engine/worker/weight_group.py", "mmrl/app/export/export.py"}
"""Speak with servers that a config names, or with processes of their own."""


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    """Every call of a file, by the dotted name of what is called."""
    return [(dotted(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def dotted(node: ast.expr) -> str:
    """The name of what is called, with a dot in front where it belongs to something without one."""
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def top_imports(tree: ast.AST) -> set[str]:
    """Top packages that a file imports anywhere."""
    nodes = list(ast.walk(tree))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.partition(".")[0] for name in names} | {name for name in names if name.startswith("urllib.")}


def argument(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(word.value) for word in call.keywords if word.arg == name), None)


def complaints(source: str, name: str) -> list[str]:
    """Everything a file does that SECURITY.md says no file does."""
    tree = ast.parse(source)
    found: list[str] = []
    for function, call in calls(tree):
        unpickles = re.fullmatch(r"(pickle|cloudpickle|dill|joblib|marshal|shelve)\.(loads?|open|Unpickler)", function)
        wrong = {
            "torch.load without weights_only": function == "torch.load" and argument(call, "weights_only") != "True",
            "allow_pickle": argument(call, "allow_pickle") not in (None, "False"),
            "unpickles": unpickles is not None and name not in OWN_PROCESSES,
            "runs text": function in ("eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load")
            and name not in LOCKED | CLONES,
            "a shell": argument(call, "shell") is not None,
            "runs a file": function.endswith("exec_module") and name not in PLUG_INS,
            "runs a module": function.startswith("runpy."),
            "trust_remote_code": argument(call, "trust_remote_code") == "True",
            "unpacks": function.endswith(("unpack_archive", ".extractall", "torch.hub.load")),
        }
        found += [f"{call.lineno}: {what}" for what, is_wrong in wrong.items() if is_wrong]
    unpicklers = [
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and "pickle.Unpickler" in map(ast.unparse, node.bases)
    ]
    found += [f"{node.lineno}: an unpickler" for node in unpicklers if name not in DATA_ONLY]
    if name.startswith("mmrl/") and name not in CLIENTS:
        foreign = {"socket", "httpx", "requests", "aiohttp", "ftplib", "urllib.request", "urllib.error"} & top_imports(tree)
        found += [f"speaks with the network by {module}" for module in sorted(foreign)]
    return found


@for_each("file", FILES, ids=name_of)
def test_no_file_is_read_in_a_way_that_runs_it(file: Path):
    assert complaints(file.read_text(encoding="utf-8"), name_of(file)) == []


@for_each(
    "source",
    [
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f, allow_pickle=True)",
        "pickle.loads(b)",
        "eval(x)",
        "subprocess.run(x, shell=True)",
        "spec.loader.exec_module(m)",
        "Model.from_pretrained(x, trust_remote_code=True)",
        "tarfile.open(f).extractall(d)",
        "class A(pickle.Unpickler): pass",
        "def f():\n    import urllib.request",
        "from socket import socket",
    ],
)
def test_each_of_these_would_be_found(source: str):
    assert len(complaints(source, "mmrl/any.py")) == 1


def test_every_test_that_security_names_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 8
    for path, test in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, f"{path}::{test}"
