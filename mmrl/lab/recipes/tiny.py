"""A recipe on a small scale: files of the same layout drawn into the cache, paths that lead there, small models of rewards."""

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrl.app.plugins.python_objects import STAGE
from mmrl.app.toml.tables import Table, Values
from mmrl.data.drawn import moving, prompt_writers, public_layouts, scenes
from mmrl.lab.recipes.facts import DATA, MODELS, Given, Measure, Recipe
from mmrl.lab.tiny import scorers
from mmrl.runtime.cache import keep

WHOLE = "whole"
"""The file that says that everything was drawn."""


def draw_files(recipe: Recipe) -> Path:
    """The folder of a recipe's small files: drawn once, then kept in the cache."""
    sources = [inspect.getsource(module) for module in (public_layouts, prompt_writers, moving, scenes, scorers)]
    facts = (recipe.tiny.layout, recipe.tiny.seed, model_names(recipe), sources)
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]

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
    return replace(recipe, measure=tuple(small_measure(one, recipe, folder) for one in recipe.measure))


def small_measure(measure: Measure, recipe: Recipe, folder: Path) -> Measure:
    data, reward = small_data(measure.data, recipe), small_reward(measure.reward, recipe)
    return replace(measure, data=move_paths(data, folder), reward=move_paths(reward, folder))


def small_table(recipe: Recipe, folder: Path) -> Table:
    """The run's config with its paths led to the small files, and its small settings."""
    table = Table.read(recipe.config)
    values = dict(table.values)
    values["data"] = small_data(values["data"], recipe)
    values["stage"] = [small_stage(one, recipe) for one in values.get("stage", ())]
    evaluation = dict(values["evaluation"])
    values["evaluation"] = evaluation | {"data": small_data(evaluation["data"], recipe)}
    values["reward"] = [small_reward(one, recipe) for one in values["reward"]]
    if "reward" in evaluation:
        values["evaluation"]["reward"] = [small_reward(one, recipe) for one in evaluation["reward"]]
    small = Table.of(move_paths(values, folder), f"{recipe.config}, small scale")
    for word in recipe.tiny.set:
        small.override(word)
    return small


def small_stage(stage: Given, recipe: Recipe) -> Values:
    """A stage with the data and rewards of the small scale where it has its own."""
    found = dict(stage)
    if "data" in found and not str(found["data"]["use"]).startswith(STAGE):
        found["data"] = small_data(found["data"], recipe)
    if "reward" in found:
        found["reward"] = [small_reward(one, recipe) for one in found["reward"]]
    return found


def small_data(data: Given | list[Given], recipe: Recipe) -> Values | list[Values]:
    """A table of data, or several, with the further keys of the small scale."""
    return [{**one, **recipe.tiny.data} for one in data] if isinstance(data, list) else {**data, **recipe.tiny.data}


def small_reward(reward: Given, recipe: Recipe) -> Values:
    """A reward's table with the keys that are others on a small scale; it keeps its name."""
    changed = recipe.tiny.rewards.get(reward["use"])
    return dict(reward) if changed is None else {"name": reward["use"], **reward, **changed}


def move_paths(value: Any, folder: Path) -> Any:
    """The same with every path of a recipe below `folder`."""
    if isinstance(value, Mapping):
        return {key: move_paths(item, folder) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [move_paths(item, folder) for item in value]
    return str(folder / value) if isinstance(value, str) and value.startswith((DATA, MODELS)) else value
