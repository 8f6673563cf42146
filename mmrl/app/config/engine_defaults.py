"""The algorithm of a run whose completions an engine writes: what comes with it, and what cannot go with it."""

from collections.abc import Mapping
from dataclasses import fields

from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.app.config.algorithm import DEFAULT_PRESET, presets
from mmrl.app.toml.tables import Table, Values

ORIGIN = "default with policy.engine"
"""The origin of these values, as `mmrl show` prints it."""


def add_engine_defaults(table: Table) -> None:
    """Let old be read again, and correct for the engine's own rounding, where the config does not speak of it.

    An engine's kernels are others than the trainer's, so its log-probabilities are not quite those of the weights that it was
    given: the policy reads `old` itself, and old / rollout, clamped per token, weighs every action.
    """
    policy, algorithm = table.values.get("policy"), table.values.get("algorithm", {})
    if not isinstance(policy, Mapping) or not isinstance(policy.get("engine"), Mapping) or not isinstance(algorithm, Mapping):
        return
    base = presets().get(str(algorithm.get("preset", DEFAULT_PRESET)))
    if base is None or algorithm.get("old", "reread") != "reread":
        return
    said = set(algorithm)
    if not said:
        table.set(("algorithm",), {}, ORIGIN)
    if "old" not in said and base.old != "reread":
        table.set(("algorithm", "old"), "reread", ORIGIN)
    if "importance" not in said and not any(isinstance(weight, RolloutCorrection) for weight in base.importance):
        correction: Values = {"kind": RolloutCorrection.__name__, "mode": "token_truncate"}
        table.set(("algorithm", "importance"), [*map(as_entry, base.importance), correction], ORIGIN)


def as_entry(part: object) -> Values:
    """A part of a preset as a config would write it."""
    values = {f.name: getattr(part, f.name) for f in fields(part)}  # pyright: ignore[reportArgumentType]
    return {"kind": type(part).__name__} | {name: value for name, value in values.items() if value is not None}
