"""Files of datasets/suites and environments/foreign as modules, for what is in them besides what their name means."""

from pathlib import Path
from typing import Any

from mmrl.app.plugins.resolve import FOREIGN, SUITES, execute, shipped_folder

GOLDEN = Path(__file__).parents[1] / "plugins" / "suites" / "golden"
"""Made-up answers, and what official code said of them."""


def suite_module(name: str) -> Any:
    return execute(shipped_folder(SUITES).resolve() / f"{name}.py", SUITES)


def foreign_module(name: str) -> Any:
    return execute(shipped_folder(FOREIGN).resolve() / f"{name}.py", FOREIGN)
