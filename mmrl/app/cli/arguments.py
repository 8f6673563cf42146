"""Arguments that several commands take."""

from typing import Annotated

from typer import Argument

Overrides = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Overrides, for example optimizer.lr=1e-5 reward.0.weight=0.5")
]
