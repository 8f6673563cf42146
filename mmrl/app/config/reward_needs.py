"""Rewards before they score: those inside rewards, the needs that they declare, how they read boxes, for which samples."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib.util import find_spec
from inspect import isfunction
from pathlib import Path
from typing import Any

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.pixels import TakesPixels, try_gradient, with_rewards
from mmrl.answers.needs import Need
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins.resolve import default_name, load, remedy, with_runs
from mmrl.app.toml.tables import KeyPath, Table, value_at
from mmrl.core.types import Prompt
from mmrl.serving.reward_client import is_url
from mmrl.training.rewards.runner import NamedReward


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


log = logging.getLogger("mmrl")


def need_of(function: object) -> Need | None:
    """The need that a reward declares, in its class or, of a function, in its file; None where it declares none.

    Raises ValueError for something else than a `Need`.
    """
    own = function.func if isinstance(function, partial) else function
    found = getattr(sys.modules.get(own.__module__) if isfunction(own) else own, "needs", None)
    if found is None or isinstance(found, Need):
        return found
    raise ValueError(f"reward {name_of(own)!r} has needs = {found!r:.80}: write needs = mmrl.Need(...), or call it otherwise")


def needs_of(function: object) -> Iterator[tuple[str, Need, object]]:
    """Name, need and object of a reward and of the rewards inside it, as far as they declare one."""
    for part in parts_of(function):
        if (need := need_of(part)) is not None:
            yield name_of(part), need, part


def name_of(function: object) -> str:
    """The name of a reward's file, or of its class or itself where it is from no file."""
    own = function.func if isinstance(function, partial) else function if isfunction(function) else type(function)
    file = getattr(sys.modules.get(own.__module__), "__file__", None)
    return own.__name__ if file is None else Path(file).stem


def parts_of(function: object) -> list[object]:
    """A reward and the rewards in its fields."""
    inside = [getattr(function, f.name, None) for f in fields(function)] if is_dataclass(function) else []
    inside += function.keywords.values() if isinstance(function, partial) else []
    held = [one for value in inside for one in (value if isinstance(value, list | tuple) else [value]) if callable(one)]
    return [function, *(part for one in held for part in parts_of(one))]


def reads_boxes(use: str, args: Mapping[str, object]) -> bool:
    """Does a reward, or one inside it, read boxes in the way that the model writes them (a field `space` that is "auto")?"""
    for _, inner, own in with_those_inside(use, args):
        style, plug_in = adapters.split(inner)
        function = None if is_url(inner) or style else load(plug_in, "rewards")
        usual = {f.name: f.default for f in fields(function)} if is_dataclass(function) else {}
        if own.get("space", usual.get("space")) == "auto":
            return True
    return False


def refuse_missing_package(name: str, need: Need) -> None:
    """Raise ModuleNotFoundError where a reward's package is not installed."""
    if need.package and find_spec(need.package) is None:
        raise ModuleNotFoundError(f"reward {name!r} needs the package {need.package}: {need.setup or remedy(need.package)}")


OF_SOUNDS = "a model of sounds such as Stable Audio 3 draw, with policy.seconds"


def other_samples(name: str, wanted: Sequence[str], kind: str, output: str) -> str:
    """The error of a reward that is for samples of another kind."""
    fact = f"reward {name!r} scores {' or '.join(wanted)}, but policy.kind is {kind!r}, whose samples are {output}"
    if output.startswith("video") and "image" in wanted:
        return f'{fact} (policy.frames is above 1): score frames with use = "over_frames" and picture.use = "{name}"'
    if output == "sound":
        return f"{fact} (policy.seconds is set): take a reward of sounds such as band_energy"
    if any("sound" in one for one in wanted):
        drawn = "an LTX-2 draw both, with policy.sound = true" if output == "video" else OF_SOUNDS
        return f"{fact}: take a reward for those, or let {drawn}"
    if output == "image" and "video" in wanted:
        return f"{fact} (policy.frames is 1): take a reward of pictures, or let a model for clips draw policy.frames = 5 or more"
    return f"{fact}: take a reward for those (the files of `mmrl ls rewards` say under Modality what they score)"


def with_inside(function: object, change: Callable[[Any], object]) -> object:
    """A reward whose rewards inside are changed."""
    if not is_dataclass(function) or isinstance(function, type):
        return function
    inside = {f.name: getattr(function, f.name) for f in fields(function) if f.init}
    held = {name: value for name, value in inside.items() if is_dataclass(value) and callable(value)}
    changed = {name: change(value) for name, value in held.items()}
    return replace(function, **changed) if any(changed[name] is not held[name] for name in held) else function


def declared_space(function: object) -> str | None:
    """The `space` of a reward that has one."""
    return getattr(function, "space", None) if is_dataclass(function) else None


def with_gradients(
    algorithm: Algorithm, rewards: Sequence[NamedReward], watches: bool, prompts: Sequence[Prompt] = ()
) -> Algorithm:
    """The algorithm whose terms on the gradient of rewards have those of the run; says so where no reward is watched.

    `watches`: do others score held-out prompts? Each reward is tried with the first of `prompts`, on a picture of noise. Raises
    ValueError for a weighted reward that has no gradient, one that is not finite or points away, or is transformed.
    """
    objective = with_rewards(algorithm.objective, [(one.name, one.weight, one.function) for one in rewards])
    if objective == algorithm.objective:
        return algorithm
    bent = [one.name for one in rewards if one.weight and one.transform is not None]
    if bent:
        raise ValueError(
            f"reward {bent[0]!r} has a transform, which the gradient of its pixels does not pass: leave the transform out, or "
            "set objective.0.top of RewardGradient"
        )
    for one in rewards:
        if prompts and one.weight and isinstance(one.function, TakesPixels):
            try_gradient(one.name, one.function, prompts[0])
    if not watches and all(one.weight for one in rewards):
        log.warning(
            "this run trains on the gradient of its rewards, which is the fastest way to find their faults, and no reward is "
            "watched: add one with weight = 0, or [[evaluation.reward]], for the alarm of reward hacking"
        )
    return replace(algorithm, objective=objective)
