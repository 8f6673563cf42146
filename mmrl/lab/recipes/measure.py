"""Training and evaluation of a recipe, also on a small scale: held-out prompts scored, as the figures of the paper's table."""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.config.plug_ins import PlugIns, read_plug_ins
from mmrl.app.config.run import Resolved, without_engine
from mmrl.app.errors import Terminal
from mmrl.app.files import json_text, replace_text
from mmrl.app.modality.registry import PolicyConfig, modality_of
from mmrl.app.plugins.resolve import STAGE
from mmrl.app.report.figures import LEAST_PROMPTS, NUM_RESAMPLES, estimate
from mmrl.app.report.words import table
from mmrl.app.run.build import held_out_prompts, load_rewards, named_reward, with_local_model
from mmrl.app.run.context import console, distributed_run
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import load_state, revive
from mmrl.app.toml.tables import Table
from mmrl.core.protocols import Policy
from mmrl.core.ranks import Ranks
from mmrl.core.samples import Prompt, Value
from mmrl.data.drawn import moving, prompt_writers, public_layouts, scenes
from mmrl.lab.recipes.facts import DATA, MODELS, Figure, Measure, Published, Recipe, find_recipe
from mmrl.lab.recipes.pages import missing_files, number
from mmrl.lab.tiny import scorers
from mmrl.runtime.cache import hash_of, keep
from mmrl.runtime.process_state import seed
from mmrl.runtime.repeating import deterministic
from mmrl.training.evaluate import Evaluator
from mmrl.training.rewards.runner import RewardRunner

FILE = "recipe.json"
"""In the run's folder: the figures that were measured."""
ALL = 1_000_000
"""More held-out prompts than any measure has."""


@dataclass(frozen=True)
class Planned:
    """A measure whose reward was found and checked, and whose prompts were read."""

    measure: Measure
    resolved: Resolved
    plug_ins: PlugIns
    prompts: Sequence[Prompt]


@dataclass(frozen=True)
class Answered:
    """A prompt's kind and the scores of its samples; those of failed rewards are left out."""

    kind: str
    scores: tuple[float, ...]

    def value(self, at_least: float | None) -> float:
        """The mean over samples of the score, or of whether it reaches `at_least`."""
        found = self.scores if at_least is None else [float(score >= at_least) for score in self.scores]
        return sum(found) / len(found)


@dataclass(frozen=True)
class Measured:
    """A figure next to the paper's."""

    measure: str
    figure: str
    value: float
    low: float
    """The 95 % interval over prompts; NaN where there are too few."""
    high: float
    prompts: int
    base: Published
    paper: Published


def run_recipe(
    name: str,
    overrides: Sequence[str] = (),
    *,
    is_tiny: bool = False,
    output: Path | None = None,
    run: Path | None = None,
    untrained: bool = False,
    limit: int | None = None,
) -> list[Measured]:
    """Train with the recipe, measure, and print the numbers next to the paper's; the figures are kept in the run's recipe.json.

    Args:
        overrides: `key=value` of the run.
        is_tiny: a small model of the same class, and drawn data in the same layout.
        output: the folder of the run.
        run: measure this run's newest checkpoint and train nothing.
        untrained: measure the model as it is and train nothing.
        limit: measure on the first n prompts of each measure.

    Raises ValueError for no such recipe, settings it does not take, two of run, untrained and output, or files that are missing.
    """
    if (run is not None) + untrained + (output is not None) > 1:
        raise ValueError("--run and --untrained train nothing and --output is for what is trained: give one of the three")
    recipe = find_recipe(name)
    words = [*overrides, *([] if output is None else [f"output={str(output)!r}"])]
    if is_tiny:
        folder = draw_files(recipe)
        resolved = configs.resolve(small_table(recipe, folder), words, f"{name}-tiny")
        recipe = as_tiny(recipe, folder)
        console.print(f"{name} on a small model of the same class, with synthetic data in {folder}", highlight=False)
    else:
        if recipe.missing:
            raise ValueError(missing_files(recipe))
        resolved = configs.load(str(recipe.config), words)
    planned = plan_measures(recipe, resolved)
    trained = None if untrained else RunDir.open(run) if run is not None else run_training(resolved)
    found = measure_run(recipe, planned, trained, limit)
    print_measured(recipe, found)
    if trained is not None:
        console.print(f"kept in {trained.path / 'recipe.json'}", highlight=False)
    return found


def plan_measures(recipe: Recipe, resolved: Resolved) -> list[Planned]:
    """Every measure's prompts and reward, read and checked before anything is loaded; errors as in `read_plug_ins`."""
    found: list[Planned] = []
    for i, measure in enumerate(recipe.measure):
        table, origin = deepcopy(resolved.table), f"{recipe.name}, measure {i} ({measure.name})"
        table.set(("evaluation", "data"), dict(measure.data), origin)
        table.set(("evaluation", "reward"), [dict(measure.reward)], origin)
        table.set(("evaluation", "num_samples"), measure.samples, origin)
        table.set(("evaluation", "num_prompts"), ALL, origin)
        own = without_engine(configs.resolve(table, [], resolved.name))
        plug_ins = read_plug_ins(own)
        _, prompts = held_out_prompts(own.config, plug_ins.held_out)
        if not prompts:
            raise ValueError(f"the measure {measure.name!r} has no prompts: check its data in the recipe")
        kind_of(prompts[0].columns, measure)
        found.append(Planned(measure, own, plug_ins, prompts))
    return found


def measure_run(recipe: Recipe, planned: Sequence[Planned], run: RunDir | None, limit: int | None = None) -> list[Measured]:
    """Every figure of a recipe, by a run's newest checkpoint or by the model as it is, on `limit` prompts of each at most."""
    config = planned[0].resolved.config
    with deterministic(config.deterministic), distributed_run() as (accelerator, ranks):
        seed(config.seed)
        state = None if run is None else load_state(run)
        policy = revive(config, run, state, config.evaluation.weights_beside, ranks, accelerator)
        found: list[Measured] = []
        everyone: list[Answered] = []
        for one in planned:
            answered = answer(one, policy, with_local_model(config).policy, ranks, limit)
            found += [figure_of(one.measure, figure, answered) for figure in one.measure.figure]
            everyone += answered
        if recipe.total is not None:
            total = Figure(**vars(recipe.total))
            found.append(replace(figure_of(recipe.measure[0], total, everyone), measure="all"))
        if ranks.is_main and run is not None:
            write(run.path / FILE, recipe, found)
    return found


def answer(one: Planned, policy: Policy, settings: PolicyConfig, ranks: Ranks, limit: int | None) -> list[Answered]:
    """The scores of a measure's prompts, by the loaded policy; ValueError for one without its kind, or that cannot be shown."""
    evaluation, modality = one.resolved.config.evaluation, modality_of(settings)
    modality.check_prompts(settings, one.prompts)
    with ranks.main_first():
        ((reward, function),) = load_rewards(one.plug_ins.rewards[-1:])
    named = named_reward(one.resolved.config, reward, function, modality.box_space(settings))
    runner = RewardRunner([replace(named, weight=1.0)])
    evaluator = Evaluator(policy, one.prompts[: limit or None], runner, evaluation, modality.eval_sampling(evaluation), ranks)
    _, found = evaluator.run(0)
    values = iter(found.scores.values[:, 0].tolist())
    answered: list[Answered] = []
    for group in found.groups:
        own = tuple(value for _, value in zip(group.samples, values, strict=False) if math.isfinite(value))
        answered += [Answered(kind_of(group.prompt.columns, one.measure), own)] if own else []
    return answered


def kind_of(columns: Mapping[str, Value], measure: Measure) -> str:
    if not measure.by:
        return ""
    if measure.by not in columns:
        raise ValueError(
            f"a prompt of the measure {measure.name!r} has no column {measure.by!r}, which tells its kinds apart: name "
            f"another with `by` (it has {', '.join(columns) or 'none'})"
        )
    return str(columns[measure.by])


def figure_of(measure: Measure, figure: Figure, answered: Sequence[Answered]) -> Measured:
    """A figure with its interval, and the paper's numbers."""
    strata: dict[str, list[float]] = {}
    for one in answered:
        if figure.kind in ("", one.kind):
            strata.setdefault(one.kind if figure.over == "kinds" else "", []).append(one.value(figure.at_least))
    count = sum(map(len, strata.values()))
    value, low, high = (figure.factor * number for number in interval(list(strata.values())))
    return Measured(measure.name, figure.name, value, low, high, count, figure.base, figure.paper)


def interval(strata: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The plain mean of the strata's means with its 95 % interval: of one stratum that of `mmrl eval`, of several a bootstrap.

    A bootstrap draws each stratum's prompts by themselves. NaN where there is no prompt at all; NaN bounds where a stratum has
    fewer than LEAST_PROMPTS.
    """
    if not strata:
        return math.nan, math.nan, math.nan
    if len(strata) == 1:
        found = estimate(strata[0])
        return found.mean, found.low, found.high
    value = float(np.mean([np.mean(values) for values in strata]))
    if min(map(len, strata)) < LEAST_PROMPTS:
        return value, math.nan, math.nan
    rng = np.random.default_rng(0)
    means = [[np.mean(rng.choice(values, len(values))) for values in map(np.asarray, strata)] for _ in range(NUM_RESAMPLES)]
    low, high = np.quantile(np.mean(means, axis=1), [0.025, 0.975])
    return value, float(low), float(high)


def write(file: Path, recipe: Recipe, found: Sequence[Measured]) -> None:
    """The figures as JSON; numbers that are none are null, and unknown ones of the paper "?"."""
    values = {"recipe": recipe.name, "arxiv": recipe.recipe.arxiv, "table": recipe.recipe.table, "figures": found}
    replace_text(file, json_text(values) + "\n")


def print_measured(recipe: Recipe, found: Sequence[Measured]) -> None:
    """The measured numbers next to the paper's."""
    headings = ("measured", "95 % interval", "prompts", "paper: before", "paper")
    console = Terminal()
    console.print(table({"figure": None}, headings, rows(found)))
    console.print(f"paper: arXiv:{recipe.recipe.arxiv}, {recipe.recipe.table}")


def rows(found: Sequence[Measured]) -> Iterator[tuple[str, ...]]:
    for one in found:
        bounds = f"{one.low:.4g} to {one.high:.4g}" if math.isfinite(one.low) else "none"
        value = f"{one.value:.4g}" if math.isfinite(one.value) else "no prompts"
        yield f"{one.measure}, {one.figure}", value, bounds, str(one.prompts), number(one.base), number(one.paper)


WHOLE = "whole"
"""The file that says that everything was drawn."""


def draw_files(recipe: Recipe) -> Path:
    """The folder of a recipe's small files: drawn once, then kept in the cache."""
    facts = {"layout": recipe.tiny.layout, "seed": recipe.tiny.seed, "models": model_names(recipe)}
    key = hash_of(facts, (public_layouts, prompt_writers, moving, scenes, scorers), ())

    def draw(folder: Path) -> None:
        public_layouts.draw(recipe.tiny.layout, folder / DATA, recipe.tiny.seed)
        for model in model_names(recipe):
            scorers.SCORERS[model](folder / MODELS / model)
        (folder / WHOLE).write_text(recipe.tiny.layout)

    return keep(None, f"recipe-{recipe.name}-{key}", WHOLE, draw)


def model_names(recipe: Recipe) -> list[str]:
    """The small models that its rewards name, such as models/clip."""
    said = [str(value) for keys in recipe.tiny.rewards.values() for value in keys.values()]
    return sorted({value.removeprefix(MODELS) for value in said if value.startswith(MODELS)})


def as_tiny(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe whose measures look at the small files, scored by small models."""

    def small(one: Measure) -> Measure:
        data, reward = (small_values(table, recipe, folder, key) for key, table in (("data", one.data), ("reward", one.reward)))
        return replace(one, data=data, reward=reward)

    return replace(recipe, measure=tuple(map(small, recipe.measure)))


def small_table(recipe: Recipe, folder: Path) -> Table:
    """The run's config with its paths led to the small files, and its small settings."""
    values = small_values(Table.read(recipe.config).values, recipe, folder)
    small = Table.of(values, f"{recipe.config}, small scale")
    for word in recipe.tiny.set:
        small.override(word)
    return small


def small_values(value: Any, recipe: Recipe, folder: Path, key: str = "") -> Any:
    """The value under a key on a small scale: data and rewards with the keys that are others there, paths below `folder`.

    A reward whose keys change keeps its name, and a stage that trains on what another one wrote keeps its data.
    """
    if isinstance(value, Mapping):
        use, found = str(value.get("use")), dict(value)
        if key == "data" and not use.startswith(STAGE):
            found |= recipe.tiny.data
        elif key == "reward" and use in recipe.tiny.rewards:
            found = {"name": use, **found, **recipe.tiny.rewards[use]}
        return {name: small_values(one, recipe, folder, name) for name, one in found.items()}
    if isinstance(value, list | tuple):
        return [small_values(one, recipe, folder, key) for one in value]
    return str(folder / value) if isinstance(value, str) and value.startswith((DATA, MODELS)) else value
