"""core stays a vocabulary: its lines, files and protocols, and the fields of a request, have limits."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from mmrl.core.types import Request

CORE = sorted((Path(__file__).parents[2] / "mmrl" / "core").rglob("*.py"))
LIMITS = {"lines": 1711, "files": 9, "protocols": 18, "fields of Request": 11}


def is_protocol(node: ast.AST) -> bool:
    """Does a class derive from Protocol itself, with or without parameters?"""
    if not isinstance(node, ast.ClassDef):
        return False
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)


def figures() -> dict[str, int]:
    texts = [file.read_text() for file in CORE]
    return {
        "lines": sum(len(text.splitlines()) for text in texts),
        "files": len(CORE),
        "protocols": sum(map(is_protocol, (node for text in texts for node in ast.walk(ast.parse(text))))),
        "fields of Request": len(fields(Request)),
    }


@pytest.mark.parametrize("name", LIMITS)
def test_within_limit(name: str):
    found = figures()[name]
    assert found <= LIMITS[name], f"{name}: {found}; move what one room alone uses to that room"


def test_protocols_are_found():
    tree = ast.parse("class A(Protocol): ...\nclass B(Protocol[T]): ...\nclass C(A): ...")
    assert [is_protocol(node) for node in tree.body] == [True, True, False]
