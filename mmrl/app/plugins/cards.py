"""Cards of the algorithms: what a preset's own words do not say, read without loading torch.

presets/cards/X.toml holds the cards of presets/X.py, parts.toml those of methods that are one part of a run.

A card has `idea` (a sentence after the preset's first), `source` (of SOURCES), `when` and `avoid` (when to take it and when not),
and where there is something to say `bugs` (of the official code, and where mmrl does otherwise).
"""

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mmrl.app.plugins.catalog import documents, paper

FOLDER = Path(__file__).resolve().parents[2] / "algorithms" / "presets" / "cards"
NOT_NOW = FOLDER / "not_now.toml"
PARTS = FOLDER / "parts.toml"
EVIDENCE = FOLDER / "evidence.json"
SOURCES = {
    "code": "code was read: the authors', or that of TRL, verl or ms-swift",
    "paper": "the paper's formulas, or notes on them; the code was not available",
    "2nd": "summaries and re-implementations of others",
    "reading": "formulas that are partly our interpretation",
}


@dataclass(frozen=True)
class Evidence:
    """A method against its plain twin on a task made for its claim."""

    task: str
    claim: str
    measured: str
    without: str
    """The twin's part in place of the idea."""
    with_it: tuple[float, ...]
    """One number per seed."""
    twin: tuple[float, ...]
    verdict: str
    """ahead, level or behind."""
    watched: str = ""
    """Another reward, which nothing trained; empty where none was watched."""
    watched_with_it: tuple[float, ...] = ()
    """That reward from the start to the end, means over seeds; the twin's too."""
    watched_twin: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        ours, theirs = (sum(values) / len(values) for values in (self.with_it, self.twin))
        word = {"ahead": "ahead of", "level": "level with", "behind": "behind"}[self.verdict]
        compared = (
            f"{word} its twin ({self.without}) where {self.claim}: {self.measured} {ours:.2f} against {theirs:.2f}, "
            f"{len(self.with_it)} seeds"
        )
        if not self.watched:
            return compared
        own, other = (", ".join(f"{value:.2f}" for value in curve) for curve in (self.watched_with_it, self.watched_twin))
        return f"{compared}; meanwhile {self.watched}, which nothing trained, went {own} (the twin's {other})"


@dataclass(frozen=True, kw_only=True)
class Card:
    """The facts about a method that every card has."""

    name: str
    """The preset's, or the part's."""
    missing: str
    """Parts of the paper that are not implemented; empty if all are."""
    evidence: tuple[Evidence, ...]

    @property
    def status(self) -> str:
        """The word of the overview."""
        return f"partial: without {self.missing}" if self.missing else "works"


@dataclass(frozen=True, kw_only=True)
class MethodCard(Card):
    """One algorithm."""

    sentence: str
    """The first line of the preset's document."""
    idea: str
    source: str
    when: str
    avoid: str
    bugs: str
    paper: str

    def lines(self) -> Iterator[tuple[str, str]]:
        """Words and texts, the evidence last."""
        yield "idea", f"{self.sentence} {self.idea}".strip()
        texts = {"use when": self.when, "not when": self.avoid, "status": self.status, "source": SOURCES.get(self.source, "")}
        yield from ((word, text) for word, text in {**texts, "official": self.bugs}.items() if text)
        for one in self.evidence:
            yield "evidence", one.text


@dataclass(frozen=True, kw_only=True)
class PartCard(Card):
    """A method that is one part, to be taken with any preset."""

    method: str
    take: str
    """The words of a config that take it."""


@cache
def cards() -> dict[str, MethodCard]:
    """Every algorithm's card by its name, in the order of `mmrl ls algorithms`; `faults` says what they lack."""
    written, found, made = tables(), evidence(), dict[str, MethodCard]()
    for name, (document, _) in documents().items():
        own = {key: written.get(name, {}).get(key, "") for key in ("idea", "source", "when", "avoid", "bugs")}
        facts = {"sentence": document.strip().splitlines()[0], "paper": paper(document), "missing": missing_part(document)}
        made[name] = MethodCard(name=name, **own, **facts, evidence=found.get(name, ()))
    return made


def tables() -> dict[str, dict[str, str]]:
    """The files' tables by preset; a file of cards stands for the presets of the same name, if these are there."""
    files = [file for file in sorted(FOLDER.glob("*.toml")) if (FOLDER.parent / f"{file.stem}.py").is_file()]
    return {name: table for file in files for name, table in read(file).items()}


def faults() -> list[str]:
    """Presets without a card, cards without a preset, and cards that lack something, as sentences."""
    written, presets = tables(), documents()
    found = [f"{name} is the card of no preset: remove it, or write the preset" for name in written if name not in presets]
    for name in presets:
        lacking = [key for key in ("idea", "source", "when", "avoid") if not written.get(name, {}).get(key)]
        if lacking:
            found.append(f"the card of {name} lacks {', '.join(lacking)}: write it in a file of {FOLDER.name}/")
        elif written[name]["source"] not in SOURCES:
            source = written[name]["source"]
            found.append(f"the card of {name} has the source {source!r}: choose one of {', '.join(SOURCES)}")
    return found


def missing_part(document: str) -> str:
    """The text after `Not implemented:`, up to the end of its sentence."""
    flat = " ".join(document.split())
    found = re.search(r"Not implemented: (.*?)\.(?= [A-Z]|$)", flat)
    return found[1] if found else ""


def evidence() -> dict[str, tuple[Evidence, ...]]:
    """Results of `python -m tests.evidence` by method."""
    if not EVIDENCE.exists():
        return {}
    found: dict[str, tuple[Evidence, ...]] = {}
    for line in json.loads(EVIDENCE.read_text(encoding="utf-8")):
        facts = {key: line[key] for key in ("task", "claim", "measured", "without", "verdict")}
        curves = {name: mean_curve(line.get(name, [])) for name in ("watched_with_it", "watched_twin")}
        one = Evidence(
            with_it=tuple(line["with_it"]), twin=tuple(line["twin"]), watched=line.get("watched", ""), **curves, **facts
        )
        found[line["method"]] = (*found.get(line["method"], ()), one)
    return found


def mean_curve(curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The mean over seeds at every look."""
    return tuple(sum(values) / len(values) for values in zip(*curves, strict=True))


def part_cards() -> list[PartCard]:
    """Methods that are one part of a run."""
    found = evidence()
    return [PartCard(name=name, evidence=found.get(name, ()), **table) for name, table in read(PARTS).items()]


def not_now() -> list[tuple[str, tuple[str, ...]]]:
    """Why, and the methods that are not here for it."""
    return [(table["why"], tuple(table["methods"])) for table in read(NOT_NOW).values()]


def read(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))
