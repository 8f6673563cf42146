"""What can be said of a config's rewards and data sets from their files alone, before data are read or models loaded."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from mmrl.app.config.algorithm import check_settings, with_none, written
from mmrl.app.config.run import DataConfig, Resolved, WatchedReward
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins import resolve as plugins
from mmrl.app.toml.keys import check_keys, fields_of
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.app.toml.values import check_plain
from mmrl.serving.reward_client import is_url

SERVED = ("deadline_s", "token_env")
"""Keys of a reward behind HTTP."""


def check_plug_ins(resolved: Resolved) -> None:
    """Refuse keys that the named rewards and data sets do not know.

    Raises:
        FileNotFoundError: no such plug-in file.
        ValueError: no such plug-in, an unknown key or a plain value of the wrong kind; the message names place and key.
    """
    for path, reward in rewards_of(resolved):
        own = [f.name for f in fields(reward) if f.name != "args"]
        check_reward(reward.use, reward.args, path, resolved.table, own)
    check_data(resolved.config.data, ("data",), resolved.table)
    if resolved.config.evaluation.data is not None:
        check_data(resolved.config.evaluation.data, ("evaluation", "data"), resolved.table)


def rewards_of(resolved: Resolved) -> Iterator[tuple[KeyPath, WatchedReward]]:
    """Every reward and where the config names it."""
    for path, rewards in ((("reward",), resolved.config.reward), (("evaluation", "reward"), resolved.config.evaluation.reward)):
        for i, reward in enumerate(rewards):
            yield (*path, str(i)), reward


def check_reward(use: str, args: Mapping[str, Any], path: KeyPath, table: Table, beside: Sequence[str] = ()) -> None:
    """The keys of one reward and of the rewards inside it; functions of other trainers are looked at when they are adapted."""
    for key, value in args.items():
        check_inside(value, (*path, key), table)
    if is_url(use):
        check_keys(args, [*beside, *SERVED], path, table)
        return
    style, plug_in = adapters.split(use)
    function = plugins.load(plug_in, "rewards")
    if not style:
        adapters.refuse_foreign(function, use, table.at(path))
        settings = {key: item for key, item in args.items() if not has_reward(item)}
        check_settings(function, settings, path, table, [*beside, *(args.keys() - settings.keys())])
        check_fields(function, settings, path, table)


def check_fields(function: Any, settings: Mapping[str, Any], path: KeyPath, table: Table) -> None:
    """Values of a reward that is a dataclass against the types of its fields."""
    if not (isinstance(function, type) and is_dataclass(function)):
        return
    names = {written(name): name for name in fields_of(function)}
    for key, value in with_none(function, {names[key]: value for key, value in settings.items()}).items():
        check_plain(fields_of(function)[key], value, (*path, written(key)), table)


def check_inside(value: Any, path: KeyPath, table: Table) -> None:
    """The rewards a setting holds."""
    if isinstance(value, Mapping):
        inside = {key: item for key, item in value.items() if key != "use"}
        if has_reward(value):
            check_reward(value["use"], inside, path, table, ("use",))
        else:
            for key, item in inside.items():
                check_inside(item, (*path, key), table)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            check_inside(item, (*path, str(i)), table)


def has_reward(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(has_reward, value))
    return isinstance(value, Mapping) and (isinstance(value.get("use"), str) or any(map(has_reward, value.values())))


def check_data(data: DataConfig, path: KeyPath, table: Table) -> None:
    """The keys and plain values of one data set, and that nothing it needs is missing."""
    load = plugins.load(data.use, "datasets")
    parameters, hints = inspect.signature(load).parameters, get_type_hints(load)
    check_keys(data.args, [*parameters, "use"], path, table)
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in data.args]
    if missing:
        raise ValueError(f"{table.at((*path, missing[0]))} is missing: the data set {data.use!r} needs {', '.join(missing)}")
    for key, value in data.args.items():
        check_plain(hints.get(key, Any), value, (*path, key), table)
