"""The options that a run's config leaves out: those that are off, and its plug-ins' defaults; `mmrl show CONFIG --all`."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass

from mmrl.app.config.algorithm import Assembly
from mmrl.app.config.data import DataConfig, MixedData, data_tables
from mmrl.app.config.run import Resolved, SamplerConfig, UnweightedReward
from mmrl.app.config.slots import SLOTS, check_kind
from mmrl.app.inspect.settings import REQUIRED, field_notes, settings_of
from mmrl.app.plugins.foreign_rewards import split
from mmrl.app.plugins.resolve import load
from mmrl.app.toml.reader import RESERVED
from mmrl.app.toml.tables import KeyPath, dotted_key
from mmrl.serving.reward_client import RemoteReward, is_url

NOT_SET = "not set"
MEANING_OF_NONE = re.compile(r"None(?:, [^:;.]*)?(?:: | = )(.+?)(?:[.;](?:\s|$)|$)")
Row = tuple[str, str, str]
"""Dotted key, value, and what that means or where it comes from."""


def unset_rows(resolved: Resolved) -> list[Row]:
    """Everything that could be set and is not, in the order of the config."""
    config = resolved.config
    rows = [(dotted_key(path), NOT_SET, meaning) for path, meaning in unset_fields(config, ())]
    for path, reward in [
        *((("reward", str(i)), one) for i, one in enumerate(config.reward)),
        *((("evaluation", "reward", str(i)), one) for i, one in enumerate(config.evaluation.reward)),
    ]:
        rows += unset_of_reward(reward, path)
    for path, data in (*data_tables(config.data, ("data",)), *data_tables(config.evaluation.data, ("evaluation", "data"))):
        rows += unset_of_data(data, path)
    return rows + unset_of_sampler(config.sampler)


def unset_fields(part: object, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Fields that are None, of a dataclass and those inside it, with what None means there."""
    if isinstance(part, Assembly):
        yield from unset_fields(part.algorithm, path)
    elif isinstance(part, MixedData):
        yield from unset_fields(part.sources, path)
    elif is_dataclass(part) and not isinstance(part, type):
        notes = field_notes(type(part))
        for f in fields(part):
            name = f"{f.name}_" if f.name in RESERVED and path[:1] == ("algorithm",) else f.name
            value = getattr(part, f.name)
            if value is None:
                found = MEANING_OF_NONE.search(notes.get(f.name, ""))
                yield (*path, name), found[1] if found else ""
            elif f.name != "args":
                yield from unset_fields(value, (*path, name))
    elif isinstance(part, tuple):
        for i, item in enumerate(part):
            # an entry of the objective is a coefficient and a term
            yield from unset_fields(item[1] if isinstance(item, tuple) and len(item) == 2 else item, (*path, str(i)))


def unset_of_reward(reward: UnweightedReward, path: KeyPath) -> list[Row]:
    style, use = split(reward.use)
    if style:
        return []
    found = RemoteReward if is_url(use) else load(use, "rewards")
    return defaults(found, reward.args, path, reward.label, 0 if isinstance(found, type) else 1)


def unset_of_data(data: DataConfig, path: KeyPath) -> list[Row]:
    return defaults(load(data.use, "datasets"), data.args, path, data.use)


def unset_of_sampler(sampler: SamplerConfig) -> list[Row]:
    if sampler.use or not sampler.kind:
        return []
    part = check_kind("sampler", sampler.kind, "sampler.kind")
    return defaults(part, sampler.args, ("sampler",), sampler.kind, len(SLOTS["sampler"].made_with))


def defaults(found: Callable[..., object], given: Mapping[str, object], path: KeyPath, name: str, skip: int = 0) -> list[Row]:
    """The settings that a plug-in takes without being told."""
    return [
        (dotted_key((*path, one.name)), one.default, f"default of {name}")
        for one in settings_of(found, skip)
        if one.name not in given and one.default != REQUIRED
    ]
