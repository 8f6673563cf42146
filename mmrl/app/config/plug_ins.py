"""The rewards, data sets and sampler that a config names: found and their settings checked once, made where they are needed.

Making one may load a model, ask a server or read a data set; what can be refused without is refused before.
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from typing import get_args, get_origin, get_type_hints

from mmrl.app.config.data import DataConfig, MixedData
from mmrl.app.config.reward_needs import rewards_in
from mmrl.app.config.run import EnvironmentConfig, Resolved, RunConfig, SamplerConfig, UnweightedReward
from mmrl.app.config.slots import SLOTS, check_declared, check_fit, check_kind
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins import resolve as plugins
from mmrl.app.plugins.resolve import PlugIn, guarded
from mmrl.app.toml.reader import check_keys, check_slip, instance, read, refuse_missing, settings, typed_value
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.core.episodes import Environment, Worlds
from mmrl.core.hooks import EnvironmentHooks, PlannerHooks, with_hooks
from mmrl.core.protocols import PromptSampler
from mmrl.core.types import Prompt
from mmrl.data.sources import Marking, Sources, StreamedSources, join_sources, mark_all
from mmrl.runtime.ranges import hints_of
from mmrl.runtime.sandbox.sandbox import MOST, RunsCode
from mmrl.serving.reward_client import RemoteReward, is_url
from mmrl.training.worlds.runner import Answering, WorldRunner

log = logging.getLogger("mmrl")
SERVED = ("deadline_s", "token_env")
"""Keys of a reward behind HTTP."""
NUM_TOLD = 3
"""Arguments of an environment's function that the run gives: prompt, turns and seed."""
SEQUENCES, STREAMS, MIXED = "Shuffled", "Streamed", "Mixture"
"""The samplers of configs that name none."""
Prompts = Sequence[Prompt] | Iterable[Prompt]
NamedMake = tuple[UnweightedReward, Callable[[], PlugIn]]
"""A reward's settings, and what makes it."""
Loaded = Sequence[tuple[UnweightedReward, PlugIn]]
"""Rewards with their settings, those to train on first."""


@dataclass(frozen=True)
class PlugIns:
    """The plug-ins that a config names, each ready to be made."""

    rewards: tuple[NamedMake, ...]
    """Those to train on, then those of [evaluation]."""
    data: Callable[[], Prompts]
    held_out: Callable[[], Prompts] | None
    sampler: Callable[[Prompts, int], PromptSampler]
    """From prompts and the run's seed."""
    environment: Callable[[], Environment] | None = None


def read_plug_ins(resolved: Resolved) -> PlugIns:
    """Find what a config names and check its settings.

    Raises FileNotFoundError without a plug-in's file, and ValueError, naming place and key, for no such plug-in, an unknown or
    missing key, or a value of the wrong type.
    """
    config, table, known = resolved.config, resolved.table, dict[str, Callable[[], PlugIn]]()
    held_out, rewards = config.evaluation.data, read_rewards(config.reward, ("reward",), table, known)
    return PlugIns(
        rewards=(*rewards, *read_rewards(config.evaluation.reward, ("evaluation", "reward"), table, known)),
        data=read_data(config.data, ("data",), table),
        held_out=None if held_out is None else read_data(held_out, ("evaluation", "data"), table),
        sampler=read_sampler(config.sampler, table, config.data),
        environment=None if config.environment is None else read_environment(config.environment, table),
    )


def read_rewards(
    rewards: Sequence[UnweightedReward], path: KeyPath, table: Table, known: dict[str, Callable[[], PlugIn]]
) -> list[NamedMake]:
    """A list of rewards, each with its settings; equal entries are one object, which `known` remembers."""
    found: list[NamedMake] = []
    for i, reward in enumerate(rewards):
        key = repr((reward.use, sorted(reward.args.items(), key=lambda item: item[0])))
        fresh = read_reward(reward, (*path, str(i)), table)
        make = known.setdefault(key, cache(guarded(f"{table.at((*path, str(i)))}: {reward.use}")(fresh)))
        found.append((reward, make))
    return found


def read_reward(reward: UnweightedReward, path: KeyPath, table: Table) -> Callable[[], PlugIn]:
    """A reward of a config, its own fields aside from those by which it is called."""
    own = [f.name for f in fields(reward) if f.name != "args"]
    return reward_of(reward.use, reward.args, path, table, own)


def reward_of(
    use: str, args: Mapping[str, object], path: KeyPath, table: Table, beside: Sequence[str] = ()
) -> Callable[[], PlugIn]:
    """A reward by name, file, address or another trainer's function; its fields may hold rewards: `scorer.use = "pick_score"`.

    A reward behind HTTP is made once its server has said that it serves it. Errors are those of `read_plug_ins`.
    """
    inside = {key: rewards_inside(value, (*path, key), table) for key, value in args.items() if rewards_in(value)}
    given = {key: value for key, value in args.items() if key not in inside}
    if is_url(use):
        check_keys(args, [*beside, *SERVED], path, table)
        remote = {"url": use, **settings(RemoteReward, given, path, table, beside=beside)}
        return lambda: instance(RemoteReward, remote, path, table).connect()
    style, plug_in = adapters.split(use)
    function = plugins.load(plug_in, "rewards")
    if style:
        return lambda: adapters.adapt(style, function, given | values_inside(inside), path, table, beside)
    adapters.refuse_foreign(function, use, table.at(path))
    for key, value in given.items():
        if isinstance(value, Mapping) and takes_function(function, key):
            check_slip(value, "use", (*path, key), table)
    # a function's first argument is the group
    skip = 0 if inspect.isclass(function) else 1
    values = settings(function, given, path, table, skip=skip, beside=[*beside, *inside])
    check_keys(inside, [*inspect.signature(function).parameters][skip:], path, table)
    refuse_missing(function, [*values, *inside], path, table, skip)
    if inspect.isclass(function):
        return lambda: instance(function, values | values_inside(inside), path, table, is_checked=not inside)
    return lambda: partial(function, **values, **values_inside(inside)) if args else function


def takes_function(function: PlugIn, key: str) -> bool:
    """Is a setting of a plug-in a function, such as another reward?"""
    hint = hints_of(function).get(key) if inspect.isclass(function) and is_dataclass(function) else None
    return any(get_origin(part) is Callable for part in (hint, *get_args(hint)))


def rewards_inside(value: object, path: KeyPath, table: Table) -> Callable[[], object]:
    """A setting of a reward, in which every table with a `use` will be the reward it names."""
    if isinstance(value, Mapping):
        inside = {key: item for key, item in value.items() if key != "use"}
        if isinstance(value.get("use"), str):
            return reward_of(value["use"], inside, path, table, ("use",))
        entries = {key: rewards_inside(item, (*path, key), table) for key, item in value.items()}
        return lambda: values_inside(entries)
    if isinstance(value, list):
        items = [rewards_inside(item, (*path, str(i)), table) for i, item in enumerate(value)]
        return lambda: [item() for item in items]
    return lambda: value


def values_inside(entries: Mapping[str, Callable[[], object]]) -> dict[str, object]:
    return {key: make() for key, make in entries.items()}


def read_data(data: DataConfig, path: KeyPath, table: Table) -> Callable[[], Prompts]:
    """A data set whose `load` is given all it needs, of the types it names, or several joined. Errors as in `read_plug_ins`."""
    if isinstance(data, MixedData):
        makes = {one.name: (read_data(one, (*path, str(i)), table), one.category) for i, one in enumerate(data.sources)}
        return lambda: join_sources(
            {name: mark_all(make(), Marking(name, column)) for name, (make, column) in makes.items()}, data.weights
        )
    load = plugins.load(data.use, "datasets")
    own = [f.name for f in fields(data) if f.name != "args"]
    hints = get_type_hints(load, include_extras=True)
    # a data set's own argument `name` is written `name_` beside the name of a source
    written = {f"{name}_" if name in own else name: one for name, one in inspect.signature(load).parameters.items()}
    check_keys(data.args, [*written, *own], path, table)
    missing = [key for key, one in written.items() if one.default is one.empty and key not in data.args]
    if missing:
        raise ValueError(f"{table.at((*path, missing[0]))} is missing: the data set {data.use!r} needs {', '.join(missing)}")
    for key, value in data.args.items():
        hint, at = hints.get(written[key].name, object), (*path, key)
        typed_value(hint, read(hint, value, at, table), at, table)
    args = {written[key].name: value for key, value in data.args.items()}
    return guarded(f"{table.at(path)}: {data.use}")(partial(load, **args))


def read_environment(config: EnvironmentConfig, table: Table) -> Callable[[], Environment]:
    """The environment of a config, a function of (prompt, turns, seed) as one; errors as in `read_plug_ins`."""
    path: KeyPath = ("environment",)
    style, place = plugins.foreign_world(config.use)
    plug_in: PlugIn = plugins.load(place, "environments") if style is None else style
    is_class, beside = inspect.isclass(plug_in), [f.name for f in fields(config) if f.name != "args"]
    skip = 1 if style is not None else 0 if is_class else NUM_TOLD
    functions = {key: value for key, value in config.args.items() if takes_function(plug_in, key) and ".py" in str(value)}
    given = {key: value for key, value in config.args.items() if key not in functions}
    values = settings(plug_in, given, path, table, skip=skip, beside=beside)
    values |= {key: plugins.load(str(value), "environments") for key, value in functions.items()}
    if style is not None:
        values = {"place": place, **values}
    refuse_missing(plug_in, values, path, table, 0 if is_class else skip)

    def make() -> Environment:
        made = instance(plug_in, values, path, table) if is_class else Answering(partial(plug_in, **values))
        if not isinstance(made, Environment):
            raise ValueError(
                f"{table.at(path)}: {config.use} has no open(prompt, seed): give it one that returns a world with step(turn) and "
                "close(), or write a function of (prompt, turns, seed)"
            )
        return made

    return guarded(f"{table.at(path)}: {config.use}")(make)


def episodes_at_once(config: RunConfig, processes: int = 1) -> int:
    """Episodes that each of these processes plays at a time, while it trains or answers held-out prompts."""
    asked = config.evaluation
    held_out = 0 if asked.data is None else asked.batch_size * asked.num_samples
    return max(config.prompts_per_step // processes * config.algorithm.algorithm.group_size, held_out)


def worlds_of(
    config: RunConfig, plug_ins: PlugIns, prompts: Sequence[Prompt], space: str | None, processes: int = 1
) -> Worlds | None:
    """The worlds that answer the policy's turns; ValueError where they cannot be made, or not for these prompts.

    `space` is how the policy writes boxes, for an environment whose own field `space` is auto.
    """
    if config.environment is None or plug_ins.environment is None:
        return None
    environment = plug_ins.environment()
    if is_dataclass(environment) and getattr(environment, "space", None) == "auto":
        if space is None:
            raise ValueError(
                f"environment {config.environment.use!r} reads boxes, but it is not known how this model writes them: set "
                "policy.box_space to pixel, resized, norm1000, norm1 or norm1000_yx"
            )
        environment = replace(environment, space=space)
    count, apart = episodes_at_once(config, processes), config.environment.call.where == "process"
    if isinstance(environment, RunsCode) and environment.sandbox is not None and count > MOST and not apart:
        raise ValueError(
            f"environment {config.environment.use!r} has a sandbox for each of {count} episodes at a time, and a process may run "
            f"{MOST}: lower prompts_per_step, algorithm.group_size, evaluation.batch_size or evaluation.num_samples"
        )
    hooks = with_hooks(environment, EnvironmentHooks)
    hooks.check_prompts(prompts)
    if not hooks.repeats and with_hooks(config.algorithm.algorithm.planner, PlannerHooks).branches:
        raise ValueError(
            f"environment {config.environment.use!r} does not repeat, and algorithm {config.algorithm.label} goes on from turns "
            "of earlier episodes, whose worlds are asked again: take worlds that draw from their seed alone, or another algorithm"
        )
    if not hooks.repeats:
        log.warning(
            f"environment {config.environment.use!r} does not repeat: the audit cannot compare what it answers, mmrl sample "
            "may play another episode, and a resumed run is another one"
        )
    return WorldRunner(environment, config.environment.limits, config.environment.call, config.environment.wave)


def read_sampler(config: SamplerConfig, table: Table, data: DataConfig | None = None) -> Callable[[Prompts, int], PromptSampler]:
    """The sampler of a config; errors as in `read_plug_ins`, and ValueError for a part of another slot."""
    path: KeyPath = ("sampler",)
    where, given = table.at(path), config.args
    if isinstance(data, MixedData) and data.weights and (config.use or config.kind not in ("", MIXED)):
        raise ValueError(
            f"{where} is {config.use or config.kind}, which draws as it likes, and the [[data]] tables have weights: remove the "
            f'weights, or take kind = "{MIXED}"'
        )
    if config.kind and config.use:
        raise ValueError(f"{where} has both kind and use: keep kind for a sampler of mmrl, use for one of yours")
    if not config.kind and not config.use:
        if given:
            key = next(iter(given))
            raise ValueError(f'{table.at((*path, key))} is a setting of one sampler: name it, such as kind = "{STREAMS}"')
        return usual_sampler
    if config.use:
        cls: PlugIn = plugins.load(config.use, "algorithms")
        check_fit("sampler", cls, where)
    else:
        cls = check_kind("sampler", config.kind, table.at((*path, "kind")))
    num_given = len(SLOTS["sampler"].made_with)
    values = settings(cls, given, path, table, skip=num_given, beside=("kind", "use"))
    refuse_missing(cls, values, path, table, num_given)

    def make(prompts: Prompts, seed: int) -> PromptSampler:
        if config.kind == SEQUENCES and not isinstance(prompts, Sequence):
            raise ValueError(f'{where}: {SEQUENCES} needs all prompts at once, and the data set is a stream: take "{STREAMS}"')
        with guarded(f"{where}: {config.use or config.kind}"):
            sampler = instance(partial(cls, prompts, seed), values, path, table)
        check_declared("sampler", sampler, where)
        return sampler

    return make


def usual_sampler(prompts: Prompts, seed: int) -> PromptSampler:
    """Shuffled epochs of a sequence, a stream shuffled within a buffer, or several data sets in their shares."""
    several = isinstance(prompts, Sources | StreamedSources)
    kind = MIXED if several else SEQUENCES if isinstance(prompts, Sequence) else STREAMS
    return check_kind("sampler", kind, "sampler.kind")(prompts, seed)


def with_kind(config: SamplerConfig, sampler: PromptSampler) -> SamplerConfig:
    """The config of the sampler that was made, by its kind."""
    return config if config.use else replace(config, kind=type(sampler).__name__)
