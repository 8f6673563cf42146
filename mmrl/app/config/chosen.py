"""Settings that the user left open, chosen after a config was read."""

from collections.abc import Mapping
from copy import deepcopy

from mmrl.app.config.run import Resolved, resolve
from mmrl.app.toml.tables import COMMAND_LINE, Table


def is_free(resolved: Resolved, key: str) -> bool:
    """Does the command line say nothing of a setting (`policy.lora`), nor of what is in it?"""
    return COMMAND_LINE not in (resolved.table.origin(tuple(key.split("."))) or "")


def with_values(resolved: Resolved, values: Mapping[str, object], origin: str) -> Resolved:
    """The run with these settings, by dotted key, and who said them."""
    table = Table(deepcopy(resolved.table.values), dict(resolved.table.origins))
    for key, value in values.items():
        table.set(tuple(key.split(".")), value, origin)
    return resolve(table, (), resolved.name)
