"""Options, order and summary of the whole test suite; pytest reads options only from the root."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import type_checks

if type_checks.wanted(os.environ):
    type_checks.install()
LEFT_OUT = pytest.StashKey[Counter[str]]()
"""Mark -> how many tests that carry it were left out by -m."""
MARKS = ("gpu", "evidence", "slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vectors", type=Path, help="check the vectors of this file instead of those in tests/numerics/vectors")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: what runs last is short, and no core is left idle for long."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        carried = [mark for mark in MARKS if item.get_closest_marker(mark)]
        item.config.stash[LEFT_OUT][carried[0] if carried else "other"] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All of xdist's workers collect the same tests."""
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left out", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what -m left out, and what its mark means."""
    meaning = dict(line.split(": ", 1) for line in config.getini("markers") if ": " in line)
    for mark, number in sorted(config.stash[LEFT_OUT].items()):
        terminalreporter.write_line(f"LEFT OUT [{number}] {mark}: {meaning.get(mark, 'not asked for')}")
