"""How often code looks at values of tensors: on a GPU each look waits until all work before it is done.

A CPU has nothing to wait for, so looks are counted where Python asks (`item`, `tolist`, `cpu`, `bool`, `nonzero`, ...) and where
operators do (`aten._local_scalar_dense`, choosing by a mask). Tensors that the code made on the host on purpose are not told
apart from others: count what runs per token or per step.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

BY_PYTHON: frozenset[object] = frozenset(
    getattr(Tensor, name)
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__")
)
ATEN = torch.ops.aten
BY_OPERATOR: frozenset[object] = frozenset(
    [
        ATEN._local_scalar_dense.default,
        ATEN.nonzero.default,
        ATEN.masked_select.default,
        ATEN._unique2.default,
        ATEN.equal.default,
        ATEN.repeat_interleave.Tensor,
    ]
)


@dataclass
class HostLooks:
    """Counts of looks, by the line of code that asked."""

    at: Counter[str] = field(default_factory=Counter[str])
    depth: int = 0

    @property
    def total(self) -> int:
        return sum(self.at.values())

    def note(self) -> None:
        frames = [frame for frame in traceback.extract_stack() if "/torch/" not in frame.filename and frame.filename != __file__]
        self.at[f"{frames[-1].filename.split('site-packages/')[-1]}:{frames[-1].lineno}"] += 1


class ByPython(TorchFunctionMode):
    def __init__(self, looks: HostLooks) -> None:
        super().__init__()
        self.looks = looks

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in BY_PYTHON or self.looks.depth:
            return func(*args, **(kwargs or {}))
        self.looks.note()
        self.looks.depth += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.looks.depth -= 1


class ByOperator(TorchDispatchMode):
    def __init__(self, looks: HostLooks) -> None:
        super().__init__()
        self.looks = looks

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        masked = func in (ATEN.index.Tensor, ATEN.index_put_.default) and any(
            one is not None and one.dtype == torch.bool for one in args[1]
        )
        if (masked or func in BY_OPERATOR) and not self.looks.depth:
            self.looks.note()
        return func(*args, **(kwargs or {}))


@contextmanager
def host_looks() -> Iterator[HostLooks]:
    """Count the looks of a block."""
    looks = HostLooks()
    with ByOperator(looks), ByPython(looks):
        yield looks
