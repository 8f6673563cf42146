"""While tests run, types and shapes of mmrl are checked at every call."""

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ForwardRef, Literal

import pytest
import torch
from jaxtyping import Float, TypeCheckError

from mmrl.answers.boxes.box import Box
from mmrl.core.types import Credit
from mmrl.flow.path import add_noise
from tests.support.type_checks import CHECK, Marker, checked, names_array

WRONG: Any = "a word"
ARRAY: Any = Float[torch.Tensor, " n"]


def test_letters_of_shapes_hold_for_one_call():
    x = torch.zeros(2, 3)
    with pytest.raises(TypeCheckError):
        add_noise(x, x, torch.zeros(5, 7, 9))


def test_fields_of_arrays_have_their_shapes():
    credit = Credit(torch.zeros(2, 3), torch.ones(2, dtype=torch.bool))
    with pytest.raises(TypeCheckError):
        replace(credit, keep=torch.ones(4, dtype=torch.bool))


def test_plain_fields_have_their_types():
    with pytest.raises(TypeError, match="violates type hint"):
        Box(WRONG, 0, 1, 1)


def test_what_is_returned_is_checked():
    def wrong() -> int:
        return WRONG

    with pytest.raises(TypeError, match="violates type hint"):
        checked(wrong)()


@pytest.mark.parametrize(
    ("hint", "has_shapes"),
    [
        (ARRAY, True),
        (tuple[ARRAY, dict[str, int]], True),
        (Callable[[ARRAY], int], True),
        (ARRAY | float, True),
        ("Later", True),
        (list[ForwardRef("Later")], True),
        (Literal["n"], False),
        (dict[str, tuple[int, ...]] | None, False),
    ],
)
def test_shapes_are_bound_where_arrays_are_named(hint: object, has_shapes: bool):
    assert names_array(hint) == has_shapes


@pytest.mark.parametrize(
    "source",
    [
        "def f(x: int): ...",
        "async def f(x: int): ...\ndef g() -> int: ...",
        "class C:\n    @property\n    def f(self) -> int: ...",
        "@dataclass(frozen=True)\nclass C:\n    x: int",
        "def f(x):\n    def g(y: int): ...\n    def h(z: Bool[Tensor, 'n']): ...",
    ],
)
def test_functions_dataclasses_and_inner_functions_of_arrays_are_marked(source: str):
    assert ast.unparse(Marker().visit(ast.parse(source))).count(f"@{CHECK}") == 1
