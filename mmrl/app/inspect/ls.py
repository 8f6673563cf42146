"""`mmrl ls`: names and one line each, no line wider than a terminal of 80 columns."""

import textwrap
from collections.abc import Iterator

from mmrl.app.plugins.cards import cards, not_now, part_cards
from mmrl.app.plugins.catalog import KINDS, catalog, details
from mmrl.app.plugins.resolve import Listed
from mmrl.runtime.near import did_you_mean

WIDTH = 80
MORE = ("parts", "samplers", "generators", "families")
"""Kinds that are classes; listing them loads torch, so they come when asked for."""


def listing(kind: str | None, everything: bool = False) -> Iterator[str]:
    """The lines of one kind (ValueError if there is none), or of everything that is cheap to list.

    `everything`: of families also the types of transformers that none is written for.
    """
    if everything and kind != "families":
        raise ValueError("--all lists every type of transformers that sees or hears: write mmrl ls families --all")
    if kind == "families":
        from mmrl.app.inspect.things import table, type_lines

        yield from type_lines() if everything else table()
        return
    for listed in (kind,) if kind else KINDS:
        if not kind:
            yield f"{listed}"
        rows = rows_of(listed)
        width = min(max((len(row.name) for row in rows), default=0), 28)
        for row in rows:
            yield from columns(row.name, row.summary, width)
            for field, text in fields_of(row, kind):
                yield from columns(f"{'':<4}{field:<8}", text, 16)
        if kind == "algorithms":
            yield from (*with_any_preset(), "", "not now")
            for why, methods in not_now():
                yield from textwrap.wrap(f"{why}: {', '.join(methods)}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    if not kind:
        yield f"also: mmrl ls {', mmrl ls '.join(MORE)}"


def things(kind: str | None) -> list[dict[str, str]]:
    """The same as programs read it: `mmrl ls --json`; ValueError for an unknown kind."""
    return [
        {"kind": listed, "name": row.name, "summary": row.summary, "file": str(row.file), **fields(row, kind)}
        for listed in ((kind,) if kind else KINDS)
        for row in rows_of(listed)
    ]


def fields(row: Listed, kind: str | None) -> dict[str, str]:
    """The further lines of a name; several of one word are joined."""
    found: dict[str, str] = {}
    for word, text in fields_of(row, kind):
        found[word] = f"{found[word]}; {text}" if word in found else text
    return found


def fields_of(row: Listed, kind: str | None) -> Iterator[tuple[str, str]]:
    """More lines under a name, where one kind is listed: of rewards what they need, of algorithms whether they work."""
    if kind == "rewards":
        yield from ((field.lower(), text) for field, text in details(row.file).items())
    if kind == "algorithms":
        card = cards()[row.name]
        yield "status", card.status
        yield from (("twin", f"{one.verdict} ({one.task})") for one in card.evidence)


def with_any_preset() -> Iterator[str]:
    """Methods that are one part of a run."""
    yield ""
    yield "with any of them"
    for card in part_cards():
        yield from columns(card.name, card.method, 14)
        verdicts = [("twin", f"{one.verdict} ({one.task})") for one in card.evidence]
        for field, text in (("take", card.take), ("status", card.status), *verdicts):
            yield from columns(f"{'':<4}{field:<8}", text, 16)


def rows_of(kind: str) -> list[Listed]:
    if kind in KINDS:
        return catalog(kind)
    if kind in MORE:
        from mmrl.app.inspect.things import classes

        return classes(kind)
    raise ValueError(f"nothing of the kind {kind!r} can be listed: {did_you_mean(kind, (*KINDS, *MORE))}")


def columns(name: str, text: str, width: int) -> Iterator[str]:
    """A name with its text next to it; a name that is too long has a line to itself."""
    space = " " * (width + 4)
    lines = textwrap.wrap(text, WIDTH, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)
    if not lines:
        yield f"  {name}"
    elif len(name) > width:
        yield from (f"  {name}", *lines)
    else:
        yield f"  {name:<{width}}  {lines[0].lstrip()}"
        yield from lines[1:]
