"""`mmrl recipe`: published results, the files they need, and numbers to compare with; loads torch only to run one."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from mmrl.app.commands.options import Overrides
from mmrl.app.errors import printable
from mmrl.lab.recipes.facts import find_recipe, recipe_files, recipes
from mmrl.lab.recipes.pages import description, listing

recipe = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


def complete_recipe(incomplete: str) -> list[str]:
    return [name for name in recipe_files() if name.startswith(incomplete)]


Name = Annotated[str, Argument(metavar="NAME", help="A name from `mmrl recipe ls`.", autocompletion=complete_recipe)]


@recipe.command("ls")
def recipe_ls() -> None:
    """List the recipes: the GPU each one fits, the files that are missing, and what it reproduces."""
    for line in listing(recipes()):
        typer.echo(printable(line))


@recipe.command("show")
def recipe_show(name: Name) -> None:
    """Print a recipe's config, its deviations, the paper's numbers, and the missing files with how to get them."""
    for line in description(find_recipe(name)):
        typer.echo(printable(line))


@recipe.command("run")
def recipe_run(
    name: Name,
    overrides: Overrides = None,
    scale: Annotated[
        Literal["full", "tiny"], Option(help="tiny: a small model of the same class, synthetic data in the same layout.")
    ] = "full",
    output: Annotated[Path | None, Option(help="Folder of the run (default: the next free one in runs/).")] = None,
    run: Annotated[Path | None, Option(metavar="RUN", help="Measure this run's newest checkpoint; train nothing.")] = None,
    untrained: Annotated[bool, Option("--untrained", help="Measure the model before training; train nothing.")] = False,
    prompts: Annotated[int | None, Option(min=1, help="Measure on the first n prompts of each set.")] = None,
) -> None:
    """Train with the recipe, measure, and print the numbers next to the paper's."""
    from mmrl.lab.recipes.measure import run_recipe

    run_recipe(name, overrides or [], is_tiny=scale == "tiny", output=output, run=run, untrained=untrained, limit=prompts)


@recipe.command("prompts")
def recipe_prompts(
    kind: Annotated[Literal["geneval-like", "ocr-like"], Argument(help="The published list to imitate.")],
    file: Annotated[Path, Argument(metavar="FILE", help="The file to write; must not exist.")],
    size: Annotated[int, Option(min=1, help="Number of prompts.")] = 1000,
    split: Annotated[Literal["train", "held_out"], Option(help="Held-out tasks are in no training split.")] = "train",
    seed: Annotated[int, Option(min=0, help="Seed of the prompts and their order.")] = 0,
) -> None:
    """Make up prompts by documented rules, in the layout of a published list."""
    from mmrl.data.drawn.prompt_writers import SETS

    if file.exists():
        raise FileExistsError(f"{file} exists already: choose another name or remove it")
    SETS[kind](file, size, split, seed)
    typer.echo(f"{file}: {size} prompts, {kind} ({split}, seed {seed})")
