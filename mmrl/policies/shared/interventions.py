"""Controlled changes of a model for the time of one reading, to find out why it disagrees with the sampler."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mmrl.policies.shared.lora import casting_layers, switch_casts

Read = Callable[[], Tensor]
RANDOM = 0.05
"""Readings that are further apart than this are random, and not only rounded otherwise."""
FITS, STARTS, LARGEST, FAR = 12, (0.0, math.log(2), -math.log(2)), 3.0, 1e6
"""Of a factor that is fitted: readings, and in its logarithm the first ones and the end; the error of what cannot be read."""
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@runtime_checkable
class Half(Protocol):
    """A network that may compute under autocast to bfloat16."""

    half_precision: bool

    def modules(self) -> Iterator[nn.Module]: ...
    @property
    def device(self) -> torch.device: ...


@contextmanager
def without_dropout(net: nn.Module) -> Iterator[None]:
    """A block in which every module is in evaluation mode and nothing is dropped."""
    modes = {module: module.training for module in net.modules()}
    rates = {module: module.p for module in modes if isinstance(module, nn.modules.dropout._DropoutNd)}
    functional = nn.functional.dropout
    nn.functional.dropout = lambda x, *args, **kwargs: x
    for module in modes:
        module.training = False
    for module in rates:
        module.p = 0.0
    try:
        yield
    finally:
        nn.functional.dropout = functional
        for module, training in modes.items():
            module.training = training
        for module, p in rates.items():
            module.p = p


@contextmanager
def in_precision(net: Half, name: str) -> Iterator[None]:
    """A block in which `net` computes under autocast to this dtype; in float32 without autocast and without TF32."""
    half, matmul, conv = net.half_precision, torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    adapted = casting_layers(net.modules())
    casting = [layer.cast_input_dtype_enabled for layer in adapted]
    net.half_precision = False
    # Without autocast nothing else brings bfloat16 to the adapters' float32.
    switch_casts(adapted, on=True)
    if name == "float32":
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(net.device.type, PRECISIONS["bfloat16" if name == "float32" else name], enabled=name != "float32"):
            yield
    finally:
        net.half_precision, torch.backends.cudnn.allow_tf32 = half, conv
        for layer, cast in zip(adapted, casting, strict=True):
            layer.cast_input_dtype_enabled = cast
        torch.set_float32_matmul_precision(matmul)


@contextmanager
def holding(owner: object, name: str, value: object) -> Iterator[None]:
    """A block in which the attribute has this value."""
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def dropout_layers(net: nn.Module) -> list[str]:
    """Layers that would drop something in training mode; loading a model leaves none."""
    return [name for name, module in net.named_modules() if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0]


def distance(one: Tensor, two: Tensor, noted: Tensor, mask: Tensor) -> float:
    """How far two readings are apart, over how far the first is from what was noted."""
    known = mask & noted.isfinite() & one.isfinite()
    gap = torch.where(known, (one - noted).abs(), 0.0).max()
    return float(torch.where(known, (one - two).abs(), 0.0).max() / gap.clamp(min=1e-12))


def nearest_reading(readings: Sequence[Read], noted: Tensor, mask: Tensor) -> Tensor:
    """(n, t): every row from the reading that is nearest to what was noted of it."""
    values = torch.stack([read() for read in readings])
    known = mask & noted.isfinite()
    gaps = torch.where(known, (values - noted).abs().nan_to_num(torch.inf, torch.inf), 0.0).amax(2)
    return values[gaps.argmin(0), torch.arange(len(noted))]


def fit_reading(read_at: Callable[[float], Tensor], noted: Tensor, mask: Tensor) -> tuple[float, Tensor]:
    """The factor under which readings come nearest to what was noted, and that reading; 1 changes nothing.

    Gauss-Newton in the factor's logarithm, whose slopes are those between two readings; FITS readings, whatever they give.
    """
    known = mask & noted.isfinite()

    def off(place: float) -> tuple[Tensor, Tensor]:
        values = read_at(math.exp(place))
        return values, (values - noted)[known].double().nan_to_num(FAR, FAR, -FAR)

    (place, (values, error)), *others = sorted(((start, off(start)) for start in STARTS), key=lambda one: float(one[1][1].norm()))
    there, (_, left) = others[0]
    for _ in range(FITS - len(STARTS)):
        slope = (left - error) / (there - place or 1.0)
        wanted = -float(error @ slope) / max(float(slope @ slope), 1e-30)
        there = min(max(place + math.copysign(min(max(abs(wanted), 1e-7), 1.0), wanted), -LARGEST), LARGEST)
        moved, left = off(there)
        if float(left.norm()) < float(error.norm()):
            place, there, values, error, left = there, place, moved, left, error
    return math.exp(place), values
