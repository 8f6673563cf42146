"""Attacks by configs: absurd numbers, wrong types, nonsense of every kind. All are refused before anything is loaded.

Those of one override are the named rows of tests/refusals."""

import re
from functools import partial
from pathlib import Path
from typing import Any

from tests.attacks.attack import Attack, expect_done, expect_sentence, refused, run_mmrl
from tests.refusals.table import TABLES, Refusal, refusals

LONG = [
    ("a number of steps with 400 digits", f"steps={10**400}", ("steps", "finite")),
    ("a value of 100,000 letters", "policy.kind=" + "x" * 100_000, ("policy.kind",)),
    ("a key of 100,000 letters", "x" * 100_000 + "=1", ("unknown",)),
]
FILES = {
    "an empty file": (b"", "missing"),
    "a file that is not TOML": (b"steps = = 3", "not TOML"),
    "a binary file": (bytes(range(256)) * 20, "not TOML"),
    "tables 400 deep": (b"a = " + b"[" * 400 + b"]" * 400, "nested"),
    "dotted keys 2,000 deep": (b".".join([b"a"] * 2000) + b" = 1", "nested"),
    "the same table twice": (b"[policy]\n[policy]\n", "not TOML"),
    "algorithm as a word": (b'algorithm = "grpo"', "[algorithm]"),
    "reward as a number": (b'reward = 3\n[policy]\nmodel = "tiny:qwen3_vl"\n[data]\nuse = "digits_grounding"', "reward"),
}
NAMED = {(row.area, row.name): row for table in TABLES for row in refusals(table) if row.name}
VERBS = {"load": "show", "train": "train", "policy": "train"}


def named(row: Refusal, folder: Path) -> str:
    """As in the tests' own process; `mmrl plan` finds what belongs to plug-ins, too."""
    ended = run_mmrl([VERBS.get(row.by, "plan"), row.config, *row.laid(folder)], folder)
    told = expect_sentence(ended)
    assert not (folder / "run").exists() and not list(folder.glob("runs/*")), "a run was begun"
    assert re.search(row.pattern, ended.err), f"the message does not hold {row.pattern!r}: {ended.err[-300:]!r}"
    return told


def loop_of_links(folder: Path) -> None:
    (folder / "a.toml").symlink_to("b.toml")
    (folder / "b.toml").symlink_to("a.toml")


def nothing_is_left(folder: Path) -> str:
    """A refused run makes no folder."""
    told = refused(["train", "tiny/image", "optimizer.lr=nan"], ["optimizer.lr"], folder)
    assert not list(folder.iterdir()), f"a refused run left {[path.name for path in folder.iterdir()]}"
    return told


def ranges_are_told(folder: Path) -> str:
    return expect_done(run_mmrl(["show", "tiny/image"], folder), "above 0 and at most 1000")


def show(files: Any, word: str, folder: Path) -> str:
    return refused(["show", "a.toml"], [word], folder, files)


def loop_as_output(folder: Path) -> str:
    (folder / "runs").symlink_to("runs")
    return refused(["train", "tiny/image", "output=runs/one"], ["leads back to itself"], folder)


ATTACKS = [
    *(Attack(row.area, row.name, partial(named, row)) for row in NAMED.values()),
    *(Attack("config", name, partial(refused, ["show", "tiny/image", setting], words)) for name, setting, words in LONG),
    *(Attack("config", name, partial(show, {"a.toml": text}, word)) for name, (text, word) in FILES.items()),
    Attack("config", "a folder in place of a file", partial(show, lambda folder: (folder / "a.toml").mkdir(), "a.toml")),
    Attack("config", "links that lead to each other", partial(show, loop_of_links, "a.toml")),
    Attack("config", "an output behind a link to itself", loop_as_output),
    Attack("config", "a refused run leaves nothing", nothing_is_left),
    Attack("config", "asking for the ranges", ranges_are_told),
]
