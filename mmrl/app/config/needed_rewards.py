"""Methods whose idea is a reward: a run that names the method must train on that reward."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from mmrl.app.config.algorithm import Assembly
from mmrl.app.plugins.resolve import default_name, with_runs
from mmrl.app.toml.tables import KeyPath, Table, value_at
from mmrl.runtime.near import nearest


@runtime_checkable
class Weighed(Protocol):
    """A reward of a config, as far as it is looked at here."""

    @property
    def use(self) -> str: ...
    @property
    def weight(self) -> float: ...
    @property
    def args(self) -> Mapping[str, object]: ...


def read_runs_as_rewards(table: Table) -> None:
    """Let `use = "runs/rm"`, the folder of a run, mean the reward model that was trained there, wherever a reward is named."""
    stages: object = table.values.get("stage")
    of_stages = [("stage", str(i), "reward") for i in range(len(stages) if isinstance(stages, list) else 0)]
    for path in (("reward",), ("evaluation", "reward"), *of_stages):
        holder: object = value_at(table.values, *path)
        changed = with_runs(holder)
        refuse_own_run(table.values.get("output"), changed, table.at(path))
        if changed != holder:
            table.set(path, changed, table.origin(path) or table.at(path))


def refuse_own_run(output: object, rewards: object, place: str) -> None:
    """Raise ValueError for a reward that is the run which it would train."""
    for use, args in rewards_in(rewards):
        asked = use, args.get("run"), value_at(args, "server", "run")
        runs = {Path(run).resolve() for run in asked if isinstance(run, str)}
        if isinstance(output, str) and Path(output).resolve() in runs:
            raise ValueError(
                f"{place} asks the run {output!r}, which is the output of this one: a model may not reward itself, so give the "
                "run another output, or the reward another run"
            )


def check_needed_rewards(assembly: Assembly, rewards: Sequence[Weighed], table: Table, evaluated: bool = False) -> None:
    """Raise ValueError for a method without the rewards, of a weight above 0, that it is made of or `evaluated` by."""
    if not rewards and evaluated:
        raise ValueError(
            f"{table.at(('evaluation', 'data'))} has prompts to evaluate on, and no reward says how good an answer is: add "
            "[[reward]] with use = ..., which a stage that teaches does not train on, or leave them out"
        )
    if not rewards and not assembly.algorithm.unscored:
        raise ValueError(
            f"{table.at(('reward',))} is missing: say what is to be rewarded by [[reward]] with use = ..., or --reward"
        )
    trained = {name for reward in rewards if reward.weight > 0 for name in names_in(reward.use, reward.args)}
    if missing := [name for name in assembly.algorithm.needs_rewards if name not in trained]:
        near = ((name, needed) for needed in missing for name in sorted(trained) if nearest(name, [needed]))
        guess = next((f" ({name!r}: did you mean {needed!r}?)" for name, needed in near), "")
        raise ValueError(
            f"{table.at(('algorithm', 'preset'))} is {assembly.preset!r}, a method that trains on the reward "
            f"{' and '.join(map(repr, missing))}, and no [[reward]] with a weight above 0 is it{guess}: add [[reward]] with "
            f"use = {' and one with use = '.join(map(repr, missing))}, or set algorithm.needs_rewards = [] where one of yours "
            "takes its place"
        )


def names_in(use: str, args: Mapping[str, object]) -> Iterator[str]:
    """The names of a reward: its file's, its callable's, and those of the rewards inside it."""
    for _, inner, _ in with_those_inside(use, args):
        yield default_name(inner)
        yield Path(inner.partition(":")[0]).stem


def with_those_inside(
    use: str, args: Mapping[str, object], path: KeyPath = ()
) -> Iterator[tuple[KeyPath, str, Mapping[str, object]]]:
    """Path, name and settings of the rewards inside a reward, at any depth, and of itself."""
    for key, value in args.items():
        for inner, own in rewards_in(value):
            yield from with_those_inside(inner, own, (*path, key))
    yield path, use, args


def rewards_in(value: object) -> list[tuple[str, Mapping[str, object]]]:
    """Name and settings of every reward in a setting, at any depth; those inside of these are in their settings."""
    if isinstance(value, Mapping) and isinstance(value.get("use"), str):
        return [(value["use"], {key: item for key, item in value.items() if key != "use"})]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [found for item in items for found in rewards_in(item)]
