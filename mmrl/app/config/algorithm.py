"""`[algorithm]` of a config -> an Algorithm: a preset, and the parts that replace or alter the preset's own.

A part's kind is its class name, and its slot the folder it lies in, so a new part needs no entry anywhere.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any, get_type_hints

from pydantic import ValidationError

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import KINDS, kind_for
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.app.config.data import MixedData
from mmrl.app.config.slots import SLOTS, check_declared, check_fit, check_kind, kinds
from mmrl.app.plugins import resolve as plugins
from mmrl.app.plugins.resolve import guarded
from mmrl.app.toml.reader import NONE, RESERVED, check_keys, check_slip, make, plain, read, read_each, refuse_missing, settings
from mmrl.app.toml.tables import KeyPath, Table, Values, dotted_key, value_at
from mmrl.core.hooks import AdvantageHooks, with_hooks
from mmrl.core.readings import OLD_LOGPROBS
from mmrl.runtime.near import did_you_mean

TOP: KeyPath = ("algorithm",)
DEFAULT_PRESET = "grpo"
PART_SLOTS = tuple(name for name, slot in SLOTS.items() if not slot.top)
"""The slots of an algorithm."""


@dataclass(frozen=True)
class Assembly:
    """An algorithm with its pedigree."""

    preset: str
    algorithm: Algorithm
    label: str
    """`dapo + advantage.scale`: the preset and every part or field of a part that differs from it."""
    uses: Mapping[str, str] = field(default_factory=dict)
    """`algorithm.advantage` -> `my.py:Mine`, for parts of the user's own."""
    given: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)
    """The config's own keys of [algorithm]."""


def assemble(table: Table) -> Assembly:
    """The algorithm that a config's `[algorithm]` describes.

    Raises ValueError, naming file and key, for an unknown preset, slot, kind or key, or a value of the wrong type.
    """
    values = table.values.get("algorithm", {})
    if not isinstance(values, Mapping):
        raise ValueError(f'{table.at(TOP)} is {values!r}: write [algorithm] with preset = "{values}"')
    name = kind_for(values.get("preset", DEFAULT_PRESET), value_at(table.values, "policy", "kind"))
    base = preset(name, table.at((*TOP, "preset")))
    known = ("preset", *(f.name for f in fields(Algorithm)))
    check_keys(values, known, TOP, table)
    uses: dict[str, str] = {}
    builder, hints = _Builder(table, uses, str(name)), get_type_hints(Algorithm, include_extras=True)

    def change(key: str, value: Any) -> Any:
        if key in PART_SLOTS:
            return builder.slot(key, value, getattr(base, key))
        return plain(hints[key], read(hints[key], value, (*TOP, key), table), (*TOP, key), table)

    said, own = table.origin((*TOP, "preset")), {key: value for key, value in values.items() if key != "preset"}
    try:
        algorithm = replace(base, **read_each(own, change))
    except ValueError as error:
        if said and any(table.origin((*TOP, key)) != said for key in own):
            error.args = (f"{error} ({said}: algorithm.preset is {name!r})",)
        raise
    differing = [path for slot in PART_SLOTS for path in differences(getattr(base, slot), getattr(algorithm, slot), slot)]
    return Assembly(str(name), algorithm, " + ".join([str(name), *differing]), uses, given_in(table))


def given_in(table: Table) -> Values:
    """The config's own keys of [algorithm], without those that come with other settings, such as an engine's."""
    return {
        key: value
        for key, value in table.values.get("algorithm", {}).items()
        if not (table.origin((*TOP, key)) or "").startswith("default with ")
    }


def part_table(part: object, use: str | None = None) -> Values:
    """A part as a config would write it; `use` names one of the user's own."""
    own = as_plain(part).items() if is_dataclass(part) else ()
    named = {"kind": type(part).__name__} if use is None else {"use": use}
    return named | {f"{name}_" if name in RESERVED else name: value for name, value in own}


def algorithm_table(assembly: Assembly) -> Values:
    """The algorithm as a config writes it, with every part and value."""
    table, uses = Values(preset=assembly.preset), assembly.uses
    for f in fields(assembly.algorithm):
        value = getattr(assembly.algorithm, f.name)
        path = f"algorithm.{f.name}"
        if f.name == "objective":
            entries = enumerate(value)
            table[f.name] = [{"coef": coef} | part_table(term, uses.get(f"{path}.{i}")) for i, (coef, term) in entries]
        elif f.name in PART_SLOTS and SLOTS[f.name].many:
            table[f.name] = [part_table(part, uses.get(f"{path}.{i}")) for i, part in enumerate(value)]
        elif f.name in PART_SLOTS and value is not None:
            table[f.name] = part_table(value, uses.get(path))
        elif value is not None:
            table[f.name] = as_plain(value)
    return table


def as_plain(value: object) -> Any:
    """Dataclasses as dicts with `args` spread out, tuples as lists, None as "none" where it is not the default."""
    if isinstance(value, MixedData):
        return as_plain(value.sources)
    if is_dataclass(value) and not isinstance(value, type):
        pairs = {f.name: getattr(value, f.name) for f in fields(value) if f.init and f.name != "args"}
        unneeded = [f.name for f in fields(value) if f.default is None and pairs.get(f.name, "") is None]
        return {name: as_plain(x) for name, x in pairs.items() if name not in unneeded} | dict(getattr(value, "args", {}))
    if isinstance(value, tuple | list):
        return [as_plain(item) for item in value]
    return NONE if value is None else value


def preset(name: object, where: str = "algorithm.preset") -> Algorithm:
    """The preset, or the kind of stage, of this name; ValueError if there is none."""
    known = {**presets(), **KINDS}
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{where} is {name!r}: {did_you_mean(str(name), known)}")
    return known[name]


def presets() -> Mapping[str, Algorithm]:
    """All presets by name, those of text first."""
    from mmrl.algorithms.presets import PRESETS

    return PRESETS


@dataclass(frozen=True)
class _Builder:
    """Turns the tables of one config into parts."""

    table: Table
    uses: dict[str, str]
    preset: str

    def slot(self, name: str, value: Any, own: Any) -> Any:
        """The content of a slot of the algorithm once the config has spoken; `own` is the preset's."""
        path = (*TOP, name)
        if not SLOTS[name].many:
            return self.part(name, value, path, own)
        if isinstance(value, Mapping):
            return self._altered_list(name, value, path, own)
        if not isinstance(value, list):
            raise ValueError(f"{self.table.at(path)} is a list of parts: write [[{dotted_key(path)}]]")
        return tuple(self._entry(name, item, (*path, str(i)), None) for i, item in enumerate(value))

    def part(self, slot: str, value: object, path: KeyPath, own: object) -> Any:
        """One part: the user's (`use`), one of a kind (`kind`), or the preset's own with other fields."""
        if not isinstance(value, Mapping):
            raise ValueError(f'{self.table.at(path)} is a table, not {value!r}: write [{dotted_key(path)}] with kind = "..."')
        given = {key: item for key, item in value.items() if key not in ("kind", "use")}
        words = RESERVED if slot == "objective" else ("kind", "use")
        if "use" in value and "kind" in value:
            raise ValueError(f"{self.table.at(path)} has both kind and use: keep kind for a part of mmrl, use for one of yours")
        if "use" in value:
            return self._own(slot, plain(str, value["use"], (*path, "use"), self.table), given, path, words)
        if "kind" in value:
            cls = check_kind(slot, value["kind"], self.table.at((*path, "kind")))
            return make(cls, given, path, self.table, beside=words, reserved=RESERVED)
        if own is None:
            check_slip(given, "kind", path, self.table)
            raise ValueError(f"{self.table.at(path)} has no kind: {did_you_mean('', kinds(slot))}")
        with named_preset(self.preset, given):
            return make(type(own), given, path, self.table, own, beside=words, reserved=RESERVED)

    def _own(self, slot: str, use: str, given: Mapping[str, object], path: KeyPath, words: Sequence[str]) -> object:
        """A part of the user's own, which must answer the slot's call."""
        where, found = self.table.at(path), plugins.load(use, "algorithms")
        check_fit(slot, found, where)
        self.uses[dotted_key(path)] = use
        with guarded(f"{where}: {use}"):
            part = part_of(found, given, path, self.table, words, len(SLOTS[slot].arguments))
        check_declared(slot, part, where)
        return part

    def _altered_list(self, name: str, value: Mapping[str, object], path: KeyPath, own: Sequence[object]) -> object:
        """The preset's list with some of its entries altered: `algorithm.objective.0.high=0.28`."""
        entries = list(own)
        places = [str(i) for i in range(len(entries))]

        def entry(key: str, item: object) -> Any:
            if key not in places:
                raise ValueError(
                    f"{self.table.at((*path, key))} is not there: {dotted_key(path)} of the preset has {len(entries)} entries, "
                    f"counted from 0 ({dotted_key(path)}.0...): {did_you_mean(key, places)}; "
                    f"to replace them all write [[{dotted_key(path)}]]"
                )
            return self._entry(name, item, (*path, key), entries[int(key)])

        changed = read_each(value, entry)
        return tuple(changed.get(place, own) for place, own in zip(places, entries, strict=True))

    def _entry(self, name: str, item: Any, path: KeyPath, own: Any) -> Any:
        if name != "objective":
            return self.part(name, item, path, own)
        coef, term = own or (1.0, None)
        rest = item
        if isinstance(item, Mapping):
            at = (*path, "coef")
            coef = plain(float, read(float, item.get("coef", coef), at, self.table), at, self.table)
            rest = {key: value for key, value in item.items() if key != "coef"}
        return coef, self.part(name, rest, path, term)


@contextmanager
def named_preset(name: str, given: Mapping[str, object]) -> Iterator[None]:
    """Say of numbers of a part that do not go together which are the preset's, where the message names the file of the others."""
    try:
        yield
    except ValueError as error:
        cause = error.__context__
        if not given or not isinstance(cause, ValidationError) or cause.errors()[0]["type"] != "value_error":
            raise
        own = ", ".join(given)
        raise ValueError(f"{error} (all of this part but {own} is as the preset {name!r} has it)") from None


def part_of(
    found: Callable[..., object], given: Mapping[str, object], path: KeyPath, table: Table, beside: Sequence[str], skip: int
) -> Any:
    """An object of a class of the user's own, or the function with its settings, which come after `skip` arguments."""
    if inspect.isclass(found) and is_dataclass(found):
        return make(found, given, path, table, beside=beside, reserved=RESERVED)
    if inspect.isclass(found):
        return found(**settings(found, given, path, table, beside=beside))
    values = settings(found, given, path, table, skip=skip, beside=beside)
    refuse_missing(found, values, path, table, skip)
    return partial(found, **values) if values else found


def differences(before: object, after: object, path: str) -> list[str]:
    """Dotted paths of what differs between two slots' contents."""
    if before == after:
        return []
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        if isinstance(before[0], float):
            return [f"{path}.coef"] * (before[0] != after[0]) + differences(before[1], after[1], path)
        return [d for i, (a, b) in enumerate(zip(before, after, strict=True)) for d in differences(a, b, f"{path}.{i}")]
    if is_dataclass(before) and type(before) is type(after):
        return [f"{path}.{f.name}" for f in fields(before) if getattr(before, f.name) != getattr(after, f.name)]
    return [path]


BASES = ("grpo", "flow_grpo")
"""What others are compared with: of models that write, of image generators."""


def changes(algorithm: Algorithm) -> str:
    """The slots that differ from grpo or flow_grpo, each with its parts."""
    base = presets()[BASES[algorithm.schedule is not None]]
    found: list[str] = []
    for slot in PART_SLOTS:
        ours, theirs = getattr(algorithm, slot), getattr(base, slot)
        if ours != theirs:
            parts = ours if isinstance(ours, tuple) else (ours,)
            names = [type(part[1] if isinstance(part, tuple) else part).__name__ for part in parts if part is not None]
            found.append(f"{slot}: {' + '.join(names) or 'none'}")
    return "; ".join(found) or "nothing"


def costs(algorithm: Algorithm) -> str:
    """Calls and memory beside one sampling and one pass with a gradient."""
    return "; ".join(cost_words(algorithm)) or "nothing more"


def cost_words(algorithm: Algorithm) -> Iterator[str]:
    if algorithm.updates > 1:
        passes = f" in {algorithm.epochs} passes" if algorithm.epochs > 1 else ""
        yield f"{algorithm.updates} updates per step{passes}"
    if algorithm.planner.max_rounds > 1:
        yield f"up to {algorithm.planner.max_rounds} rounds of samples"
    read = {(reading.model, reading.view, reading.guidance) for reading in algorithm.frozen_reads if reading != OLD_LOGPROBS}
    if read:
        yield f"{len(read)} more {'pass' if len(read) == 1 else 'passes'} without gradient"
    if targets := {reading.target for reading in algorithm.all_reads if reading.target}:
        yield f"{len(targets)} more pass without gradient at every update"
    if algorithm.shadows:
        yield f"weights kept beside: {', '.join(sorted(algorithm.shadows))}"
    if algorithm.scope in ("group", "batch"):
        yield "a whole minibatch in memory" if algorithm.scope == "batch" else "a whole group in memory"


def needs(algorithm: Algorithm) -> str:
    """All that must be there: rewards, views, groups."""
    return "; ".join(need_words(algorithm)) or "nothing special"


def need_words(algorithm: Algorithm) -> Iterator[str]:
    if algorithm.needs_rewards:
        yield f"the reward {', '.join(algorithm.needs_rewards)}"
    if algorithm.needs_turns:
        yield "samples of several turns, [environment]"
    if algorithm.views:
        yield f"prompts that can be shown {', '.join(sorted(algorithm.views))}"
    least = with_hooks(algorithm.advantage, AdvantageHooks).min_group_size
    if least > 1:
        yield f"groups of {least} or more"
    if algorithm.scope in ("group", "batch") and algorithm.minibatches > 1:
        yield f"{algorithm.minibatches} prompts per step"


ORIGIN, FAST = "default with policy.engine", 'default with policy.quantized.kernels = "fast"'
AHEAD = "default with ahead"
"""The origins of these values, as `mmrl show` prints them."""


def add_engine_defaults(table: Table) -> None:
    """Let old be read again, and correct for the engine's own rounding, where the config does not speak of it.

    Samples drawn ahead of training have other weights, an engine's kernels are others than the trainer's, and fast ones of
    weights in 4 bits differ with the number of rows: recorded log-probabilities are not quite those that are read. The policy
    reads `old` itself, and old / rollout, clamped per token, weighs every action.
    """
    refuse_swap(table)
    algorithm, origin = table.values.get("algorithm", {}), origin_of(table.values)
    if origin is None or not isinstance(algorithm, Mapping):
        return
    base = presets().get(str(algorithm.get("preset", DEFAULT_PRESET)))
    if base is None or algorithm.get("old", "reread") != "reread":
        return
    if origin == AHEAD and OLD_LOGPROBS not in base.all_reads:
        # noised copies have no record that could be compared
        return
    said = set(algorithm)
    if not said:
        table.set(("algorithm",), {}, origin)
    if "old" not in said and base.old != "reread":
        table.set(("algorithm", "old"), "reread", origin)
    if "importance" not in said and not any(isinstance(weight, RolloutCorrection) for weight in base.importance):
        correction: Values = {"kind": RolloutCorrection.__name__, "mode": "token_truncate"}
        table.set(("algorithm", "importance"), [*(part_table(part) for part in base.importance), correction], origin)


def refuse_swap(table: Table) -> None:
    """Raise ValueError where `ahead` is a table, or weights are to change within an answer."""
    lag = table.values.get("ahead")
    swap = ("ahead", "swap") if isinstance(lag, Mapping) else ("swap",)
    if isinstance(lag, Mapping) and "swap" not in lag:
        raise ValueError(f"{table.at(('ahead',))} is a table, and must be a number of steps: write ahead = 1")
    asked = lag["swap"] if isinstance(lag, Mapping) else table.values.get("swap")
    if asked is not None:
        raise ValueError(
            f"{table.at(swap)} is {asked!r}, and weights never change within an answer: leave it out, and write ahead = 1 or 2"
        )


def origin_of(values: Mapping[str, object]) -> str | None:
    """The setting of a config by which sampler and reader differ; None: there is none."""
    if isinstance(values.get("policy"), Mapping) and values.get("ahead") and value_at(values, "cluster", "samplers"):
        return AHEAD
    if isinstance(value_at(values, "policy", "engine"), Mapping):
        return ORIGIN
    return FAST if value_at(values, "policy", "quantized", "kernels") == "fast" else None
