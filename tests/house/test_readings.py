"""Every reading that is known by name is defined once, in mmrl/core/readings.py."""

import ast
from pathlib import Path

import mmrl.core.readings as readings
from mmrl.core.types import Reading

ROOT = Path(__file__).parents[2]


def constant_readings(source: str) -> list[int]:
    """Lines that call Reading with nothing but constants."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Reading"]
    values = [(call.lineno, [*call.args, *(keyword.value for keyword in call.keywords)]) for call in named]
    return [line for line, given in values if all(isinstance(value, ast.Constant) for value in given)]


def test_no_other_file_of_mmrl_spells_a_reading():
    files = {file: constant_readings(file.read_text()) for file in sorted((ROOT / "mmrl").rglob("*.py"))}
    found = {str(file.relative_to(ROOT)) for file, lines in files.items() if lines}
    assert found == {"mmrl/core/readings.py"}


def test_no_reading_has_two_names():
    known = [value for value in vars(readings).values() if isinstance(value, Reading)]
    assert len(known) == len(set(known)) > 10


def test_a_reading_with_a_view_of_its_own_is_no_constant():
    assert constant_readings('Reading("logprobs", view=view)\nReading("logprobs", "old")') == [2]
