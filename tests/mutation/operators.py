"""Small mistakes that a programmer makes, as changes of one place in the text of a function."""

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Slip(NamedTuple):
    """One changed node: which kind of mistake, and the text that stands there afterwards."""

    operator: str
    node: ast.AST
    text: str


ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"}
LOGIC: dict[type[ast.operator], str] = {ast.BitAnd: "|", ast.BitOr: "&"}
COMPARISONS: dict[type[ast.cmpop], Sequence[str]] = {
    ast.Lt: ("<=", ">"),
    ast.LtE: ("<", ">="),
    ast.Gt: (">=", "<"),
    ast.GtE: (">", "<="),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
OTHER_NAMES = {
    "max": "min", "min": "max", "any": "all", "all": "any", "argmax": "argmin", "argmin": "argmax",
    "ceil": "floor", "floor": "ceil", "zeros_like": "ones_like", "ones_like": "zeros_like", "zeros": "ones", "ones": "zeros",
    "maximum": "minimum", "minimum": "maximum",
}  # fmt: skip
REMOVABLE = {"abs", "clamp", "detach", "exp", "log", "sqrt", "clone", "cumsum", "sort", "strip", "lower", "neg", "square", "flip"}
"""Methods whose result may stand where their object stood."""


UNORDERED = {"isinstance", "issubclass", "map", "zip", "getattr", "partial", "filter"}
"""Calls that with swapped arguments cannot even start."""
FORMAL = {"strict", "name", "daemon"}
"""Keywords without which a call does the same."""


def slips(node: ast.AST) -> Iterator[Slip]:
    """The mistakes that can be made at this node."""
    for maker in (slip_in_arithmetic, slip_in_comparison, slip_in_logic, slip_in_constant, slip_in_call, slip_in_statement):
        yield from maker(node)


def slip_in_arithmetic(node: ast.AST) -> Iterator[Slip]:
    """Another sign, a product for a quotient, a factor or summand forgotten."""
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not (is_sequence(node.left) or is_sequence(node.right)):
        left, right = bracket(node.left), bracket(node.right)
        yield Slip("arithmetic", node, f"({left} {ARITHMETIC[type(node.op)]} {right})")
        yield Slip("forgotten factor" if isinstance(node.op, ast.Mult | ast.Div) else "forgotten summand", node, left)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield Slip("sign", node, ast.unparse(node.operand))


def slip_in_comparison(node: ast.AST) -> Iterator[Slip]:
    """The edge counted in or out, or the comparison the other way round."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in COMPARISONS[type(node.ops[0])]:
            yield Slip("comparison", node, f"({bracket(node.left)} {other} {bracket(node.comparators[0])})")


def slip_in_logic(node: ast.AST) -> Iterator[Slip]:
    """And for or, a forgotten not, a condition that always or never holds."""
    if isinstance(node, ast.BoolOp):
        word = "or" if isinstance(node.op, ast.And) else "and"
        yield Slip("logic", node, f"({f' {word} '.join(bracket(value) for value in node.values)})")
        yield Slip("logic", node, bracket(node.values[0]))
    if isinstance(node, ast.BinOp) and type(node.op) in LOGIC:
        left, right = bracket(node.left), bracket(node.right)
        yield Slip("logic", node, f"({left} {LOGIC[type(node.op)]} {right})")
        yield Slip("logic", node, left)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield Slip("logic", node, bracket(node.operand))
    if isinstance(node, ast.IfExp):
        yield Slip("branch", node, bracket(node.body))
        yield Slip("branch", node, bracket(node.orelse))
    if isinstance(node, ast.If | ast.While) and not (isinstance(node, ast.While) and is_true(node.test)):
        yield Slip("branch", node.test, "False")
        if isinstance(node, ast.If):
            yield Slip("branch", node.test, "True")


def slip_in_constant(node: ast.AST) -> Iterator[Slip]:
    """One more or less, another number, true for false."""
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield Slip("constant", node, str(not node.value))
    elif isinstance(node.value, int):
        yield Slip("off by one", node, str(node.value + 1))
    elif isinstance(node.value, float) and node.value:
        yield Slip("constant", node, str(2 * node.value))


def slip_in_call(node: ast.AST) -> Iterator[Slip]:
    """Swapped arguments of one form, a forgotten one, a neighbour's name, a forgotten method or slice."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        yield Slip("slice", node, ast.unparse(node.value))
    if not isinstance(node, ast.Call):
        return
    positional = [ast.unparse(argument) for argument in node.args]
    keywords = [ast.unparse(keyword) for keyword in node.keywords]
    called = ast.unparse(node.func)
    name = called.rpartition(".")[2]
    for i, (first, second) in enumerate(pairwise(positional)):
        if first != second and type(node.args[i]) is type(node.args[i + 1]) and name not in UNORDERED:
            swapped = [*positional[:i], second, first, *positional[i + 2 :]]
            yield Slip("swapped arguments", node, f"{called}({', '.join([*swapped, *keywords])})")
    for i in [i for i, keyword in enumerate(node.keywords) if keyword.arg not in FORMAL]:
        yield Slip("forgotten argument", node, f"{called}({', '.join([*positional, *keywords[:i], *keywords[i + 1 :]])})")
    if name in OTHER_NAMES:
        yield Slip("neighbour", node.func, called.removesuffix(name) + OTHER_NAMES[name])
    if isinstance(node.func, ast.Attribute) and name in REMOVABLE:
        yield Slip("forgotten method", node, bracket(node.func.value))


def slip_in_statement(node: ast.AST) -> Iterator[Slip]:
    """A forgotten statement: calls for their effect, and what changes something that exists."""
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    stored = isinstance(node, ast.Assign) and all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if called or stored or isinstance(node, ast.AugAssign | ast.Continue | ast.Break):
        yield Slip("forgotten statement", node, "pass")


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_sequence(node: ast.AST) -> bool:
    return is_text(node) or isinstance(node, ast.List | ast.Tuple | ast.ListComp)


def is_true(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def bracket(node: ast.AST) -> str:
    """The node's text, in brackets unless it binds tightly by itself."""
    text = ast.unparse(node)
    tight = isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript | ast.Tuple | ast.List)
    return text if tight else f"({text})"


def is_spared(node: ast.AST) -> bool:
    """True for what no test need look at: raised messages, annotations, texts, warnings."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.arg):
        return True
    return isinstance(node, ast.Call) and bool(re.search(r"warn|logg|cast\b", ast.unparse(node.func)))


def walk(function: Function) -> Iterator[list[ast.AST]]:
    """Every node of a function's body that may be changed, after those that hold it: [statement, ..., node]."""

    def below(node: ast.AST, path: list[ast.AST]) -> Iterator[list[ast.AST]]:
        if is_spared(node) or isinstance(node, Function | ast.ClassDef):
            return
        yield [*path, node]
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in ("annotation", "returns", "decorator_list"):
                    yield from below(child, [*path, node])

    for statement in function.body:
        if not (isinstance(statement, ast.Expr) and is_text(statement.value)):
            yield from below(statement, [])


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """All functions of a module by their dotted names, methods and inner ones too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            yield from functions(node, prefix)
