"""Commands whose options come as one object."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from typer import Argument
from typer.models import OptionInfo

RunFolder = Annotated[Path, Argument(metavar="RUN", help="The output folder of a run.")]


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's first argument, an object of options, by an argument or option per field."""
    signature = inspect.signature(function)
    first, *rest = signature.parameters.values()
    cls: Any = first.annotation
    names, hints, kind = [f.name for f in fields(cls)], get_type_hints(cls, include_extras=True), first.kind
    usual = [f.default if f.default_factory is MISSING else None for f in fields(cls)]
    usual = [inspect.Parameter.empty if value is MISSING else value for value in usual]
    own = [inspect.Parameter(name, kind, default=value, annotation=hints[name]) for name, value in zip(names, usual, strict=True)]

    @wraps(function)
    def command(*args: Any, **given: Any) -> None:
        options = {name: value for name in names if (value := given.pop(name, None)) is not None}
        function(cls(**options), *args, **given)

    # Python wants those without a default first, readers the arguments before the options
    is_option = {one.name: any(isinstance(said, OptionInfo) for said in get_args(one.annotation)) for one in (*own, *rest)}
    parameters = sorted([*own, *rest], key=lambda one: (one.default is not one.empty, is_option[one.name]))
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] - typer reads it
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command
