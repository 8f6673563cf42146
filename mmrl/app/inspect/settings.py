"""Settings of a class or function: name, type, range, default and meaning, from its annotations and the words beside them."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from mmrl.app.config.algorithm import PART_SLOTS, TOP, Assembly
from mmrl.app.config.data import MixedData, data_tables
from mmrl.app.config.run import Resolved, RunConfig
from mmrl.app.config.slots import SLOTS, check_kind
from mmrl.app.plugins.foreign_rewards import split
from mmrl.app.plugins.resolve import load
from mmrl.app.toml.reader import RESERVED
from mmrl.app.toml.tables import KeyPath, dotted_key
from mmrl.runtime.ranges import Range, range_words, ranges_of
from mmrl.serving.reward_client import RemoteReward, is_url

WIDTH = 80
"""Columns of a terminal that every line fits."""
WORDS: dict[object, str] = {int: "integer", float: "number", str: "text", bool: "true or false", NoneType: "none", Path: "path"}
ARGUMENT = re.compile(r"^(\w+): (.*)$")
REQUIRED = "required"
COMMON: Mapping[str, Mapping[str, str]] = {
    "mmrl.algorithms.advantages": {
        "clip": "Advantages are clamped to [-clip, clip].",
        "ddof": "1 = unbiased deviation, as text code has it; 0 = population, as papers and flow code have it.",
        "eps": "Keeps the divisor away from 0, in units of the reward; `eps_mode`, if there is one, says how.",
        "eps_mode": "Where eps goes: deviation + eps, max(deviation, eps), or sqrt(deviation^2 + eps).",
        "singleton": "Credit of a group with one scored sample: zero, or its reward as it is.",
        "success_at": "Total reward from which a sample is right.",
    },
    "mmrl.algorithms.planners": {
        "max_rounds": "Most rounds of sampling in one step, the first one included.",
        "success_at": "Total reward from which a sample is right.",
    },
    "mmrl.algorithms.shaping": {
        "reward": "The accuracy; None: the first reward.",
        "success_at": "The reward from which a sample is right.",
    },
    "mmrl.flow.schedules": {
        "dynamics": "How a noisy step moves; `mmrl show FlowSDE` and its neighbours have the formulas; ode and dpm2 draw none.",
        "initial_noise": "sample: every sample starts from its own noise. group: a group starts from the same noise.",
        "level": "How much noise a noisy step draws, the level in the formula of `dynamics`; wan, ode and dpm2 have none.",
        "num_steps": "Denoising steps of a rollout.",
        "seed": "Seed of the choice of steps, together with the training step.",
        "spacing": "How the steps lie between noise and data; None: as the model's own scheduler.",
        "truncated_timesteps": "True: feed the network int(1000 sigma), as DanceGRPO's relatives do; steps use the exact sigma.",
    },
}
"""Package -> the words for fields of its classes that mean the same in all of them and have no words of their own."""


@dataclass(frozen=True)
class Setting:
    """`Setting("threshold", "number", "0 to 1", "0.5", "IoU from which an answer counts.")`."""

    name: str
    type: str
    range: str
    """Empty: any value of the type."""
    default: str
    """As TOML writes it; `required` where there is none."""
    meaning: str

    def lines(self, indent: str = "  ") -> list[str]:
        """Name, type, range and default, and the meaning below, none wider than a terminal."""
        limits = f", {self.range}" if self.range else ""
        default = REQUIRED if self.default == REQUIRED else f"default {self.default}"
        head = f"{self.name}: {self.type}{limits}; {default}"
        return [*wrapped(head, indent, indent + " " * 4), *(wrapped(self.meaning, indent + " " * 4) if self.meaning else [])]


def wrapped(text: str, first: str, later: str | None = None) -> list[str]:
    """Lines of at most WIDTH characters; a word longer than that stays whole."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=first if later is None else later, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def settings_of(thing: Callable[..., Any], skip: int = 0) -> list[Setting]:
    """The settings that a config may give it, in the order of its fields or arguments, of which callers give the first `skip`."""
    hints = get_type_hints(thing, include_extras=True)
    if inspect.isclass(thing) and is_dataclass(thing):
        notes = field_notes(thing)
        shown = [f for f in fields(thing) if f.init][skip:]
        found = [(f.name, f.default if f.default_factory is MISSING else f.default_factory()) for f in shown]
        return [
            setting(f"{name}_" if name in RESERVED else name, hints[name], value, notes.get(name, "")) for name, value in found
        ]
    notes = argument_notes(inspect.getdoc(thing) or "")
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = [p for p in inspect.signature(thing).parameters.values() if p.kind in kinds][skip:]
    if inspect.isclass(thing):
        hints = get_type_hints(thing.__init__, include_extras=True)
        notes |= argument_notes(inspect.getdoc(thing.__init__) or "")
    return [
        setting(p.name, hints.get(p.name, object), MISSING if p.default is p.empty else p.default, notes.get(p.name, ""))
        for p in parameters
    ]


def facts_of(cls: type) -> list[Setting]:
    """The facts that a class states: its class variables, and its fields' defaults."""
    hints, notes = get_type_hints(cls, include_extras=True), field_notes(cls)
    values = {name: getattr(cls, name) for name in hints if hasattr(cls, name) and not name.startswith("_")}
    plain = {name: get_args(hint)[0] if get_origin(hint) is ClassVar else hint for name, hint in hints.items()}
    return [setting(name, plain[name], value, notes.get(name, "")) for name, value in values.items()]


def setting(name: str, hint: object, value: object, meaning: str) -> Setting:
    return Setting(name, type_words(hint), range_words(hint), REQUIRED if value is MISSING else toml_text(value), meaning)


def type_words(hint: object) -> str:
    """A type in words: `number or none`, `"k1" or "k3"`, `list of text`."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in WORDS:
        return WORDS[hint]
    if origin is Annotated:
        return type_words(inner[0])
    if origin is Literal:
        return " or ".join(toml_text(word) for word in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_words(one) for one in inner))
    name = getattr(origin or hint, "__name__", str(hint))
    if name in ("Mapping", "dict"):
        return "table"
    if name in ("tuple", "list", "Sequence", "frozenset"):
        one = [type_words(item) for item in inner if item is not Ellipsis]
        return f"list of {' and '.join(dict.fromkeys(one))}" if one else "list"
    if name in ("object", "Any"):
        return "any value"
    if name == "Callable" or (inspect.isclass(hint) and getattr(hint, "_is_protocol", False)):
        return "a table with `use`"
    return f"table {name}" if inspect.isclass(hint) and is_dataclass(hint) else name


def toml_text(value: object) -> str:
    """A default as TOML writes it; a part as its class and what it sets."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, frozenset | set):
        return toml_text(sorted(value, key=str))
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml_text(item)}" for key, item in value.items()) + "}"
    return type(value).__name__ if is_dataclass(value) else str(value)


def field_notes(cls: type) -> dict[str, str]:
    """Field -> the words below it, of a class and those it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is not object and is_dataclass(base):
            package = base.__module__.rpartition(".")[0]
            found |= {name: words for name, words in COMMON.get(package, {}).items() if name in base.__annotations__}
            for entry, below in pairwise(class_body(base)):
                if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name) and isinstance(below, ast.Expr):
                    text = ast.literal_eval(below.value) if isinstance(below.value, ast.Constant) else ""
                    found[entry.target.id] = " ".join(str(text).split())
    return found


def class_body(cls: type) -> Sequence[ast.stmt]:
    """The statements of a class; none where its source is not to be had."""
    try:
        tree = tree_of(inspect.getsourcefile(cls) or "")
    except (OSError, TypeError):
        return []
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls.__name__]
    return found[0].body if found else []


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def argument_notes(document: str) -> dict[str, str]:
    """Argument -> its words, of a docstring's chapter `Args:`."""
    chapter = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", document, re.MULTILINE | re.DOTALL)
    found: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent(chapter[1]).splitlines() if chapter else []:
        start = ARGUMENT.match(line)
        if start:
            name = start[1]
            found[name] = start[2].strip()
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


OBJECTIVE: KeyPath = (*TOP, "objective")
NOT_SET = "not set"
MEANING_OF_NONE = re.compile(r"None(?:, [^:;.]*)?(?:: | = )(.+?)(?:[.;](?:\s|$)|$)")
Row = tuple[str, str, str]
"""Dotted key, value, and what that means or where it comes from."""
PlugInOptions = tuple[KeyPath, Callable[..., object], Mapping[str, object], str, int]
"""Path of a plug-in's table, the plug-in, its settings there, its name, and how many leading arguments the run gives it."""


def ranges_of_config(config: RunConfig) -> dict[str, str]:
    """`optimizer.lr` -> "above 0 and at most 1000", of every number that has a range, settings of plug-ins included."""
    found = dict(ranges_below(config, ()))
    for path, plug_in, given, _, _ in plug_ins_of(config):
        found |= {dotted_key((*path, key)): words for key, words in ranges_of(plug_in).items() if key in given}
    return found


def ranges_below(part: object, path: KeyPath) -> Iterator[tuple[str, str]]:
    """Dotted keys and ranges of a dataclass's numbers, and of the dataclasses in it."""
    for at, cls, name, value in fields_below(part, path):
        if at == OBJECTIVE:
            yield from ((dotted_key((*at, str(i), "coef")), Range().words) for i in range(len(value)))
        elif name not in PART_SLOTS and name in (own := ranges_of(cls)):
            yield dotted_key(at), own[name]


def unset_rows(resolved: Resolved) -> list[Row]:
    """Everything that could be set and is not, in the order of the config."""
    rows = [(dotted_key(path), NOT_SET, meaning) for path, meaning in unset_fields(resolved.config, ())]
    for path, plug_in, given, name, skip in plug_ins_of(resolved.config):
        for one in settings_of(plug_in, skip):
            if one.name not in given and one.default != REQUIRED:
                rows.append((dotted_key((*path, one.name)), one.default, f"default of {name}"))
    return rows


def unset_fields(part: object, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Fields that are None, of a dataclass and those inside it, with what None means there."""
    for at, cls, name, value in fields_below(part, path):
        if value is None:
            found = MEANING_OF_NONE.search(field_notes(cls).get(name, ""))
            yield at, found[1] if found else ""


def fields_below(part: object, path: KeyPath) -> Iterator[tuple[KeyPath, type, str, Any]]:
    """Path, class, name and value of every field of a dataclass, and of the dataclasses in it."""
    whole: Any = part.algorithm if isinstance(part, Assembly) else part.sources if isinstance(part, MixedData) else part
    if is_dataclass(whole) and not isinstance(whole, type):
        for f in fields(whole):
            at = (*path, f"{f.name}_" if f.name in RESERVED and path[:1] == TOP else f.name)
            yield at, type(whole), f.name, getattr(whole, f.name)
            yield from fields_below(getattr(whole, f.name), at)
    elif isinstance(whole, list | tuple):
        for i, entry in enumerate(whole):
            # an entry of the objective is a coefficient and a term
            yield from fields_below(entry[1] if path == OBJECTIVE else entry, (*path, str(i)))


def plug_ins_of(config: RunConfig) -> Iterator[PlugInOptions]:
    """The rewards, data sets and sampler that a config names and whose settings are known."""
    for path, rewards in ((("reward",), config.reward), (("evaluation", "reward"), config.evaluation.reward)):
        for i, reward in enumerate(rewards):
            style, use = split(reward.use)
            if not style:
                found = RemoteReward if is_url(use) else load(use, "rewards")
                yield (*path, str(i)), found, reward.args, reward.label, 0 if isinstance(found, type) else 1
    for path, data in (*data_tables(config.data, ("data",)), *data_tables(config.evaluation.data, ("evaluation", "data"))):
        yield path, load(data.use, "datasets"), data.args, data.use, 0
    sampler = config.sampler
    if sampler.kind and not sampler.use:
        part = check_kind("sampler", sampler.kind, "sampler.kind")
        yield ("sampler",), part, sampler.args, sampler.kind, len(SLOTS["sampler"].made_with)
