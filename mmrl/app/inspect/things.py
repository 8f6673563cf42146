"""Things that `mmrl show` knows besides algorithms and configs: plug-ins, parts, samplers, generators, families."""

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import zip_longest
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from mmrl.app.config.plug_ins import NUM_TOLD
from mmrl.app.config.reward_needs import need_of
from mmrl.app.config.slots import SLOTS, kinds
from mmrl.app.config.slots import place as place_of_slot
from mmrl.app.inspect.settings import Setting, facts_of, settings_of, wrapped
from mmrl.app.plugins.catalog import catalog
from mmrl.app.plugins.lab import small_models
from mmrl.app.plugins.resolve import Listed, load, locate
from mmrl.policies.shared.published import NOTES, Published

WIDTHS = (34, 13, 21, 6)
"""Characters of the columns; two stand between them."""
HEAD = ("family", "tasks", "licence of weights", "tested")
MARKS = {"makers": "", "others": " *", "nowhere": " **"}
"""Where a licence was read -> the mark behind it; explained below the table."""


def public_weights() -> dict[str, Published]:
    """Family -> the facts about its public weights: models that draw, then models that write."""
    from mmrl.policies.codes.janus import PUBLISHED as BY_TOKENS
    from mmrl.policies.flow.families.published import PUBLISHED as DRAWING
    from mmrl.policies.text.families.published import PUBLISHED

    return {**dict(sorted(DRAWING.items())), **BY_TOKENS, **PUBLISHED}


def table() -> Iterator[str]:
    """The lines, none wider than a terminal of 80 columns; equal tests share a letter."""
    facts = public_weights()
    letters = dict(zip(dict.fromkeys(one.tested for one in facts.values()), ascii_uppercase, strict=False))
    yield from row(HEAD)
    yield from row(["-" * width for width in WIDTHS])
    for name, one in facts.items():
        yield from row([name, ", ".join(one.tasks), one.licence + MARKS[one.read], letters[one.tested]])
    yield ""
    yield "tested on tiny models of the real classes"
    for tested, letter in letters.items():
        yield from textwrap.wrap(tested, 80, initial_indent=f"  {letter}  ", subsequent_indent=" " * 5)
    yield "licences (a model's own card counts)"
    yield from (f"  {MARKS[read].strip():<2} {note}" for read, note in NOTES.items() if note)


def type_lines() -> Iterator[str]:
    """Every type of the installed transformers that sees or hears, marked where tests try it, and yes or no with its reason."""
    import transformers

    from mmrl.policies.text.families.types import all_types

    found, tried = list(all_types()), set(small_models().writers())
    count = sum(one.refusal is None for one in found)
    yield f"types of transformers {transformers.__version__} that see or hear: {count} of {len(found)}"
    yield "  *  tried on a tiny model of the real class"
    yield ""
    for one in found:
        mark = "*" if one.name in tried else " "
        yield from textwrap.wrap(
            f"{mark} {one.name:<22} {one.summary}", 80, initial_indent="", subsequent_indent=" " * 25, drop_whitespace=True
        )


def row(cells: Sequence[str]) -> Iterator[str]:
    """A row whose cells go on below each other."""
    wrapped = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(cells, WIDTHS, strict=True)]
    for parts in zip_longest(*wrapped, fillvalue=""):
        yield "  ".join(f"{part:<{width}}" for part, width in zip(parts, WIDTHS, strict=True)).rstrip()


PLUG_INS = {"rewards": "[[reward]]", "datasets": "[data]", "environments": "[environment]"}
"""Kind of plug-in -> the table of a config that names one."""
CLASSES = ("parts", "samplers", "generators", "families")
"""The other kinds that `mmrl ls` lists; to know them is to load torch."""


@dataclass(frozen=True)
class Thing:
    """Something with settings."""

    kind: str
    """reward, data set, part of advantage, sampler, family of vision-language models, ..."""
    name: str
    table: str
    """How a config names it."""
    found: Callable[..., Any]
    settings: Sequence[Setting]
    document: str

    def lines(self) -> Iterator[str]:
        """Its documentation, its file, and its settings."""
        yield f"{self.name}: {self.kind}"
        yield f"{source_of(self.found)}"
        yield ""
        yield from self.document.strip().splitlines()
        yield ""
        yield from wrapped(self.table, "")
        for setting in self.settings:
            yield from setting.lines()
        if not self.settings:
            yield "  no settings"


def things_called(name: str) -> list[Thing]:
    """Things of this name, which may be of several kinds: `shapes` is a reward and a data set, `datasets/shapes` one of them.

    Raises ValueError if a plug-in's file does not load.
    """
    kind, _, rest = name.partition("/")
    if kind in PLUG_INS and rest:
        return [plug_in(rest, kind)] if rest in names_of(kind) else []
    if name.partition(":")[0].endswith(".py"):
        return [own_file(name)]
    return [*(plug_in(name, kind) for kind in PLUG_INS if name in names_of(kind)), *classes_called(name)]


def names_of(kind: str) -> list[str]:
    return [listed.name for listed in catalog(kind)]


def all_names() -> list[str]:
    """Every name that `things_called` knows."""
    return [
        *(name for kind in PLUG_INS for name in names_of(kind)),
        *(listed.name for kind in CLASSES for listed in classes(kind)),
    ]


def plug_in(name: str, kind: str) -> Thing:
    """A reward, data set or environment; of a function, some first arguments are no settings."""
    found = load(name, kind)
    skip = 0 if inspect.isclass(found) else {"rewards": 1, "datasets": 0, "environments": NUM_TOLD}[kind]
    document = inspect.getdoc(inspect.getmodule(found)) or ""
    if kind == "rewards" and (need := need_of(found)) is not None:
        document += f"\nNeeds: {need}"
    word = {"rewards": "a reward", "datasets": "a data set", "environments": "an environment"}[kind]
    return Thing(word, name, f'{PLUG_INS[kind]} use = "{name}" takes', found, settings_of(found, skip), document)


def own_file(spec: str) -> Thing:
    """The plug-in that a file of the user's own offers."""
    locate(spec, "rewards")
    found = load(spec, "rewards")
    first = next(iter(inspect.signature(found).parameters), "")
    named = first in ("group", "prompts", "images", "scores", "rollouts", "batch")
    skip = 0 if inspect.isclass(found) else NUM_TOLD if first == "prompt" else int(named)
    document = inspect.getdoc(inspect.getmodule(found)) or ""
    return Thing("a plug-in of your own", spec, f'use = "{spec}" takes', found, settings_of(found, skip), document)


def classes_called(name: str) -> Iterator[Thing]:
    for slot in SLOTS:
        if name in kinds(slot):
            cls = kinds(slot)[name]
            table = f'{place_of_slot(slot)} kind = "{name}" takes'
            word = "a sampler" if slot == "sampler" else f"a part of {slot}"
            yield Thing(word, name, table, cls, settings_of(cls, len(SLOTS[slot].made_with)), inspect.getdoc(cls) or "")
    for cls, word in inner_parts().items():
        if cls.__name__ == name:
            yield Thing(word, name, "its fields", cls, keys_inside(cls), inspect.getdoc(cls) or "")
    for word, cls in generators().items():
        kind = word.partition(".")[0]
        if name in (word, cls.__name__):
            table = f"every run whose policy.kind is {kind!r} has it; it takes"
            yield Thing(f"a generator of {kind} policies", word, table, cls, [], document_of(cls))
    from mmrl.policies.text.families.qwen_vl import BOX_SPACES

    for model, cls in families().items():
        if name in (model, cls.__name__):
            known = {"box_space": f'"{BOX_SPACES[model]}"'} if model in BOX_SPACES and name == model else {}
            table = "chosen by the model's own files; its facts about such models, which no config sets"
            facts = [replace(one, default=known.get(one.name, one.default)) for one in facts_of(cls)]
            yield Thing("a family of models", name, table, cls, facts, document_of(cls))
            return


def document_of(cls: type) -> str:
    """The documentation of a class and of its file."""
    parts = [inspect.getdoc(inspect.getmodule(cls)) or "", inspect.getdoc(cls) or ""]
    return "\n\n".join(dict.fromkeys(part for part in parts if part))


def inner_parts() -> dict[type, str]:
    """Classes that stand inside another thing's settings -> the kind they are: dynamics, spacings, views, servers, ..."""
    from mmrl.algorithms.views import MaskPatches, ShuffleFrames
    from mmrl.data.drawn.moving import ClipStyle
    from mmrl.flow import dynamics, sigmas, times
    from mmrl.flow.surrogate import SurrogatePath
    from mmrl.serving.judges.judge import Endpoint
    from mmrl.serving.scorers.painting import ImagesServer, Painting
    from mmrl.training.rewards.calls import Transform

    found = [value for module in (dynamics, sigmas, times) for value in vars(module).values() if inspect.isclass(value)]
    values = (dynamics.Before, dynamics.Gaussian, dynamics.SolverStep)
    parts = [cls for cls in found if is_dataclass(cls) and cls.__module__.startswith("mmrl.flow") and cls not in values]
    parts.append(SurrogatePath)
    views = dict.fromkeys((MaskPatches, ShuffleFrames), "a way to show prompts, inside a part")
    tables = {
        Painting: "a painter inside a reward",
        Endpoint: "a server inside a reward",
        ImagesServer: "a server inside a painter",
        Transform: "a table inside a reward",
        ClipStyle: "a table inside a data set",
    }
    return {**dict.fromkeys(parts, "a part inside a schedule"), **views, **tables}


def keys_inside(cls: type) -> list[Setting]:
    """Settings of a table inside another thing's, or of a table of mmrl itself, where no name is reserved."""
    return [replace(one, name=one.name.rstrip("_")) for one in settings_of(cls)]


def generators() -> dict[str, type]:
    """Kind of policy -> what writes or draws its samples."""
    from mmrl.policies.flow.write.generate import LocalGenerator as Draws
    from mmrl.policies.text.write.generate import LocalGenerator as Writes

    return {"text.LocalGenerator": Writes, "flow.LocalGenerator": Draws}


def families() -> dict[str, type]:
    """model_type of transformers, or pipeline of diffusers -> the family; `generic`, `hearing`, `text_only` are for others."""
    from mmrl.policies.codes.janus import Janus
    from mmrl.policies.flow.families.known import FAMILIES as DRAWING
    from mmrl.policies.text.families import FAMILIES as WRITING
    from mmrl.policies.text.families import Generic, Hearing, TextOnly

    return {**WRITING, "generic": Generic, "hearing": Hearing, "text_only": TextOnly, "janus": Janus, **DRAWING}


def classes(kind: str) -> list[Listed]:
    """Names, summaries and files of parts, samplers, generators or families, sorted by name."""
    found: dict[str, type] = {}
    if kind == "parts":
        found = {name: cls for slot in SLOTS if slot != "sampler" for name, cls in kinds(slot).items()}
        found |= {cls.__name__: cls for cls in inner_parts()}
    elif kind == "samplers":
        found = dict(kinds("sampler"))
    else:
        found = generators() if kind == "generators" else families()
    facts = public_weights() if kind == "families" else {}
    rows = [
        Listed(name, summary_of(facts[name]) if name in facts else first_line(cls), Path(inspect.getfile(cls)))
        for name, cls in found.items()
    ]
    return sorted(rows, key=lambda listed: listed.name)


def first_line(part: object) -> str:
    """The first line of its documentation."""
    return (inspect.getdoc(part) or "").split("\n")[0]


def summary_of(facts: Published) -> str:
    """A family's tasks, weights and tests."""
    return f"{', '.join(facts.tasks)} | weights: {facts.licence_and_note} | tested: {facts.tested}"


def source_of(found: Any) -> str:
    """File and line of a definition, from the folder that mmrl lies in."""
    file = Path(inspect.getsourcefile(found) or "?")
    base = Path(__file__).resolve().parents[3]
    shortest = file.relative_to(base) if file.is_relative_to(base) else file
    return f"{shortest}:{inspect.getsourcelines(found)[1]}"
