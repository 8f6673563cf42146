"""A state as it was, which is written out only where somebody looks."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any


class Held(Mapping[str, Any]):
    """What `write()` makes of values that nobody changes any more; it is called at the first look."""

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
