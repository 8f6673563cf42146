"""Prompts that are built when they are asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

from mmrl.core.samples import Prompt


@dataclass(frozen=True)
class LazyPrompts(Sequence[Prompt]):
    """n prompts, each built when it is asked for: `LazyPrompts(8, lambda i: Prompt(str(i)))`."""

    size: int
    build: Callable[[int], Prompt]
    """The prompt at a place from 0 to size - 1, always the same one."""

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...

    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self.build(i) for i in range(*index.indices(self.size))]
        if not -self.size <= index < self.size:
            raise IndexError(f"prompt {index} of {self.size}")
        return self.build(index % self.size)


def lazily(size: int, build: Callable[[int], Prompt]) -> LazyPrompts:
    """n prompts, of which the first is built at once, so that what cannot be drawn is refused here."""
    prompts = LazyPrompts(size, build)
    if size:
        prompts[0]
    return prompts
