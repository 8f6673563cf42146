"""Which parts go where.

A shipped part's slot is the folder it lies in; a part of the user's own fits the slots whose call it answers.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib import import_module

from mmrl.runtime.near import did_you_mean


@dataclass(frozen=True)
class Slot:
    """A place for parts: where the shipped ones are, how a part is called there, and whether several sit side by side."""

    home: str
    arguments: tuple[str, ...]
    """The arguments of the call, by their names in mmrl/core/protocols.py."""
    method: str = "__call__"
    many: bool = False
    declares: tuple[str, ...] = ()
    """The attributes that a part must have beside its call."""
    without: str = ""
    """A module of the home whose parts are another slot's."""
    made_with: tuple[str, ...] = ()
    """The arguments that the run gives when it makes the part; the others are settings."""
    top: bool = False
    """A table of its own, not one of [algorithm]."""

    def fits(self, part: Callable[..., object]) -> bool:
        """Does a class or function answer the slot's call, argument by argument? A function takes its settings after them."""
        names = [p.name for p in call_parameters(part, self.method) or ()]
        return self.could_take(part) and (self.method != "__call__" or names[: len(self.arguments)] == [*self.arguments])

    def could_take(self, part: Callable[..., object]) -> bool:
        """True if it can be called with this number of arguments, whatever their names."""
        found = call_parameters(part, self.method)
        if found is None:
            return False
        needed = [p for p in found if p.default is p.empty] if inspect.isclass(part) else ()
        return len(needed) <= len(self.arguments) <= len(found)


SLOTS = {
    "objective": Slot("mmrl.algorithms.objectives", ("readings", "batch"), many=True, declares=("reads", "scope", "credited")),
    "advantage": Slot("mmrl.algorithms.advantages", ("scores", "rollouts")),
    "aggregation": Slot("mmrl.algorithms.weights.aggregate", ("batch", "counts"), declares=("reads", "scope")),
    "importance": Slot(
        "mmrl.algorithms.weights",
        ("batch", "counts"),
        many=True,
        declares=("reads", "scope"),
        without="mmrl.algorithms.weights.aggregate",
    ),
    "masks": Slot("mmrl.algorithms.masks", ("rollouts",), many=True),
    "shaping": Slot("mmrl.algorithms.shaping", ("scores", "rollouts", "frozen"), many=True, declares=("reads",)),
    "planner": Slot(
        "mmrl.algorithms.planners",
        ("groups", "scores", "group_ids", "wanted", "round_index"),
        "revise",
        declares=("max_rounds", "first"),
    ),
    "schedule": Slot("mmrl.flow.schedules", ("step",), "at"),
    "ema_decay": Slot("mmrl.algorithms.ema_decay", ("step",)),
    "sampler": Slot(
        "mmrl.algorithms.samplers",
        ("num_prompts",),
        "draw",
        declares=("observe", "state_dict", "load_state_dict"),
        made_with=("prompts", "seed"),
        top=True,
    ),
}
"""`[algorithm]`'s slots, and the sampler, which has a table of its own."""


def place(slot: str) -> str:
    """How a config writes the slot: `[algorithm.advantage]`, `[[algorithm.shaping]]`, `[sampler]`."""
    name = slot if SLOTS[slot].top else f"algorithm.{slot}"
    return f"[[{name}]]" if SLOTS[slot].many else f"[{name}]"


def call_parameters(part: Callable[..., object], method: str) -> list[inspect.Parameter] | None:
    """The positional parameters of a method of a class, or of a function that is called itself; None where there is none."""
    if not inspect.isclass(part):
        return positional(part) if method == "__call__" else None
    function = inspect.getattr_static(part, method, None)
    if isinstance(function, staticmethod):
        return positional(function.__func__)
    return positional(function)[1:] if callable(function) else None


def positional(function: Callable[..., object]) -> list[inspect.Parameter]:
    """The parameters that can be given by position."""
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


@cache
def kinds(slot: str) -> dict[str, type]:
    """Kind -> class, of every shipped part of a slot."""
    found: dict[str, type] = {}
    for module in modules(SLOTS[slot].home):
        if module == SLOTS[slot].without:
            continue
        for name, value in vars(import_module(module)).items():
            own = inspect.isclass(value) and value.__module__ == module and not name.startswith("_")
            if own and is_dataclass(value) and not inspect.isabstract(value) and SLOTS[slot].fits(value):
                assert name not in found, f"two parts are called {name}: {found[name].__module__} and {module}"
                found[name] = value
    return found


def modules(home: str) -> Iterator[str]:
    """A module and all below it."""
    yield home
    package = import_module(home)
    yield from (found.name for found in pkgutil.walk_packages(getattr(package, "__path__", []), home + "."))


def check_kind(slot: str, kind: object, where: str) -> type:
    """The shipped part of a slot by its kind; ValueError if there is none, or it is one of another slot, which is named."""
    known = kinds(slot)
    if isinstance(kind, str) and kind in known:
        return known[kind]
    other = next((name for name in SLOTS if isinstance(kind, str) and kind in kinds(name)), None)
    if other is not None:
        raise ValueError(f"{where} is {kind!r}, a part of the slot {other}, not of {slot}: put it under {place(other)}")
    raise ValueError(f"{where} is {kind!r}: {did_you_mean(str(kind), known)}")


def check_fit(slot: str, part: Callable[..., object], where: str) -> None:
    """Raise ValueError for an own class or function that answers the call of another slot, which it names, or of none.

    One whose arguments have names of its own passes if it can be called with as many as the slot gives.
    """
    name, wanted = getattr(part, "__name__", str(part)), SLOTS[slot]
    if slot == "sampler" and not inspect.isclass(part):
        return
    others = [other for other in SLOTS if other != slot and SLOTS[other].fits(part)]
    if not wanted.fits(part) and others:
        places = " or ".join(place(other) for other in others)
        raise ValueError(f"{where}: {name} answers the call of {' and '.join(others)}, not of {slot}: put it under {places}")
    if not wanted.could_take(part):
        call = f"{'' if wanted.method == '__call__' else '.' + wanted.method}({', '.join(wanted.arguments)})"
        raise ValueError(
            f"{where}: {name} cannot be called as {slot} is, with {call}: write it like one of mmrl/core/protocols.py"
        )


def check_declared(slot: str, part: object, where: str) -> None:
    """Raise ValueError for an own part that lacks what the slot's protocol declares besides its call."""
    missing = [name for name in SLOTS[slot].declares if not hasattr(part, name)]
    if missing:
        name = getattr(part, "__name__", type(part).__name__)
        raise ValueError(
            f"{where}: {name} has no {' and no '.join(missing)}, which the slot {slot} asks for: "
            "see its protocol in mmrl/core/protocols.py"
        )
