"""`[data]`, one data set, or `[[data]]`, several: which plug-ins, their settings, and how often each is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mmrl.app.plugins.resolve import default_name
from mmrl.app.toml.reader import check_slip, make
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.runtime.near import did_you_mean
from mmrl.runtime.ranges import PositiveShare, check_ranges

TOLERANCE = 1e-6
"""By so much the weights of sources may miss 1."""


@dataclass(frozen=True)
class DataConfig:
    """A data set: which plug-in, and what its `load` is called with."""

    use: str
    """A name that `mmrl ls datasets` lists, or a file of your own: ./my_dataset.py."""
    args: Mapping[str, object] = field(default_factory=dict)
    """All other keys of the table."""


@dataclass(frozen=True)
class SourceConfig(DataConfig):
    """One of several data sets."""

    name: str = ""
    """The source's name, in prompts' ids, in metrics and for `[[reward]] sources`; empty: the name of the data set."""
    weight: PositiveShare | None = None
    """Its share of the prompts that are drawn; all add up to 1. None, in all tables: in proportion to their prompts."""
    category: str = ""
    """The column of its prompts by which samplers tell kinds apart; empty: `category`, or the source's name without it."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class MixedData(DataConfig):
    """Several data sets; `use` holds their names."""

    sources: tuple[SourceConfig, ...] = ()

    @property
    def weights(self) -> dict[str, float] | None:
        """The share of each source that is drawn; None: none was given."""
        given = {one.name: one.weight for one in self.sources if one.weight is not None}
        return given or None


def data_tables(data: DataConfig | None, path: KeyPath) -> list[tuple[KeyPath, DataConfig]]:
    """Every data set of a table with its path; none where there is no table."""
    if isinstance(data, MixedData):
        return [((*path, str(i)), one) for i, one in enumerate(data.sources)]
    return [] if data is None else [(path, data)]


def read_data_tables(given: object, path: KeyPath, table: Table, draws: bool = True) -> DataConfig | None:
    """The data of `[data]` or `[[data]]`; None where neither is a table, which others refuse.

    `draws` is False where all prompts are looked at and weights have no meaning. Raises ValueError for something missing or
    unknown, two sources of one name, or weights that do not add up to 1.
    """
    if isinstance(given, Mapping):
        return make(DataConfig, given, path, table)
    if not isinstance(given, list | tuple) or not given or not all(isinstance(one, Mapping) for one in given):
        return None
    entries: Sequence[Mapping[str, object]] = list(given)
    for word in ("name", "weight"):
        for i, one in enumerate(entries if any(word in entry for entry in entries) else ()):
            check_slip(one, word, (*path, str(i)), table)
    sources = [make(SourceConfig, one, (*path, str(i)), table) for i, one in enumerate(entries)]
    sources = [replace(one, name=one.name or default_name(one.use)) for one in sources]
    names = [one.name for one in sources]
    for i, name in enumerate(names):
        if not name.isprintable() or set(name) & set("/@"):
            raise ValueError(f"{table.at((*path, str(i), 'name'))} is {name!r}: give it a name without / and @")
        if name in names[:i]:
            raise ValueError(f"{table.at((*path, str(i), 'name'))} is {name!r}, as another table's: give each its own `name`")
    check_weights(sources, path, table, draws)
    return MixedData(", ".join(names), sources=tuple(sources))


def check_weights(sources: Sequence[SourceConfig], path: KeyPath, table: Table, draws: bool) -> None:
    """Raise ValueError where some tables have no weight, weights do not add up to 1, or have no meaning here."""
    weights = {one.name: one.weight for one in sources}
    known = [weight for weight in weights.values() if weight is not None]
    if not known:
        return
    if not draws:
        raise ValueError(f"{table.at(path)} has weights, and all of its prompts are looked at: remove them")
    without = [name for name, weight in weights.items() if weight is None]
    if without:
        raise ValueError(
            f"{table.at(path)}: the source {without[0]!r} has no weight and others have one: give every table a weight, or none"
        )
    if abs(sum(known) - 1) > TOLERANCE:
        said = " + ".join(f"{weight:g}" for weight in known)
        raise ValueError(
            f"{table.at(path)}: the weights of {', '.join(weights)} are {said} = {sum(known):g}, and must add up to 1: set them "
            "so, or leave all out to draw in proportion to the sources' sizes"
        )


def check_sources(
    data: DataConfig, rewards: Sequence[tuple[KeyPath, str, tuple[str, ...], float]], table: Table, scored: bool = True
) -> None:
    """Raise ValueError for rewards of sources that are not there and, where they train, sources that none is for.

    `rewards` holds path, name, sources and weight of each; no sources are all of them.
    """
    known = [one.name for one in data.sources] if isinstance(data, MixedData) else []
    for path, reward, sources, _ in rewards:
        for name in sources:
            if not known:
                raise ValueError(
                    f"{table.at((*path, 'sources'))}: reward {reward!r} is for the source {name!r}, and [data] is a single one: "
                    "remove sources, or write a [[data]] table for each source"
                )
            if name not in known:
                raise ValueError(f"{table.at((*path, 'sources'))} names {name!r}: {did_you_mean(name, known)}")
    for name in known if scored else ():
        if not any(weight != 0 and (not sources or name in sources) for _, _, sources, weight in rewards):
            raise ValueError(
                f"{table.at(('reward',))}: no reward with a weight is for the source {name!r}, so its prompts cannot train: name "
                "it in the sources of one, or remove its [[data]] table"
            )
