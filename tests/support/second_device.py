"""A device that is not the host and can be asked nothing: torch's meta device, with what crosses to and from it counted.

Operators that mix it with the CPU fail as they would between a CPU and a GPU; so does a look at a value that is not counted here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

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
