"""Options of the whole test suite; pytest reads them only from the root."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vectors", type=Path, help="check the vectors of this file instead of those in tests/numerics/vectors")
