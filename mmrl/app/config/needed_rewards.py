"""Rewards as a config names them: runs that are reward models, and rewards inside rewards."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from mmrl.app.plugins.resolve import default_name, with_runs
from mmrl.app.toml.tables import KeyPath, Table, value_at


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
