"""`mmrl reward serve spec.toml`: the rewards of a spec behind HTTP. Imports no torch, so it runs where torch is not installed.

port = 8500
[[reward]]
use = "./mine.py"
threshold = 0.5         # the reward's own fields
"""

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins import resolve as plugins
from mmrl.app.toml.reader import check_keys, instance, make, refuse_missing, settings
from mmrl.app.toml.tables import COMMAND_LINE, KeyPath, Table
from mmrl.runtime.near import link
from mmrl.runtime.net.fetch import is_local
from mmrl.runtime.net.secrets import read_secret
from mmrl.runtime.ranges import Range
from mmrl.serving.guard import listen, serve_until_stopped
from mmrl.serving.reward_server import RequestScorer, Served, ServerLimits, create_app, fingerprint

TOKEN = "MMRL_REWARD_TOKEN"
NAME, HOST = r"[0-9A-Za-z_-][0-9A-Za-z_.-]{0,99}", r"[0-9A-Za-z.:_-]{1,253}"


@dataclass(frozen=True)
class ServedEntry:
    """A [[reward]] of a spec; keys that are none of these are the reward's own."""

    use: str
    name: str | None = None
    args: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True)
class ServeSpec(ServerLimits):
    """Where a server listens, what it serves and what it refuses."""

    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535, why="0: one that is free")] = 8500
    reward: tuple[ServedEntry, ...] = ()


def serve(file: Path, host: str | None = None, port: int | None = None) -> None:
    """Serve until interrupted; ValueError for a wrong spec, or one that listens beyond this machine without a token."""
    import typer

    spec, rewards = read_spec(file, {"host": host, "port": port})
    token = read_secret(TOKEN)
    if not is_local(spec.host) and not token:
        raise ValueError(
            f"{file} listens on {spec.host}, which other machines reach, without a token: set the environment variable {TOKEN}, "
            'here and where the run starts, or host = "127.0.0.1"'
        )
    listener = listen(spec.host, spec.port)
    host = platform.node() if spec.host in ("0.0.0.0", "::") else spec.host
    place = f"[{host}]" if ":" in host else host
    for name in rewards:
        typer.echo(f'use = "http://{place}:{listener.getsockname()[1]}/{name}"')
    sys.stdout.flush()
    scorer, interrupted = RequestScorer(rewards, spec), []
    serve_until_stopped(create_app(scorer, token), listener, lambda: interrupted.append(scorer.close()))
    if any(interrupted):
        # a thread that still scores would hold the process up for as long as its reward takes
        sys.stderr.flush()
        os._exit(0)


def read_spec(file: Path, given: Mapping[str, object] = {}) -> tuple[ServeSpec, dict[str, Served]]:
    """A spec, and its rewards loaded, whose files are looked for as in a config; what is `given` and not None counts before it.

    Raises FileNotFoundError, or ValueError naming the key that is unknown, missing or of the wrong type.
    """
    if not file.is_file():
        raise FileNotFoundError(f"reward spec {file} does not exist{link(file)}")
    table = Table.read(file)
    for key, value in given.items():
        if value is not None:
            table.set((key,), value, COMMAND_LINE)
    if not (entries := table.values.get("reward")) or isinstance(entries, Mapping):
        raise ValueError(f"{file} serves nothing: add a [[reward]] with use = NAME or ./file.py")
    spec = make(ServeSpec, table.values, (), table)
    if not re.fullmatch(HOST, spec.host):
        raise ValueError(
            f'{table.at(("host",))} is {spec.host!r}: write the name or address of this machine, such as "127.0.0.1"'
        )
    rewards: dict[str, Served] = {}
    for i, entry in enumerate(spec.reward):
        reward = served_reward(entry, ("reward", str(i)), table)
        if reward.name in rewards:
            raise ValueError(f"{file}: two rewards are called {reward.name!r}: give one of them a `name`")
        rewards[reward.name] = reward
    return spec, rewards


def served_reward(entry: ServedEntry, path: KeyPath, table: Table) -> Served:
    """A reward of a spec, loaded."""
    if not entry.use:
        raise ValueError(f"{table.at((*path, 'use'))} is '': write a name from `mmrl ls rewards` or ./file.py")
    name = plugins.default_name(entry.use) if entry.name is None else entry.name
    if not re.fullmatch(NAME, name):
        raise ValueError(
            f"{table.at((*path, 'name'))} is {name!r}: write letters, digits, _ and -, because it is the end of an address"
        )
    return Served(name, *made({"use": entry.use, **entry.args}, path, table))


def made(entry: Mapping[str, object], path: KeyPath, table: Table) -> tuple[Any, str]:
    """A reward with its settings, and its fingerprint; a setting that is a table with a `use` is a reward itself."""
    found: Any = plugins.with_runs(entry)
    use, where = found.pop("use"), table.at(path)
    inside = {
        key: made(value, (*path, key), table)
        for key, value in found.items()
        if isinstance(value, Mapping) and isinstance(value.get("use"), str)
    }
    given, inner = {key: found[key] for key in found if key not in inside}, {key: reward for key, (reward, _) in inside.items()}
    style, plug_in = adapters.split(use)
    function: Any = plugins.load(plug_in, "rewards")
    if style:
        reward = adapters.adapt(style, function, given | inner, path, table)
    else:
        adapters.refuse_foreign(function, use, where)
        skip = 0 if isinstance(function, type) else 1
        check_keys(inside, [*signature(function).parameters][skip:], path, table)
        values = settings(function, given, path, table, skip=skip) | inner
        refuse_missing(function, values, path, table, skip)
        if skip:
            reward = partial(function, **values) if values else function
        else:
            reward = instance(function, values, path, table, is_checked=False)
    if getattr(reward, "space", None) == "auto":
        raise ValueError(f'{where}: {use} reads boxes, and a server knows no policy: set space = "pixel", "norm1000", ...')
    file, _ = plugins.locate(plug_in, "rewards")
    return reward, fingerprint(file, given | {key: mark for key, (_, mark) in inside.items()})
