"""The options of a run: ranges of numbers, and what its config leaves out, which is off or a default; for `mmrl show`."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from mmrl.app.config.algorithm import PART_SLOTS, TOP, Assembly
from mmrl.app.config.data import MixedData, data_tables
from mmrl.app.config.run import Resolved, RunConfig
from mmrl.app.config.slots import SLOTS, check_kind
from mmrl.app.inspect.settings import REQUIRED, field_notes, settings_of
from mmrl.app.plugins.foreign_rewards import split
from mmrl.app.plugins.resolve import load
from mmrl.app.toml.reader import RESERVED
from mmrl.app.toml.tables import KeyPath, dotted_key
from mmrl.runtime.ranges import Range, ranges_of
from mmrl.serving.reward_client import RemoteReward, is_url

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
