"""Types and shapes of mmrl checked at every call while tests run: `install()` before mmrl is first imported.

jaxtyping binds shapes to letters, which costs some 20 microseconds a call; only what names an array pays for it. Everything
else is checked by beartype alone. An inner function is made anew at every call of the outer one, and so would its check be.
"""

import ast
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source
from types import CodeType, ModuleType
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T", bound=Callable[..., Any])
ARRAYS = {"Bool", "Float", "Float64", "Int", "UInt8"}
"""The kinds of arrays that mmrl's annotations name."""
NAMES = {True: "_check_shapes", False: "_check_types"}
"""Does it name arrays? -> the decorator."""
VERSION = "checked1"
"""Part of the names of compiled files; another one wherever this file compiles modules otherwise."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_shapes(thing: T) -> T:
    """Types, and shapes by letters that hold for one call, of a function or of a dataclass's fields."""
    from beartype import beartype
    from jaxtyping import jaxtyped

    return jaxtyped(typechecker=beartype)(thing)


def check_types(thing: T) -> T:
    """Types alone, of a function or of a dataclass's fields; what beartype cannot read is left to pyright."""
    from beartype import beartype
    from beartype.roar import BeartypeException

    try:
        if not isinstance(thing, type):
            return beartype(thing)
        if "__init__" in vars(thing):
            setattr(thing, "__init__", beartype(thing.__init__))  # noqa: B010 - pyright knows no such assignment
    except BeartypeException:
        pass
    return thing


class Marker(ast.NodeTransformer):
    """Puts a check on the functions and dataclasses of a module."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        at = next((i for i, child in enumerate(node.body) if not is_before_imports(child)), len(node.body))
        names = [ast.alias(name.removeprefix("_"), name) for name in NAMES.values()]
        node.body.insert(at, ast.ImportFrom(module=__name__, names=names, level=0))
        return ast.fix_missing_locations(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        fields = [child.annotation for child in node.body if isinstance(child, ast.AnnAssign)]
        if any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
            node.decorator_list.insert(0, ast.Name(NAMES[names_arrays(fields)], ast.Load()))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        mark(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        mark(node)
        return node


def mark(node: Function) -> None:
    """Check a function, and the inner ones that name arrays."""
    for inner in ast.walk(node):
        if isinstance(inner, Function):
            annotations = annotations_of(inner)
            has_arrays = names_arrays(annotations)
            if has_arrays or (inner is node and annotations):
                inner.decorator_list.append(ast.Name(NAMES[has_arrays], ast.Load()))


def annotations_of(node: Function) -> Sequence[ast.expr]:
    args = node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    found = [arg.annotation for arg in every if arg is not None and arg.annotation is not None]
    return [*found, node.returns] if node.returns is not None else found


def names_arrays(annotations: Sequence[ast.expr]) -> bool:
    """Does one of them name an array, or a class by a string, which only jaxtyping forgives where it is not imported?"""
    return any(is_array_or_text(one) for one in annotations)


def is_array_or_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ARRAYS
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
        return False
    return any(is_array_or_text(child) for child in ast.iter_child_nodes(node))


def is_before_imports(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


class Loader(SourceFileLoader):
    """Compiles a module with its checks, into a file beside the one without."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        tree = ast.parse(data, path)
        return compile(Marker().visit(tree), path, "exec", dont_inherit=True, optimize=_optimize)

    def exec_module(self, module: ModuleType) -> None:
        with patch("importlib._bootstrap_external.cache_from_source", partial(cache_from_source, optimization=VERSION)):
            super().exec_module(module)


class Finder(MetaPathFinder):
    """Finds the modules of mmrl for `Loader`."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name.partition(".")[0] == "mmrl" else None
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = Loader(spec.loader.name, spec.loader.path)
            return spec
        return None


def install() -> None:
    assert "mmrl" not in sys.modules, "mmrl was imported before its checks were in place"
    sys.meta_path.insert(0, Finder())
