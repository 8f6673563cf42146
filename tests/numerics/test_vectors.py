"""Our formulas against the official code of the methods."""

from importlib import import_module
from pathlib import Path

from tests.numerics.registry import CHECKS, read

for module in sorted(Path(__file__).parent.glob("check_*.py")):
    import_module(f"tests.numerics.{module.stem}")


KEYS = (Path(__file__).parent / "keys.txt").read_text(encoding="utf-8").splitlines()
"""Every key of the files of reference vectors, a line each."""
WITHOUT_A_CHECK: set[str] = set()
"""What nothing checks yet; the list only ever gets shorter."""


def test_every_key_of_the_reference_vectors_is_checked() -> None:
    wanted = {key for key in KEYS if not key.startswith("#")}
    there = {key for file in sorted((Path(__file__).parent / "vectors").glob("*.json")) for key in read(file)}
    missing = {key for key in wanted if key not in there or key not in CHECKS}
    assert missing - WITHOUT_A_CHECK == set(), "register a function for each in a module check_*.py, and copy its vector"
    assert WITHOUT_A_CHECK - missing == set(), "these are checked by now: take them off the list"


def test_vector(vector_file: Path, vector_key: str) -> None:
    assert vector_key in CHECKS, f"nothing checks the vector {vector_key}: register a function for it in a module check_*.py"
    CHECKS[vector_key](read(vector_file)[vector_key])
