"""The algorithm of a run whose sampler computes with other kernels than its reader: what comes with that."""

from collections.abc import Mapping
from dataclasses import fields

from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.app.config.algorithm import DEFAULT_PRESET, presets
from mmrl.app.toml.reader import RESERVED
from mmrl.app.toml.tables import Table, Values, value_at
from mmrl.core.readings import OLD_LOGPROBS

ORIGIN, FAST = "default with policy.engine", 'default with policy.quantized.kernels = "fast"'
AHEAD = "default with ahead"
"""The origins of these values, as `mmrl show` prints them."""


def add_engine_defaults(table: Table) -> None:
    """Let old be read again, and correct for the engine's own rounding, where the config does not speak of it.

    Samples drawn ahead of training have other weights, an engine's kernels are others than the trainer's, and fast ones of
    weights in 4 bits differ with the number of rows: recorded log-probabilities are not quite those that are read. The policy
    reads `old` itself, and old / rollout, clamped per token, weighs every action.
    """
    refuse_swap(table)
    algorithm, origin = table.values.get("algorithm", {}), origin_of(table.values)
    if origin is None or not isinstance(algorithm, Mapping):
        return
    base = presets().get(str(algorithm.get("preset", DEFAULT_PRESET)))
    if base is None or algorithm.get("old", "reread") != "reread":
        return
    if origin == AHEAD and OLD_LOGPROBS not in base.all_reads:
        # noised copies have no record that could be compared
        return
    said = set(algorithm)
    if not said:
        table.set(("algorithm",), {}, origin)
    if "old" not in said and base.old != "reread":
        table.set(("algorithm", "old"), "reread", origin)
    if "importance" not in said and not any(isinstance(weight, RolloutCorrection) for weight in base.importance):
        correction: Values = {"kind": RolloutCorrection.__name__, "mode": "token_truncate"}
        table.set(("algorithm", "importance"), [*map(as_entry, base.importance), correction], origin)


def refuse_swap(table: Table) -> None:
    """Raise ValueError where `ahead` is a table, or weights are to change within an answer."""
    lag = table.values.get("ahead")
    swap = ("ahead", "swap") if isinstance(lag, Mapping) else ("swap",)
    if isinstance(lag, Mapping) and "swap" not in lag:
        raise ValueError(f"{table.at(('ahead',))} is a table, and must be a number of steps: write ahead = 1")
    asked = lag["swap"] if isinstance(lag, Mapping) else table.values.get("swap")
    if asked is not None:
        raise ValueError(
            f"{table.at(swap)} is {asked!r}, and weights never change within an answer: leave it out, and write ahead = 1 or 2"
        )


def origin_of(values: Mapping[str, object]) -> str | None:
    """The setting of a config by which sampler and reader differ; None: there is none."""
    if isinstance(values.get("policy"), Mapping) and values.get("ahead") and value_at(values, "cluster", "samplers"):
        return AHEAD
    if isinstance(value_at(values, "policy", "engine"), Mapping):
        return ORIGIN
    return FAST if value_at(values, "policy", "quantized", "kernels") == "fast" else None


def as_entry(part: object) -> Values:
    """A part of a preset as a config would write it."""
    own = fields(part)  # pyright: ignore[reportArgumentType] - every part is a dataclass
    values = {f"{f.name}_" if f.name in RESERVED else f.name: getattr(part, f.name) for f in own}
    return {"kind": type(part).__name__} | {name: value for name, value in values.items() if value is not None}
