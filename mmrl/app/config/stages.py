"""The stages of a chain: every `[[stage]]` is the run's config with differences, read as a run of its own."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mmrl.algorithms.kinds import KINDS, kind_for
from mmrl.algorithms.miners import MINERS, Difficulty, Miner
from mmrl.app.config.algorithm import given_in
from mmrl.app.config.data import data_tables
from mmrl.app.config.run import Resolved, RunConfig, read_run
from mmrl.app.modality.taught import follows_teachers
from mmrl.app.plugins.resolve import STAGE
from mmrl.app.toml.reader import UnknownKeyError, check_slip, make
from mmrl.app.toml.tables import KeyPath, Table, Values, dotted_key, leaves, value_at
from mmrl.runtime.blame import refuse_where
from mmrl.runtime.near import did_you_mean, nearest
from mmrl.training.settings import TRAINS, StageKind, StageSettings, TrainSettings, Until, in_turn

OF_THE_CHAIN = ("seed", "deterministic", "steps", "save_every", "save_minutes")
"""Settings of training that all stages share, or that every stage has beside its differences."""
MERGED = ("optimizer", "health")
"""Tables of which a stage may name single keys; all others it replaces whole."""
MAY_DIFFER = (*(f.name for f in fields(TrainSettings) if f.name not in OF_THE_CHAIN), *("algorithm", "data", "reward", "sampler"))
OF_THE_STAGE = tuple(f.name for f in fields(StageSettings) if f.name != "args")
MEASURED = {"total", "completion_length", "diversity", "source", "by"}
"""What evaluations measure besides rewards."""
SEEDS_APART = 1_000_003
MOST_STAGES, MOST_TURNS = 100, 300


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
    name: str = ""
    """By which later stages name its rows."""
    kind: StageKind = "rl"
    miner: Miner | None = None
    """What makes rows for a later stage; None: the stage trains."""
    until: Until | None = None
    """When it ends before its last step."""
    in_round: int = 0
    """Of its loop, from 1 on; 0: it is in none."""
    before: tuple["Stage", ...] = field(default=(), repr=False)
    """The stages in front of it, whose rows it may name."""

    @property
    def sources(self) -> list[str]:
        """The stages whose rows are its data."""
        used = [data.use for _, data in data_tables(self.resolved.config.data, ("data",))]
        return [use.removeprefix(STAGE) for use in used if use.startswith(STAGE)]

    @property
    def end(self) -> int:
        return self.begin + self.resolved.config.steps

    @property
    def place(self) -> str:
        """`stage 2 of 3, rl`; empty for a run that is one stage."""
        return f"stage {self.number} of {self.count}, {self.label}" if self.count > 1 else ""

    @property
    def where(self) -> str:
        """`stage 2 of 3, rl`, or the name of the only stage."""
        return self.place or self.name


def stages_of(resolved: Resolved) -> list[Stage]:
    """The stages of a run, in their order: one that is the run itself where it has no `[[stage]]`.

    Raises ValueError, naming stage and key, where a stage's settings are none of a run, or do not go together.
    """
    config, begin, found = resolved.config, 0, list[Stage]()
    if not config.stage:
        return having_readers([Stage(1, 1, "", 0, resolved)])
    where = resolved.table.at(("stage",))
    if len(config.stage) > MOST_STAGES:
        raise ValueError(f"{where} has {len(config.stage)} stages, and a chain {MOST_STAGES} at most: give them more steps each")
    for i, one in enumerate(config.stage):
        check_slip(one.args, "name", ("stage", str(i)), resolved.table)
    for i, _ in enumerate(config.stage):
        check_table(resolved.table, config.stage, i)
    turns = in_turn(config.stage)
    if len(turns) > MOST_TURNS:
        raise ValueError(f"{where} takes {len(turns)} turns with its loops, and a chain {MOST_TURNS} at most: lower rounds")
    for k, (i, in_round) in enumerate(turns):
        stage, table, mining = config.stage[i], *table_of(resolved.table, i)
        try:
            own = read_run(table, resolved.name)
        except UnknownKeyError as error:
            raise ValueError(str(error)) from None
        if own.config.ahead:
            raise ValueError(
                f"{table.at(('ahead',))} is {own.config.ahead}, and a chain of stages samples by the step: set it to 0"
            )
        miner = make(MINERS[stage.kind], mining, ("stage", str(i)), resolved.table) if stage.kind in MINERS else None
        rounds = max((one.rounds or 0 for one in config.stage if stage.label in (one.stages or ())), default=0)
        label = f"{stage.label} (round {in_round} of {rounds})" if in_round else stage.label
        one = replace(own.config, output=config.output, seed=(config.seed + SEEDS_APART * k) % 2**32)
        own = replace(own, config=one)
        rest = stage.label, stage.kind, miner, stage.until, in_round, tuple(found)
        found.append(Stage(k + 1, len(turns), label, begin, own, *rest))
        begin = found[-1].end
        check_until(found[-1], resolved.table.at(("stage", str(i), "until", "metric")))
    check_rows(found, resolved.table)
    check_used(resolved.table)
    return having_readers(found)


def having_readers(stages: list[Stage]) -> list[Stage]:
    """The stages; raises ValueError where the run has teachers, and no stage follows one."""
    teachers = getattr(stages[0].resolved.config.policy, "teachers", ())
    labels = ", ".join(dict.fromkeys(stage.resolved.config.algorithm.label for stage in stages))
    if teachers and not any(follows_teachers(stage.resolved.config.algorithm.algorithm) for stage in stages):
        raise ValueError(
            f"policy.teachers has {len(teachers)} table(s), and nothing in algorithm {labels} reads them: take a "
            'preset such as opd or diffusion_opd, a term FollowTeacher or FlowKL with model = "teacher", or remove them'
        )
    return stages


def check_table(table: Table, stages: Sequence[StageSettings], i: int) -> None:
    """Raise ValueError where a stage lacks what its kind needs, or has what others need."""
    stage, path = stages[i], ("stage", str(i))
    wanted = ("rounds", "stages") if stage.kind == "loop" else ("steps",) if stage.kind in TRAINS and not stage.until else ()
    allowed = (*wanted, "until") if stage.kind in TRAINS else wanted
    for key in ("until", *wanted) if stage.kind in TRAINS else wanted:
        check_slip(stage.args, key, path, table)
    if missing := [key for key in wanted if getattr(stage, key) is None]:
        raise ValueError(f"{table.at((*path, missing[0]))} is missing: a stage of the kind {stage.kind!r} needs it")
    for key in ("steps", "until", "rounds", "stages"):
        if getattr(stage, key) is not None and key not in allowed:
            why = (
                "until.most is its last step"
                if key == "steps" and stage.until
                else f"a stage of the kind {stage.kind!r} has none"
            )
            raise ValueError(f"{table.at((*path, key))} is given, and {why}: leave it out")
    if stage.until is not None and "data" not in table.values.get("evaluation", {}):
        raise ValueError(f"{table.at((*path, 'until'))} looks at held-out prompts, and [evaluation.data] is missing: add it")
    if stage.until is not None and stage.until.every > stage.until.most:
        where, most = table.at((*path, "until", "every")), stage.until.most
        raise ValueError(f"{where} is {stage.until.every}, and the stage ends after {most} steps without a look: lower every")
    if stage.kind == "loop":
        check_loop(table, stages, i)


def check_used(table: Table) -> None:
    """Raise ValueError for what the run's own [algorithm] says and every stage has otherwise."""
    users = [one for one in table.values["stage"] if one["kind"] not in (*KINDS, "loop")]
    said = [path for path, _ in leaves(given_in(table)) if path and path != ("preset",)]
    unused = [path for path in said if all(is_replaced(path, one.get("algorithm", {})) for one in users)]
    if unused:
        keys = ", ".join(f"algorithm.{dotted_key(path)}" for path in unused)
        where = table.origin(("algorithm", *unused[0]))
        raise ValueError(f"{where}: {keys}: no stage uses this: write it in the [[stage]] that is to have it, or leave it out")


def is_replaced(path: KeyPath, changes: Any) -> bool:
    """Does a stage's own [algorithm] say something else in this place of the run's?"""
    if not path or not isinstance(changes, Mapping) or not {"kind", "use"}.isdisjoint(changes):
        return True
    return path[0] in changes and is_replaced(path[1:], changes[path[0]])


def check_loop(table: Table, stages: Sequence[StageSettings], i: int) -> None:
    """Raise ValueError for a loop that names no stages, several by one name, or none that trains."""
    stage, path = stages[i], ("stage", str(i))
    names = [one.label for one in stages if one.kind != "loop"]
    for name in stage.stages or ():
        if name not in names and any(one.label == name for one in stages):
            raise ValueError(f"{table.at((*path, 'stages'))} names {name!r}, which is a loop: name the stages that it repeats")
        if names.count(name) != 1:
            few = did_you_mean(name, names) if name not in names else "several have that name: give each its own"
            raise ValueError(f"{table.at((*path, 'stages'))} names the stage {name!r}: {few}")
    if stage.args:
        raise ValueError(
            f"{table.at((*path, next(iter(stage.args))))} is given, and a loop has rounds and stages only: move it to one of them"
        )
    if not any(one.label in (stage.stages or ()) and one.kind in TRAINS for one in stages):
        raise ValueError(f"{table.at((*path, 'stages'))} holds no stage that trains: add one of {', '.join(TRAINS)}")


def check_until(stage: Stage, where: str) -> None:
    """Raise ValueError for a metric that no evaluation has; parts of rewards are known to their rewards alone."""
    if stage.until is None:
        return
    config, first = stage.resolved.config, stage.until.metric.removeprefix("eval/").partition("/")[0]
    known = {one.label for one in (*config.reward, *config.evaluation.reward)} | {one.name for one in config.evaluation.also}
    if first not in known | MEASURED:
        raise ValueError(f"{where} is {stage.until.metric!r}: {did_you_mean(first, known | {'total'})}")


def check_rows(stages: Sequence[Stage], table: Table) -> None:
    """Raise ValueError for a stage that trains on rows which none before it writes, and for rows that none after it reads."""
    for stage in stages:
        before = [one.name for one in stage.before if one.miner is not None]
        for name in stage.sources:
            if name not in before:
                known = did_you_mean(name, before) if before else "none before it is a filter or mines pairs"
                raise ValueError(f'{stage.where}: its data is "{STAGE}{name}": {known}')
    for k, stage in enumerate(stages):
        if stage.miner is None:
            continue
        refuse_twins(stage, stages[k + 1 :])
        if not any(stage.name in one.sources for one in stages[k + 1 :]):
            refuse_near_names(stage, stages[k + 1 :], table)
            where, data = table.origin(("stage",)) or "the config", f'data = {{use = "{STAGE}{stage.name}"}}'
            raise ValueError(f"{where}, {stage.where}: no later stage takes its rows: give one {data}, or remove this one")
        check_mining(stage)


def refuse_twins(stage: Stage, later: Sequence[Stage]) -> None:
    """Raise ValueError where another stage makes rows of the same name before one takes those of this stage; loops may."""
    for one in later:
        if stage.name in one.sources:
            return
        if one.miner is not None and one.name == stage.name and not stage.in_round:
            raise ValueError(
                f"{stage.place}: no stage takes its rows before {one.place} makes rows of that name, too: give each a name"
            )


def refuse_near_names(stage: Stage, later: Sequence[Stage], table: Table) -> None:
    """Raise ValueError where the data of a later stage are nearly called by the rows of this one."""
    for one in later:
        for _, data in data_tables(one.resolved.config.data, ("data",)):
            if nearest(data.use, [meant := f"{STAGE}{stage.name}"]) is not None:
                where = table.at(("stage", str(one.number - 1), "data", "use"))
                raise ValueError(f"{where} is {data.use!r}: did you mean {meant!r}, whose rows no later stage takes?")


def check_mining(stage: Stage) -> None:
    """Raise ValueError for a stage that could not find a row whatever the policy writes."""
    config, count = stage.resolved.config, num_samples(stage)
    writes = not isinstance(stage.miner, Difficulty) or bool(stage.miner.column)
    reasons = {
        f"a pair takes two samples of a prompt, and num_samples is {count}: set it to 2 or more": (
            stage.miner is not None and count < stage.miner.least_samples
        ),
        "no reward has a weight, so no sample is better than another: add [[stage.reward]]": (
            not any(one.weight for one in config.reward)
        ),
        "its rows would be sounds, which no stage is taught: take a filter without column": writes and config.makes == "sound",
        "its rows are single texts, and [environment] makes several turns: leave it out": writes
        and config.environment is not None,
    }
    refuse_where(f"{stage.where}: ", reasons)


def num_samples(stage: Stage) -> int:
    """How many samples of a prompt a stage that trains nothing draws."""
    own = 0 if stage.miner is None else stage.miner.num_samples
    return own or stage.resolved.config.algorithm.algorithm.group_size


def chain_label(resolved: Resolved) -> str:
    """`cold start, then 3 rounds of rl, pairs, dpo`; the method where the run has no stages."""
    stages, found = resolved.config.stage, list[str]()
    for i, in_round in in_turn(stages):
        holder = next((one for one in stages if stages[i].label in (one.stages or ())), None)
        if not in_round or holder is None:
            found.append(stages[i].label)
        elif (text := f"{holder.rounds} rounds of {', '.join(holder.stages or ())}") not in found:
            found.append(text)
    return ", then ".join(found) or resolved.config.algorithm.label


def stage_at(stages: list[Stage], step: int | None) -> int:
    """The place in the list of the stage that a checkpoint of this step is of; 0 where there is none."""
    return next((i for i, one in enumerate(stages) if (step or 0) <= one.end), len(stages) - 1)


def table_of(table: Table, i: int) -> tuple[Table, Values]:
    """The table of a stage's run, the run's own and over it what the stage says; then the settings of its miner."""
    given = table.values["stage"][i]
    kind = given["kind"]
    values: Values = {key: deepcopy(value) for key, value in table.values.items() if key not in ("stage", "algorithm")}
    says = {key: value for key, value in given.items() if key not in OF_THE_STAGE}
    own = [f.name for f in fields(MINERS[kind])] if kind in MINERS else []
    mining = {key: says.pop(key) for key in own if key in says}
    algorithm = algorithm_of(table, i, says)
    unknown = [key for key in says if key not in MAY_DIFFER]
    if unknown:
        kinds = [f.name for f in fields(RunConfig)]
        where = table.at(("stage", str(i), unknown[0]))
        if unknown[0] in kinds:
            raise ValueError(f"{where} is the same for all stages of a chain: write it in the run's own table")
        own += ["preset"] if kind == "rl" else places(kind, value_at(table.values, "policy", "kind"))
        known = did_you_mean(unknown[0], [*own, *MAY_DIFFER])
        raise ValueError(f"{where} is unknown in a stage of the kind {kind!r}: {known}")
    for key, value in says.items():
        values[key] = lay_over(values.get(key), value) if key in MERGED else deepcopy(value)
    values["algorithm"] = algorithm
    until = given.get("until") or {}
    values["steps"] = 0 if kind in MINERS else until.get("most", given.get("steps"))
    return Table(values, origins_of(table, i, values)), mining


def algorithm_of(table: Table, i: int, says: Values) -> Values:
    """The `[algorithm]` of a stage: the run's, or that of its kind, with what the stage changes; takes its keys from `says`.

    What the run wrote stays under another preset, too. Settings of a kind's planner and first term may stand in the stage
    itself: `column = "solution"`.
    """
    kind = table.values["stage"][i]["kind"]
    changes = says.pop("algorithm", {})
    if not isinstance(changes, Mapping):
        raise ValueError(
            f"{table.at(('stage', str(i), 'algorithm'))} is {changes!r}, and must be a table: write [stage.algorithm]"
        )
    base: Values = {"preset": kind}
    if kind not in KINDS:
        changes = {**changes, **({"preset": says.pop("preset")} if "preset" in says else {})}
        base = given_in(table)
        refuse_idle_preset(base, changes, table.at(("stage", str(i))))
    found = lay_over(base, changes, of_parts=True)
    for name, path in places(kind, value_at(table.values, "policy", "kind")).items():
        if name in says:
            put(found, path, says.pop(name))
    return found


def refuse_idle_preset(base: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> None:
    """Raise ValueError for a stage's preset of which nothing would be left: the run's own [algorithm] names every part."""
    named = {key for key, value in base.items() if isinstance(value, list) or is_replaced(("",), value)}
    if "preset" in changes and named | set(changes) >= {"objective", "advantage", "aggregation", "planner"}:
        raise ValueError(
            f"{where} has the preset {changes['preset']!r}, of which nothing is left: the run's own [algorithm] names every part "
            "and stays. Give that to the stages that are to have it, as [stage.algorithm]"
        )


def places(kind: str, policy: object) -> dict[str, KeyPath]:
    """Settings of a kind's planner and first term, which may stand in the stage itself, and their places in [algorithm]."""
    if kind not in KINDS:
        return {}
    own = KINDS[str(kind_for(kind, policy))]
    parts = ((("objective", "0"), own.objective[0][1]), (("planner",), own.planner))
    return {f.name: (*path, f.name) for path, part in parts for f in fields(part) if f.init}  # pyright: ignore[reportArgumentType] - dataclasses


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

    def is_own(path: KeyPath) -> bool:
        return path[0] in taken or ("preset" in given and path == ("algorithm", "preset"))

    return {path: by if is_own(path) else table.origins.get(path, by) for path, _ in leaves(values)}
