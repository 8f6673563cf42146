"""A published recipe as data: `NAME.recipe.toml` next to the run `NAME.toml` in configs/recipes; read without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmrl.app.plugins.resolve import folders
from mmrl.app.toml.reader import make
from mmrl.app.toml.tables import Table
from mmrl.runtime.near import did_you_mean
from mmrl.runtime.ranges import Count, Number, Positive, Seed, check_ranges

FOLDER = "recipes"
ENDING = ".recipe.toml"
DATA = "data/"
"""Paths of a recipe begin like this: below the working directory, or below a folder of small sets that were drawn."""
MODELS = "models/"
"""Prefix of the paths of models that are made along with these sets."""
UNKNOWN = "?"
"""A number or setting that no public source gives."""
Published = float | Literal["?"]
"""A number of a paper's table."""
Given = Mapping[str, Any]
"""A table as a config has it."""


@dataclass(frozen=True)
class NeededFile:
    """A file or folder that the recipe reads and that is not shipped."""

    path: str
    """Where the recipe looks for it, from the working directory on."""
    what: str
    source: str
    """The publisher."""
    size: str
    licence: str
    command: str
    """The command that makes it, or where it is to be fetched by hand."""

    def __post_init__(self) -> None:
        if not self.path.startswith(DATA):
            raise ValueError(f"a recipe's file is {self.path!r}: paths of recipes begin with {DATA}")

    @property
    def below(self) -> str:
        """The path inside the folder of data."""
        return self.path.removeprefix(DATA)


@dataclass(frozen=True)
class Deviation:
    """A setting that is not the published one, or that no public source gives."""

    setting: str
    """The key of the run's config, or the thing in words."""
    published: str
    """The published value; "?" where no public source gives one."""
    here: str
    why: str


@dataclass(frozen=True)
class Total:
    """A number of the paper's table, over the prompts of all measures together, as ScreenSpot's average."""

    name: str
    """Its name in the table: Acc@0.5, R@0.7, counting."""
    at_least: Number | None = None
    """The share of samples whose score reaches this; None: the mean score."""
    factor: Positive = 1.0
    """The number is multiplied by this: 100 for percent."""
    base: Published = UNKNOWN
    """The paper's number of the model that training starts from."""
    paper: Published = UNKNOWN
    """The paper's number of the trained model."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class Figure(Total):
    """A number of the paper's table, over the prompts of one measure."""

    kind: str = ""
    """Prompts alone whose column `by` of the measure says this; empty: all."""
    over: Literal["samples", "kinds"] = "samples"
    """kinds: the plain mean of the kinds' means, as GenEval's overall score."""


@dataclass(frozen=True)
class Measure:
    """Held-out prompts, the reward that scores them, and the figures that are computed from the scores."""

    name: str
    data: Given
    """Like `[evaluation.data]`."""
    reward: Given
    """Like `[[evaluation.reward]]`."""
    figure: tuple[Figure, ...]
    samples: Count = 1
    """Samples per prompt, averaged."""
    by: str = ""
    """The column of the prompts that tells kinds apart."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for one in self.figure:
            if (one.kind or one.over == "kinds") and not self.by:
                raise ValueError(f"the figure {one.name!r} of the measure {self.name!r} is of kinds: name their column with `by`")


@dataclass(frozen=True)
class TinyScale:
    """The same recipe on a small model of the same class, with synthetic data in the same public layout."""

    layout: str
    """Which layout is drawn: a name of mmrl.data.drawn.public_layouts."""
    set: tuple[str, ...] = ()
    """Overrides of the run, `key=value` each."""
    data: Given = field(default_factory=dict[str, Any])
    """Further keys of every table of data."""
    rewards: Mapping[str, Given] = field(default_factory=dict[str, Given])
    """Reward by its `use` -> keys that are others here, such as a small model's folder."""
    seed: Seed = 0
    """Seed of all that is drawn."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class Heading:
    """The result that is reproduced, its source, and the card that it fits."""

    title: str
    arxiv: str
    table: str
    """Where its numbers stand, and through whom where that is another paper."""
    card: str
    """Memory of a card that the run fits, as `mmrl plan --card` takes it."""
    processes: Count = 1
    """How many such cards."""
    note: str = ""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class Recipe:
    """A published result: its run, what it needs, what differs, and the numbers to compare with."""

    name: str
    config: Path
    recipe: Heading
    measure: tuple[Measure, ...]
    tiny: TinyScale
    file: tuple[NeededFile, ...] = ()
    deviation: tuple[Deviation, ...] = ()
    total: Total | None = None

    @property
    def missing(self) -> list[NeededFile]:
        """Its files that are not where it looks for them."""
        return [one for one in self.file if not Path(one.path).exists()]


def recipe_files() -> dict[str, Path]:
    """Name -> file of facts, in ./configs/recipes and of the shipped ones, sorted by name."""
    found: dict[str, Path] = {}
    for folder in folders("configs"):
        for file in sorted((folder / FOLDER).glob(f"*{ENDING}")):
            found.setdefault(file.name.removesuffix(ENDING), file)
    return dict(sorted(found.items()))


def recipes() -> list[Recipe]:
    return [read_recipe(file) for file in recipe_files().values()]


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; ValueError if there is none, or its file is not like one."""
    known = recipe_files()
    if name not in known:
        raise ValueError(f"there is no recipe {name!r}: {did_you_mean(name, known)} (`mmrl recipe ls`)")
    return read_recipe(known[name])


def read_recipe(file: Path) -> Recipe:
    """The facts of a file, and the run next to it; ValueError, naming place and key, if it is not like a recipe or has no run."""
    name = file.name.removesuffix(ENDING)
    config = file.with_name(f"{name}.toml")
    if not config.is_file():
        raise ValueError(f"{file} has no run next to it: write {config.name} there")
    table = Table.read(file)
    return make(Recipe, table.values, (), table, ready={"name": name, "config": config})
