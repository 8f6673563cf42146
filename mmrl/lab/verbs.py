"""The verbs of the lab: `mmrl demo`, `mmrl arena` and `mmrl recipe`. Each calls one function, imported when it runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from mmrl.app.cli.program import compare
from mmrl.app.commands.help import InOrder
from mmrl.app.commands.options import Overrides
from mmrl.app.errors import printable
from mmrl.lab.demos import DEMOS
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


demo = typer.Typer(cls=InOrder, no_args_is_help=True, rich_markup_mode="rich")


def add_verbs(program: typer.Typer) -> None:
    """Give the program `demo`, `arena` and `recipe`."""
    program.add_typer(
        demo, name="demo", help="Train a tiny model of a real class on this machine: no download, minutes on a CPU."
    )
    program.add_typer(
        recipe, cls=InOrder, name="recipe", help="Reproduce published results: files, settings, numbers to compare."
    )
    program.command()(arena)


def add_demo(name: str, summary: str) -> None:
    """The command `mmrl demo NAME`."""

    def command(
        output: Annotated[Path | None, Option(help="Folder of the run (default: the next free one in runs/).")] = None,
        seed: Annotated[int, Option(help="Seed of pretraining, data and training.")] = 0,
        short: Annotated[bool, Option("--short", help="A few steps of each part: that it runs, not that it learns.")] = False,
        overrides: Overrides = None,
    ) -> None:
        from mmrl.lab.demos import run, twin_of

        trained = run(name, output, seed, overrides or [], short).path
        if DEMOS[name].twin:
            compare(trained, twin_of(trained), trained / "twin.html")

    demo.command(name, help=summary)(command)


for _name, _demo in DEMOS.items():
    add_demo(_name, _demo.summary)


def arena(
    task: Annotated[Literal["grounding", "video", "t2i"] | None, Option(help="The tiny task to compare the methods on.")] = None,
    methods: Annotated[
        str | None, Option(metavar="A,B,...", help="Names from `mmrl ls algorithms`, or TOML files with changes.")
    ] = None,
    budget_seconds: Annotated[
        float | None, Option(help="Training time per run: CPU seconds of all cores, or wall time on a GPU.")
    ] = None,
    seeds: Annotated[
        str, Option(metavar="0,1,...", help="Seeds of data and training; use three or more to see which method is better.")
    ] = "0,1,2",
    model: Annotated[str | None, Option(help="Weights to start from (default: the demo's pretrained model).")] = None,
    output: Annotated[Path | None, Option(help="Folder of the arena (default: runs/arena-TASK); run again to continue.")] = None,
    mixtures: Annotated[
        str | None, Option(metavar="RUN,RUN,...", help="Instead: the best weights of data sets by runs of one mixture each.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Rank methods that start from the same checkpoint and get the same compute: intervals over seeds, curves, an HTML page."""
    from mmrl.lab.arena.command import arena as hold
    from mmrl.lab.arena.contest import contest_of

    if mixtures is not None:
        from mmrl.lab.arena.mixtures import best_mixture

        if task or methods or budget_seconds is not None or seeds != "0,1,2" or model or output or overrides:
            raise ValueError("--mixtures reads finished runs, and nothing else of the arena: leave out all other options")
        return typer.echo(best_mixture([Path(name) for name in mixtures.split(",")]))
    if task is None or methods is None or budget_seconds is None:
        raise ValueError("mmrl arena compares methods: give --task, --methods and --budget-seconds, or --mixtures")
    typer.echo(hold(contest_of(task, methods, budget_seconds, seeds, model, overrides or []), output))
