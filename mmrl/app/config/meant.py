"""The key of a run that one at the wrong place means: `optimizer.lr` for `lr`, `steps` for `train.steps`."""

from collections.abc import Mapping
from dataclasses import fields

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.modality.registry import POLICIES
from mmrl.app.toml.reader import UnknownKeyError, keys_below
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.near import elsewhere
from mmrl.runtime.ranges import hints_of


def with_key(error: UnknownKeyError, table: Table, run: type) -> ValueError:
    """The error, which names the key that is meant where there is one."""
    meant = likely_key(error.path, table, run)
    return error if meant is None else ValueError(f"{error}; did you mean {meant!r}?")


def likely_key(path: KeyPath, table: Table, run: type) -> str | None:
    """The key, with dots, of a config of the class `run` that an unknown path of its table may mean; None without one."""
    said = next((found for found in table.origins if found[: len(path)] == path), path)
    policy = table.values.get("policy")
    kind = str(policy.get("kind", "text")) if isinstance(policy, Mapping) else "text"
    types = hints_of(run) | {"policy": POLICIES.get(kind, TextPolicyConfig)}
    keys = [key for name, hint in types.items() for key in ((name,), *keys_below(hint, (name,)))]
    return elsewhere(said, [*keys, *(("algorithm", f.name) for f in fields(Algorithm))])
