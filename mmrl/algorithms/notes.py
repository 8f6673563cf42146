"""Numbers that a part keeps from one step to the next, and states as they were."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mmrl.core.protocols import State


@dataclass(frozen=True)
class Notes:
    """A part's numbers by name: every run has its own, and checkpoints hold them."""

    notes: dict[str, float] = field(default_factory=dict[str, float], init=False, compare=False, repr=False)

    def state_dict(self) -> State:
        return {"notes": {**self.notes}}

    def load_state_dict(self, state: State) -> None:
        self.notes.clear()
        self.notes.update(state["notes"])


class Held(Mapping[str, Any]):
    """A state as it was, written out only where somebody looks: what `write()` makes of values that nobody changes any more."""

    def __init__(self, write: Callable[[], Mapping[str, Any]]) -> None:
        self._write = write

    @cached_property
    def _written(self) -> Mapping[str, Any]:
        return self._write()

    def __getitem__(self, name: str) -> Any:
        return self._written[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._written)

    def __len__(self) -> int:
        return len(self._written)

    def __reduce__(self) -> tuple[type, tuple[Mapping[str, Any]]]:
        # a class that torch.load knows
        return OrderedDict, (self._written,)
