"""The stages of a chain: every `[[stage]]` is the run's config with differences, read as a run of its own."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any

from mmrl.algorithms.kinds import KINDS, kind_for
from mmrl.app.config.algorithm import policy_kind
from mmrl.app.config.run import Resolved, RunConfig, read_run
from mmrl.app.toml.did_you_mean import did_you_mean
from mmrl.app.toml.reader import UnknownKeyError
from mmrl.app.toml.tables import KeyPath, Table, Values, leaves
from mmrl.training.settings import TrainSettings

OF_THE_CHAIN = ("seed", "deterministic", "steps", "save_every", "save_minutes")
"""Settings of training that all stages share, or that every stage has beside its differences."""
MERGED = ("optimizer", "health")
"""Tables of which a stage may name single keys; all others it replaces whole."""
MAY_DIFFER = (
    *(f.name for f in fields(TrainSettings) if f.name not in OF_THE_CHAIN),
    *("algorithm", "data", "reward", "sampler"),
)
SEEDS_APART = 1_000_003
MOST_STAGES = 100


@dataclass(frozen=True)
class Stage:
    """One stage, as a run of its own that begins where another one ended."""

    number: int
    """From 1 on."""
    count: int
    label: str
    begin: int
    """The steps of all stages before."""
    resolved: Resolved

    @property
    def end(self) -> int:
        return self.begin + self.resolved.config.steps

    @property
    def place(self) -> str:
        """`stage 2 of 3, rl`; empty for a run that is one stage."""
        return f"stage {self.number} of {self.count}, {self.label}" if self.count > 1 else ""


def stages_of(resolved: Resolved) -> list[Stage]:
    """The stages of a run, in their order: one that is the run itself where it has no `[[stage]]`.

    Raises:
        ValueError: a stage's settings are none of a run, or do not go together; names the stage and the key.
    """
    config, begin, found = resolved.config, 0, list[Stage]()
    if not config.stage:
        return [Stage(1, 1, "", 0, resolved)]
    if len(config.stage) > MOST_STAGES:
        where = resolved.table.at(("stage",))
        raise ValueError(f"{where} has {len(config.stage)} stages, and a chain {MOST_STAGES} at most: give them more steps each")
    for i, stage in enumerate(config.stage):
        table = table_of(resolved.table, i)
        try:
            own = read_run(table, resolved.name)
        except UnknownKeyError as error:
            raise ValueError(str(error)) from None
        one = replace(own.config, output=config.output, seed=(config.seed + SEEDS_APART * i) % 2**32)
        found.append(Stage(i + 1, len(config.stage), stage.label, begin, replace(own, config=one)))
        begin = found[-1].end
    return found


def stage_at(stages: list[Stage], step: int | None) -> int:
    """The place in the list of the stage that a checkpoint of this step is of; 0 where there is none."""
    return next((i for i, one in enumerate(stages) if (step or 0) <= one.end), len(stages) - 1)


def table_of(table: Table, i: int) -> Table:
    """The table of a stage's run: the run's own, and over it what the stage says."""
    given = table.values["stage"][i]
    kind = given["kind"]
    values: Values = {key: deepcopy(value) for key, value in table.values.items() if key not in ("stage", "algorithm")}
    says = {key: value for key, value in given.items() if key not in ("kind", "name")}
    algorithm = algorithm_of(table, i, says)
    unknown = [key for key in says if key not in (*MAY_DIFFER, "steps")]
    if unknown:
        kinds = [f.name for f in fields(RunConfig)]
        where = table.at(("stage", str(i), unknown[0]))
        if unknown[0] in kinds:
            raise ValueError(f"{where} is the same for all stages of a chain: write it in the run's own table")
        raise ValueError(f"{where} is unknown in a stage of the kind {kind!r}: {did_you_mean(unknown[0], MAY_DIFFER)}")
    for key, value in says.items():
        values[key] = lay_over(values.get(key), value) if key in MERGED else deepcopy(value)
    values["algorithm"] = algorithm
    return Table(values, origins_of(table, i, values))


def algorithm_of(table: Table, i: int, says: Values) -> Values:
    """The `[algorithm]` of a stage: the run's, or that of its kind, with what the stage changes; takes its keys from `says`.

    A stage that names another preset has nothing of the run's. Settings of a kind's planner and first term may stand in the
    stage itself: `column = "solution"`.
    """
    kind = table.values["stage"][i]["kind"]
    changes = says.pop("algorithm", {})
    if not isinstance(changes, Mapping):
        raise ValueError(
            f"{table.at(('stage', str(i), 'algorithm'))} is {changes!r}, and must be a table: write [stage.algorithm]"
        )
    base: Values = {"preset": kind}
    if kind == "rl":
        preset = {"preset": says.pop("preset")} if "preset" in says else {}
        changes = {**changes, **preset}
        base = {} if "preset" in changes else deepcopy(table.values.get("algorithm", {}))
    found = lay_over(base, changes, of_parts=True)
    if kind in KINDS:
        own = KINDS[str(kind_for(kind, policy_kind(table)))]
        for path, part in ((("planner",), own.planner), (("objective", "0"), own.objective[0][1])):
            for name in (f.name for f in fields(part)):  # pyright: ignore[reportArgumentType]
                if name in says:
                    put(found, (*path, name), says.pop(name))
    return found


def put(values: Values, path: KeyPath, value: object) -> None:
    """Set a value in tables in tables."""
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = value


def lay_over(below: Any, above: Any, of_parts: bool = False) -> Any:
    """A table with the keys of another over it, table by table; with `of_parts`, one that names a kind stands alone."""
    is_other = of_parts and isinstance(above, Mapping) and not {"kind", "use"}.isdisjoint(above)
    if is_other or not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return deepcopy(above)
    both = {key: lay_over(below[key], value, of_parts) if key in below else deepcopy(value) for key, value in above.items()}
    return {**deepcopy(dict(below)), **both}


def origins_of(table: Table, i: int, values: Values) -> dict[KeyPath, str]:
    """Who said each value of a stage's table."""
    own = table.origin(("stage", str(i))) or ""
    given, by = table.values["stage"][i], f"{own}, stage {i + 1}"
    taken = {*given, *(("algorithm",) if given["kind"] in KINDS else ())}
    return {path: by if path[0] in taken else table.origins.get(path, by) for path, _ in leaves(values)}
