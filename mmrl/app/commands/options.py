"""The options that verbs take: what is typed, the help of each, and what a function of the verb is given; loads no torch."""

from typing import Annotated

from typer import Argument

Overrides = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Overrides, for example optimizer.lr=1e-5 reward.0.weight=0.5")
]
