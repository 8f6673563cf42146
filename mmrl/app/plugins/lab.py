"""Code above the app, reached by name alone: small models (`tiny:NAME`) and further verbs of the command line."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

TINY = "tiny:"
"""What the name of a small model begins with."""
MODELS = "mmrl.lab.models"
VERBS = ("mmrl.lab.verbs",)
"""Modules with a function `add_verbs(app)`, which is given the typer program."""


class SmallModels(Protocol):
    """A module that makes small models on this machine."""

    tiny_model: Callable[[str, str], Path]
    """(name, kind of policy) -> the folder of a model, made once; ValueError where there is no such family."""
    kind_of: Callable[[str], str | None]
    """Name without `tiny:` -> the kind of policy; None where no small model bears it."""
    writers: Callable[[], Iterable[str]]
    """The families of models that write of which there is a small one."""
    writer: Callable[[str], tuple[Any, Any]]
    """Family -> a model and its processor."""


def small_models() -> SmallModels:
    return cast(SmallModels, import_module(MODELS))


def add_verbs(program: Any) -> None:
    """Give a typer program the verbs that lie above the app."""
    for module in VERBS:
        import_module(module).add_verbs(program)
