"""Our formulas against the official code of the methods."""

from importlib import import_module
from pathlib import Path

from tests.numerics.registry import CHECKS, read

for module in sorted(Path(__file__).parent.glob("check_*.py")):
    import_module(f"tests.numerics.{module.stem}")


def test_vector(vector_file: Path, vector_key: str) -> None:
    assert vector_key in CHECKS, f"nothing checks the vector {vector_key}: register a function for it in a module check_*.py"
    CHECKS[vector_key](read(vector_file)[vector_key])
