"""The settings of a run that somebody chose, with what they would have been otherwise: settings.json in its folder."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from mmrl.app.config.run import Resolved, as_table, resolve
from mmrl.app.files import replace_text
from mmrl.app.run.folder import RunDir
from mmrl.app.toml.tables import KeyPath, Table, Values, dotted_key, leaves

NOBODY = ("default", "preset ", "as policy.")
"""Prefixes of the origins of settings that the user did not give."""
NAMES = ("use", "name", "sources")
"""What stays of a reward's table: the rest of it is settings."""


@dataclass(frozen=True)
class Choice:
    """`Choice("optimizer.lr", "1e-05", "1e-06", "command line")`."""

    key: str
    value: str
    usual: str
    """The preset's or the default value; empty where there is none."""
    origin: str
    """Who said it: a file, a task, or the command line."""


def choices(resolved: Resolved) -> list[Choice]:
    """The settings that differ from the preset and the defaults, in the config's order; where a run lies is none of them."""
    usual = usual_values(resolved)
    found: list[Choice] = []
    for path, value in leaves(as_table(resolved.config)):
        origin, before = resolved.origin(path), usual.get(path, "")
        if path != ("output",) and not origin.startswith(NOBODY) and before != str(value):
            found.append(Choice(dotted_key(path), str(value), before, origin))
    return found


def usual_values(resolved: Resolved) -> dict[KeyPath, str]:
    """Every setting as preset and defaults have it; none where these alone make no run."""
    try:
        return {path: str(value) for path, value in leaves(as_table(bare(resolved).config))}
    except ValueError:
        return {}


def bare(resolved: Resolved) -> Resolved:
    """The run with its preset, model, data and rewards, and nothing else said."""
    given = resolved.table.values
    policy: Values = given.get("policy", {})
    rewards: Sequence[Values] = given.get("reward", [])
    kept: Values = {
        "algorithm": {"preset": resolved.config.algorithm.preset},
        "policy": {name: policy[name] for name in ("kind", "model", "family") if name in policy},
        "data": given.get("data", {}),
        "reward": [{name: one[name] for name in NAMES if name in one} for one in rewards],
    }
    return resolve(Table.of(kept, "the preset and the defaults"), name=resolved.name)


def write_choices(run: RunDir, resolved: Resolved) -> None:
    """Keep what was chosen in the run's folder."""
    replace_text(run.settings_file, json.dumps([asdict(one) for one in choices(resolved)], indent=1) + "\n")


def read_choices(run: RunDir) -> list[Choice]:
    """The choices that were kept; none in runs of earlier versions."""
    if not run.settings_file.is_file():
        return []
    return [Choice(**one) for one in json.loads(run.settings_file.read_text(encoding="utf-8"))]
