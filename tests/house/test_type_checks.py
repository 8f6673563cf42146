"""What tests are made with: types and shapes checked at every call, as in make check, and tests that look at many things."""

import ast
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef, Literal

import pytest
import torch
from jaxtyping import Float, TypeCheckError

from mmrl.answers.boxes.box import Box
from tests.changed import CHECKED
from tests.support.each import for_each
from tests.support.refused import refused
from tests.support.type_checks import CHECK, Finder, Marker, checked, names_array, wanted

WRONG: Any = "a word"
ARRAY: Any = Float[torch.Tensor, " n"]


def with_checks(name: str) -> ModuleType:
    """A module as it is imported where types are checked, beside the one that other tests use."""
    parent = __import__(name.rpartition(".")[0], fromlist=["__path__"])
    spec = Finder().find_spec(name, parent.__path__)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_environment_decides():
    assert wanted(CHECKED) and not wanted({}) and not wanted({"MMRL_CHECK_TYPES": "0"})
    number: Any = 3
    if wanted(os.environ):
        refused("violates type hint", Box, 0, 0, 1, 1, error=TypeError, label=number)
    else:
        assert Box(0, 0, 1, 1, label=number).label == number


def test_letters_of_shapes_hold_for_one_call():
    x = torch.zeros(2, 3)
    with pytest.raises(TypeCheckError):
        with_checks("mmrl.flow.path").add_noise(x, x, torch.zeros(5, 7, 9))


def test_fields_of_arrays_have_their_shapes():
    credit = with_checks("mmrl.core.types").Credit(torch.zeros(2, 3), torch.ones(2, dtype=torch.bool))
    with pytest.raises(TypeCheckError):
        replace(credit, keep=torch.ones(4, dtype=torch.bool))


def test_plain_fields_have_their_types():
    refused("violates type hint", with_checks("mmrl.answers.boxes.box").Box, WRONG, 0, 1, 1, error=TypeError)


def test_what_is_returned_is_checked():
    def wrong() -> int:
        return WRONG

    refused("violates type hint", checked(wrong), error=TypeError)


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


@for_each("number, word", [(1, "a"), (2, "b")])
def test_fixtures_are_given_to_every_case(number: int, word: str, tmp_path: Path):
    (tmp_path / word).write_text(str(number))
    assert len(list(tmp_path.iterdir())) == number


def test_the_faults_of_all_cases_are_told():
    @for_each("number", range(5), ids=lambda number: f"case {number}")
    def look(number: int) -> None:
        if number == 3:
            raise KeyError("three")
        assert number % 2 == 0, f"{number} is odd"

    told = refused("2 of 5 are wrong", look, error=pytest.fail.Exception)
    lines = str(told.value).splitlines()
    assert [line for line in lines if line.startswith("case 1: 1 is odd")]
    assert [line for line in lines if line.startswith("case 3: KeyError: 'three' (test_type_checks.py:")]


def test_what_fails_inside_a_case_is_a_fault_of_it():
    @for_each("number", [0])
    def look(number: int) -> None:
        with pytest.raises(ValueError, match="x"):
            pass

    refused(r"0: DID NOT RAISE.*ValueError", look, error=pytest.fail.Exception)


def test_nothing_to_look_at_is_a_fault():
    look = for_each("number", [])(lambda number: None)
    refused("nothing to look at", look, error=AssertionError)
