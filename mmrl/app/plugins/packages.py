"""Packages that a reward imports only when it is called, found before: by reading its file, not by running it."""

import ast
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

REWARD_PACKAGES = ("math_verify", "onnxruntime", "pycocotools", "rapidfuzz", "rapidocr", "rapidocr_onnxruntime", "rouge_score")
"""Packages of the extra `rewards`."""
MAYBE = (ast.If, ast.IfExp, ast.Try, ast.TryStar, ast.Match)
"""An import inside of these may never be reached, or is caught."""


def refuse_missing_packages(file: Path, wanted: str) -> None:
    """Look at the imports inside a callable of a file, and inside the functions and classes of the file that it names.

    Raises ValueError where one that is reached on every path is of a package that is not installed.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    known = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    waiting, reached = [wanted], set[str]()
    while waiting:
        name = waiting.pop()
        if name in known and name not in reached:
            reached.add(name)
            waiting += [node.id for node in ast.walk(known[name]) if isinstance(node, ast.Name)]
    for name in sorted(reached):
        for package, line in imports(known[name]):
            if not is_installed(package):
                raise ValueError(f"{file}, line {line} imports {package!r}, which is not installed: {remedy(package)}")


def imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Package and line of every import below a node that is reached on every path."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Import):
            yield from ((alias.name.partition(".")[0], inner.lineno) for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom) and inner.module and not inner.level:
            yield inner.module.partition(".")[0], inner.lineno
        elif isinstance(inner, ast.Call) and named_package(inner):
            yield named_package(inner), inner.lineno
        if not isinstance(inner, MAYBE) and not (isinstance(inner, ast.With) and "suppress" in ast.unparse(inner.items[0])):
            yield from imports(inner)


def named_package(call: ast.Call) -> str:
    """The package of `import_package("cv2", ...)`; empty for any other call."""
    is_import = isinstance(call.func, ast.Name) and call.func.id == "import_package" and call.args
    first = call.args[0] if is_import else None
    return first.value.partition(".")[0] if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def is_installed(package: str) -> bool:
    """True if it can be imported; does not import it."""
    try:
        return package in sys.stdlib_module_names or find_spec(package) is not None
    except ValueError:
        # loaded already, by something that left it no spec
        return True


def remedy(package: str) -> str:
    return 'pip install "mmrl[rewards]"' if package in REWARD_PACKAGES else "pip install it first"
