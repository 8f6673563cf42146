"""What the pages share: cells and tables of settings, docstrings as prose, a chapter per thing."""

import inspect
import re
from collections.abc import Iterator, Sequence

from mmrl.app.inspect.settings import Setting
from mmrl.app.inspect.things import Thing, inner_parts, keys_inside


def cell(text: str) -> str:
    """Text that fits a cell of a table; code in it stays as it is."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def code(text: str) -> str:
    """Text as code in a cell of a table."""
    return f"`{' '.join(text.split()).replace('|', chr(92) + '|')}`"


def table_of(settings: Sequence[Setting], skip: Sequence[str] = ()) -> Iterator[str]:
    """A row per setting: key, type with its range, default and meaning."""
    shown = [one for one in settings if one.name not in skip]
    if not shown:
        yield "No settings."
        return
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for one in shown:
        default = "required" if one.default == "required" else code(one.default)
        kind = f"{one.type}, {one.range}" if one.range else one.type
        yield f"| `{one.name}` | {cell(kind)} | {default} | {cell(one.meaning)} |"


def prose(document: str) -> str:
    """A docstring as paragraphs; what is indented stays as it is, without a language."""
    parts = re.split(r"\n\s*\n", document)
    return "\n\n".join(f"```text\n{part}\n```" if part.startswith("    ") else cell(part) for part in parts)


def thing_lines(thing: Thing, facts: dict[str, str]) -> Iterator[str]:
    """A chapter: what it is, facts in lines of their own, settings."""
    yield f"\n## {thing.name}\n"
    document = thing.document.strip()
    for name in facts:
        document = re.sub(rf"^{name}:.*?(?=^\S+:|\n\n|\Z)", "", document, flags=re.MULTILINE | re.DOTALL)
    yield prose(document)
    if facts:
        yield ""
        yield from (f"- {name}: {cell(text)}" for name, text in facts.items())
    yield ""
    yield from table_of(thing.settings)


def inner_lines(*words: str) -> Iterator[str]:
    """A chapter per class of these kinds, which stand inside other settings."""
    for cls, word in inner_parts().items():
        if word in words:
            yield f"\n## {cls.__name__}\n\n{prose(inspect.getdoc(cls) or '')}\n"
            yield from table_of(keys_inside(cls))
