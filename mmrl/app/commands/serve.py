"""`mmrl reward serve spec.toml`: the rewards of a spec behind HTTP. Imports no torch, so it runs where torch is not installed.

port = 8500
[[reward]]
use = "./mine.py"
threshold = 0.5         # the reward's own fields
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins import resolve as plugins
from mmrl.app.toml.tables import Table, Values
from mmrl.runtime.near import did_you_mean, link
from mmrl.runtime.net.fetch import is_local
from mmrl.runtime.net.secrets import read_secret
from mmrl.serving.guard import listen, serve_until_stopped
from mmrl.serving.reward_server import RequestScorer, Served, ServerLimits, create_app, fingerprint

TOKEN = "MMRL_REWARD_TOKEN"
FRACTIONS = ("max_body_mb",)
"""Limits that need not be whole."""
NAME = r"[0-9A-Za-z_-][0-9A-Za-z_.-]{0,99}"


@dataclass(frozen=True)
class ServeSpec:
    """Where a server listens, what it serves and what it refuses."""

    rewards: Mapping[str, Served]
    host: str = "127.0.0.1"
    port: int = 8500
    limits: ServerLimits = field(default_factory=ServerLimits)


def serve(file: Path, host: str | None = None, port: int | None = None) -> None:
    """Serve until interrupted; ValueError for a wrong spec, or one that listens beyond this machine without a token."""
    import typer

    spec = read_spec(file)
    host, port = host or spec.host, spec.port if port is None else port
    check_place(host, port, str(file))
    token = read_secret(TOKEN)
    if not is_local(host) and not token:
        raise ValueError(
            f"{file} listens on {host}, which other machines reach, without a token: set the environment variable {TOKEN}, "
            'here and where the run starts, or host = "127.0.0.1"'
        )
    listener = listen(host, port)
    place = f"[{host}]" if ":" in host else host
    for name in spec.rewards:
        typer.echo(f'use = "http://{place}:{listener.getsockname()[1]}/{name}"')
    sys.stdout.flush()
    scorer, interrupted = RequestScorer(spec.rewards, spec.limits), []
    serve_until_stopped(create_app(scorer, token), listener, lambda: interrupted.append(scorer.close()))
    if any(interrupted):
        # a thread that still scores would hold the process up for as long as its reward takes
        sys.stderr.flush()
        os._exit(0)


def read_spec(file: Path) -> ServeSpec:
    """The spec with its rewards loaded; their files are looked for as in a config.

    Raises FileNotFoundError, or ValueError naming the key that is unknown, missing or of the wrong type.
    """
    if not file.is_file():
        raise FileNotFoundError(f"reward spec {file} does not exist{link(file)}")
    table = Table.read(file).values
    limit_keys = [f.name for f in fields(ServerLimits)]
    known = ["host", "port", "reward", *limit_keys]
    for key in table:
        if key not in known:
            raise ValueError(f"{file}: unknown key {key!r}: {did_you_mean(key, known)}")
    entries = table.get("reward")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{file} serves nothing: add a [[reward]] with use = NAME or ./file.py")
    rewards: dict[str, Served] = {}
    for index, entry in enumerate(entries):
        reward = served_reward(entry, f"{file}: reward.{index}")
        if reward.name in rewards:
            raise ValueError(f"{file}: two rewards are called {reward.name!r}: give one of them a `name`")
        rewards[reward.name] = reward
    limits = limits_of({key: table[key] for key in limit_keys if key in table}, str(file))
    host, port = table.get("host", ServeSpec.host), table.get("port", ServeSpec.port)
    check_place(host, port, str(file))
    return ServeSpec(rewards, host, port, limits)


def limits_of(table: Mapping[str, object], where: str) -> ServerLimits:
    """The limits of a spec; whole numbers stay whole, and true is none."""
    checked: dict[str, int | float] = {}
    for key, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float if key in FRACTIONS else int):
            raise ValueError(f"{where}: {key} is {value!r}: write a {'' if key in FRACTIONS else 'whole '}number above 0")
        checked[key] = float(min(value, 1e300)) if key in FRACTIONS else value
    try:
        return ServerLimits(**checked)  # pyright: ignore[reportArgumentType] - the loop gave each its kind
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix('ServerLimits.')}") from None


def check_place(host: object, port: object, where: str) -> None:
    """Raise ValueError, naming the key, for what no server can listen on."""
    if not isinstance(host, str) or not re.fullmatch(r"[0-9A-Za-z.:_-]{1,253}", host):
        raise ValueError(f'{where}: host is {host!r}: write the name or address of this machine, such as "127.0.0.1"')
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ValueError(f"{where}: port is {port!r}: write a whole number from 1 to 65535, or 0 for one that is free")


def served_reward(entry: Values, where: str) -> Served:
    """One [[reward]] of a spec."""
    if "use" not in entry:
        raise ValueError(f"{where} has no `use`: write a name from `mmrl ls rewards` or ./file.py")
    use, entry = entry["use"], cast(Values, plugins.with_runs(entry))
    if not isinstance(use, str) or not use:
        raise ValueError(f"{where}.use is {use!r}: write a name from `mmrl ls rewards` or ./file.py")
    name = entry.get("name", plugins.default_name(use))
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ValueError(f"{where}.name is {name!r}: write letters, digits, _ and -, because it is the end of an address")
    return Served(name, *made({key: value for key, value in entry.items() if key != "name"}, where))


def made(entry: Mapping[str, Any], where: str) -> tuple[Any, str]:
    """A reward with its settings, and its fingerprint; a setting that is a table with a `use` is a reward itself."""
    settings, printed = dict[str, object](), dict[str, object]()
    for key, value in entry.items():
        if key != "use":
            is_reward = isinstance(value, Mapping) and isinstance(value.get("use"), str)
            settings[key], printed[key] = made(value, f"{where}.{key}") if is_reward else (value, value)
    use = str(entry["use"])
    style, plug_in = adapters.split(use)
    function = plugins.load(plug_in, "rewards")
    reward = adapters.adapt(style, function, settings, where) if style else instance(function, settings, where)
    if getattr(reward, "space", None) == "auto":
        raise ValueError(f'{where}: {use} reads boxes, and a server knows no policy: set space = "pixel", "norm1000", ...')
    file, _ = plugins.locate(plug_in, "rewards")
    return reward, fingerprint(file, printed)


def instance(cls: Any, settings: Mapping[str, object], where: str) -> Any:
    """A dataclass with its fields filled in and checked; a function as it is."""
    if not (isinstance(cls, type) and is_dataclass(cls)):
        if settings:
            raise ValueError(f"{where}: {cls.__name__} is a function and has no settings, so {sorted(settings)} mean nothing")
        return cls() if isinstance(cls, type) else cls
    from pydantic import TypeAdapter, ValidationError

    known = [f.name for f in fields(cls) if f.init]
    for key in settings:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}: {did_you_mean(key, known)}")
    try:
        return TypeAdapter(cls).validate_python(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}.{place} is {first['input']!r}: {first['msg']}") from None
