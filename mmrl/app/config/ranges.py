"""The range of every number of a run, by its dotted key."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass

from mmrl.app.config.algorithm import PART_SLOTS, Assembly
from mmrl.app.config.data import MixedData, data_tables
from mmrl.app.config.run import RunConfig
from mmrl.app.config.slots import check_kind
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins import resolve as plugins
from mmrl.app.toml.reader import RESERVED
from mmrl.app.toml.tables import KeyPath, dotted_key
from mmrl.core.ranges import Range, ranges_of
from mmrl.serving.reward_client import RemoteReward, is_url

OBJECTIVE: KeyPath = ("algorithm", "objective")


def ranges_of_config(config: RunConfig) -> dict[str, str]:
    """`optimizer.lr` -> "above 0 and at most 1000", of every number that has a range, settings of plug-ins included."""
    return dict(ranges_below(config, ())) | {dotted_key(path): words for path, words in ranges_of_plug_ins(config)}


def ranges_below(part: object, path: KeyPath) -> Iterator[tuple[str, str]]:
    """Dotted keys and ranges of a dataclass's numbers, and of the dataclasses in it."""
    if isinstance(part, Assembly):
        yield from ranges_below(part.algorithm, path)
    elif isinstance(part, MixedData):
        yield from ranges_below(part.sources, path)
    elif is_dataclass(part) and not isinstance(part, type):
        own = ranges_of(type(part))
        for f in fields(part):
            key = f"{f.name}_" if f.name in RESERVED and path[:1] == OBJECTIVE[:1] else f.name
            value, at = getattr(part, f.name), (*path, key)
            yield from ranges_of_objective(value, at) if at == OBJECTIVE else ranges_below(value, at)
            if f.name in own and f.name not in PART_SLOTS:
                yield dotted_key(at), own[f.name]
    elif isinstance(part, list | tuple):
        entries: Sequence[object] = list(part)  # pyright: ignore[reportUnknownArgumentType]
        for i, entry in enumerate(entries):
            yield from ranges_below(entry, (*path, str(i)))


def ranges_of_objective(terms: Sequence[tuple[float, object]], path: KeyPath) -> Iterator[tuple[str, str]]:
    for i, (_, term) in enumerate(terms):
        yield dotted_key((*path, str(i), "coef")), Range().words
        yield from ranges_below(term, (*path, str(i)))


def ranges_of_plug_ins(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    """Paths and ranges of what rewards, data sets and the sampler are told."""
    for path, rewards in ((("reward",), config.reward), (("evaluation", "reward"), config.evaluation.reward)):
        for i, reward in enumerate(rewards):
            style, use = adapters.split(reward.use)
            if not style:
                found = RemoteReward if is_url(use) else plugins.load(use, "rewards")
                yield from told(ranges_of(found), reward.args, (*path, str(i)))
    for path, data in (*data_tables(config.data, ("data",)), *data_tables(config.evaluation.data, ("evaluation", "data"))):
        yield from told(ranges_of(plugins.load(data.use, "datasets")), data.args, path)
    if config.sampler.kind:
        yield from told(ranges_of(check_kind("sampler", config.sampler.kind, "sampler.kind")), config.sampler.args, ("sampler",))


def told(ranges: Mapping[str, str], args: Mapping[str, object], path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    yield from (((*path, key), ranges[key]) for key in args if key in ranges)
