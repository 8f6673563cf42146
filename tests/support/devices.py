"""What code asks of a device: how often it looks at values of tensors, and what crosses to a device that is not the host.

A CPU has nothing to wait for, so looks are counted where Python asks (`item`, `tolist`, `cpu`, `bool`, `nonzero`, ...) and where
operators do (`aten._local_scalar_dense`, choosing by a mask). Tensors that the code made on the host on purpose are not told
apart from others: count what runs per token or per step.

The second device is torch's meta device, which can be asked nothing: operators that mix it with the CPU fail as they would
between a CPU and a GPU; so does a look at a value that is not counted here.
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


META = torch.device("meta")
HOME = torch.device("cpu")
LOOKS = {Tensor.tolist: list, Tensor.item: float, Tensor.__bool__: bool, Tensor.__int__: int, Tensor.__float__: float}


@dataclass
class Crossings:
    """Shapes of what crossed, in order."""

    up: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    home: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    looks: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])


class SecondDevice(TorchFunctionMode):
    """A block in which tensors come back from the meta device as zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.crossed = Crossings()

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        x, kwargs = args[0] if args else None, kwargs or {}
        if not isinstance(x, Tensor):
            return func(*args, **kwargs)
        if func in LOOKS and x.device == META:
            self.crossed.looks.append(tuple(x.shape))
            return func(torch.zeros(x.shape, dtype=x.dtype))
        if func in (Tensor.cpu, Tensor.to):
            to = HOME if func is Tensor.cpu else self.target(x, args, kwargs)
            if x.device == META and to == HOME:
                self.crossed.home.append(tuple(x.shape))
                zeros = torch.zeros(x.shape, dtype=x.dtype)
                return zeros
            if x.device == HOME and to == META:
                self.crossed.up.append(tuple(x.shape))
        return func(*args, **kwargs)

    def target(self, x: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.device:
        for one in [*args[1:], *kwargs.values()]:
            if isinstance(one, Tensor):
                return one.device
            if isinstance(one, torch.device | str):
                return torch.device(one)
        return x.device
