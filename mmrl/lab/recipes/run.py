"""`mmrl recipe run`: train with the recipe, measure, and print the numbers next to the paper's."""

from collections.abc import Sequence
from pathlib import Path

from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.run.context import console
from mmrl.app.run.folder import RunDir
from mmrl.lab.recipes.facts import find_recipe
from mmrl.lab.recipes.measure import Measured, measure_run, plan_measures, print_measured
from mmrl.lab.recipes.pages import missing_files
from mmrl.lab.recipes.tiny import as_tiny, draw_files, small_table


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
    """Train, measure and print; the figures are kept in the run's recipe.json.

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
