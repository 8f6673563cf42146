"""One test per key of a vector file: the file in --vectors, or all files in the folder vectors."""

from pathlib import Path

import pytest

from tests.numerics.registry import read

FOLDER = Path(__file__).parent / "vectors"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "vector_key" not in metafunc.fixturenames:
        return
    given: Path | None = metafunc.config.getoption("--vectors")
    if given is not None and not given.is_file():
        raise pytest.UsageError(f"--vectors {given} is not a file")
    files = sorted(FOLDER.glob("*.json")) if given is None else [given]
    cases = [pytest.param(file, key, id=key) for file in files for key in read(file)]
    metafunc.parametrize(("vector_file", "vector_key"), cases)
