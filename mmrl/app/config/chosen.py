"""Settings that are chosen after a config was read: what the user left open, and what a look at a run does without."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

from mmrl.app.config.run import Resolved, resolve
from mmrl.app.toml.tables import COMMAND_LINE, Table
from mmrl.policies.text.settings import TextPolicyConfig


def is_free(resolved: Resolved, key: str) -> bool:
    """Does the command line say nothing of a setting (`policy.lora`), nor of what is in it?"""
    return COMMAND_LINE not in (resolved.table.origin(tuple(key.split("."))) or "")


def with_values(resolved: Resolved, values: Mapping[str, object], origin: str) -> Resolved:
    """The run with these settings, by dotted key, and who said them."""
    table = Table(deepcopy(resolved.table.values), dict(resolved.table.origins))
    for key, value in values.items():
        table.set(tuple(key.split(".")), value, origin)
    return resolve(table, (), resolved.name)


def without_engine(resolved: Resolved) -> Resolved:
    """The run with its own network as writer, one step after the other: no server is needed to look at what was trained."""
    config = resolved.config
    policy = replace(config.policy, engine=None) if isinstance(config.policy, TextPolicyConfig) else config.policy
    return replace(resolved, config=replace(config, ahead=0, policy=policy, cluster=replace(config.cluster, samplers=0)))
