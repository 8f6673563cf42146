"""Types and shapes of mmrl checked at every call while tests run: `install()` before mmrl is first imported.

They are a quarter to a half of a test whose time goes into Python, so `make test` does without: `make check` and `make mutation`
set MMRL_CHECK_TYPES=1.

jaxtyping binds shapes to letters, which costs some 10 microseconds a call; only what names an array pays for it. Everything
else is checked by beartype alone. An inner function is made anew at every call of the outer one, and so would its check be.
"""

import ast
import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source
from types import CodeType, ModuleType
from typing import Annotated, Any, ForwardRef, Literal, get_args, get_origin
from unittest.mock import patch

VARIABLE = "MMRL_CHECK_TYPES"
"""Environment variable: 1 has types checked."""
ARRAYS = {"Bool", "Float", "Float64", "Int", "UInt8"}
"""The kinds of arrays that mmrl's annotations name."""
CHECK = "_checked"
"""The name that modules know `checked` by."""
VERSION = "checked4"
"""Part of the names of compiled files; another one wherever this file compiles modules otherwise."""


def checked(thing: Any) -> Any:
    """A function, or a dataclass's fields, with types checked at every call, and shapes where arrays are named.

    What beartype cannot read is left to pyright.
    """
    from beartype import BeartypeConf, beartype
    from beartype.roar import BeartypeException
    from jaxtyping import jaxtyped

    # jaxtyping's errors are TypeErrors as well; an int may stand for a float, as in every annotation (PEP 484)
    check = beartype(conf=BeartypeConf(violation_type=TypeError, is_pep484_tower=True))
    if any(names_array(hint) for hint in inspect.get_annotations(thing).values()):
        return jaxtyped(typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))(thing)
    try:
        if not isinstance(thing, type):
            return check(thing)
        if "__init__" in vars(thing):
            setattr(thing, "__init__", check(thing.__init__))  # noqa: B010 - pyright knows no such assignment
    except BeartypeException:
        pass
    return thing


def names_array(hint: object) -> bool:
    """Does an annotation name an array, or a class by a string, which jaxtyping forgives where it is not imported?"""
    from jaxtyping import AbstractArray

    if isinstance(hint, str | ForwardRef) or (isinstance(hint, type) and issubclass(hint, AbstractArray)):
        return True
    if get_origin(hint) in (Literal, Annotated):
        return get_origin(hint) is Annotated and names_array(get_args(hint)[0])
    parts = hint if isinstance(hint, list) else get_args(hint)
    return any(names_array(part) for part in parts)


class Marker(ast.NodeTransformer):
    """Puts a check on the functions and dataclasses of a module."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        at = next((i for i, child in enumerate(node.body) if not is_before_imports(child)), len(node.body))
        node.body.insert(at, ast.ImportFrom(module=__name__, names=[ast.alias(checked.__name__, CHECK)], level=0))
        return ast.fix_missing_locations(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        if any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
            node.decorator_list.insert(0, ast.Name(CHECK, ast.Load()))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        mark(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        """Left as it is: around a check, servers no longer see that it is a coroutine."""
        return node


def mark(node: ast.FunctionDef) -> None:
    """Check a function with annotations, and the inner ones that name arrays."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef):
            annotations = annotations_of(inner)
            names = {part.id for one in annotations for part in ast.walk(one) if isinstance(part, ast.Name)}
            if names & ARRAYS or (inner is node and annotations):
                inner.decorator_list.append(ast.Name(CHECK, ast.Load()))


def annotations_of(node: ast.FunctionDef) -> Sequence[ast.expr]:
    args = node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    found = [arg.annotation for arg in every if arg is not None and arg.annotation is not None]
    return [*found, node.returns] if node.returns is not None else found


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


def wanted(environment: Mapping[str, str]) -> bool:
    return environment.get(VARIABLE, "0") == "1"


def install() -> None:
    assert "mmrl" not in sys.modules, "mmrl was imported before its checks were in place"
    sys.meta_path.insert(0, Finder())
