"""While tests run, types and shapes of mmrl are checked at every call."""

import ast
from dataclasses import replace
from typing import Any

import pytest
import torch
from beartype.roar import BeartypeCallHintParamViolation, BeartypeCallHintReturnViolation
from jaxtyping import TypeCheckError

from mmrl.answers.boxes.box import Box
from mmrl.core.types import Credit
from mmrl.flow.path import add_noise
from tests.support.type_checks import Marker, check_types

WRONG: Any = "a word"


def test_letters_of_shapes_hold_for_one_call():
    x = torch.zeros(2, 3)
    with pytest.raises(TypeCheckError):
        add_noise(x, x, torch.zeros(5, 7, 9))


def test_fields_of_arrays_have_their_shapes():
    credit = Credit(torch.zeros(2, 3), torch.ones(2, dtype=torch.bool))
    with pytest.raises(TypeCheckError):
        replace(credit, keep=torch.ones(4, dtype=torch.bool))


def test_plain_fields_have_their_types():
    with pytest.raises(BeartypeCallHintParamViolation):
        Box(WRONG, 0, 1, 1)


def test_what_is_returned_is_checked():
    def wrong() -> int:
        return WRONG

    with pytest.raises(BeartypeCallHintReturnViolation):
        check_types(wrong)()


@pytest.mark.parametrize(
    ("source", "check"),
    [
        ("def f(x: Float[Tensor, 'n']): ...", "_check_shapes"),
        ("def f(x: 'Later') -> None: ...", "_check_shapes"),
        ("def f(x: Literal['a', 'b']) -> int: ...", "_check_types"),
        ("async def f(x: list[int]): ...", "_check_types"),
        ("class C:\n    @property\n    def f(self) -> int: ...", "_check_types"),
        ("@dataclass(frozen=True)\nclass C:\n    x: Int[Tensor, 'n']", "_check_shapes"),
        ("@dataclass\nclass C:\n    x: int", "_check_types"),
    ],
)
def test_who_checks_what(source: str, check: str):
    marked = ast.unparse(Marker().visit(ast.parse(source)))
    assert f"@{check}\n" in marked and marked.count("@_check") == 1


def test_inner_functions_are_checked_for_arrays_alone():
    source = "def f(x: int):\n    def g(y: int): ...\n    def h(z: Bool[Tensor, 'n']): ..."
    assert ast.unparse(Marker().visit(ast.parse(source))).count("@_check") == 2
