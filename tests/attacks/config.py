"""Attacks by configs."""

from functools import partial
from pathlib import Path

from tests.attacks.attack import Attack, expect_sentence, run_mmrl


def override(words: tuple[str, ...], setting: str, folder: Path) -> str:
    return expect_sentence(run_mmrl(["plan", "tiny/image", setting], folder), *words)


ATTACKS = [
    Attack("config", "an unknown key", partial(override, ("optimizer.lrr", "lr"), "optimizer.lrr=1")),
]
