"""A second device for a whole process, `card:0`: torch sees another device than the CPU, and the CPU does its work.

What a GPU would refuse is refused: tensors of both devices in one operator, and numbers drawn there, which differ from device to
device. What a GPU would wait for is counted: values the host asks for (`looks`), and what is sent while the host waits (`sent`).

torch lets Python stand in for a device's library (`PrivateUse1`). Memory of the card is memory of the CPU: a tensor's storage
points to it, and its Python object keeps it. So tensors have their true shape, strides and neighbours, views are torch's own, and
`view` refuses a transposed tensor as on a GPU. Importing this changes torch for good: do it
in a process of its own, before models load.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "card"
ROOT = Path(__file__).parents[2]
HOST = torch.device("cpu")
_C: Any = torch._C

UNIQUE = ("_unique2", "unique_dim", "unique_consecutive")
ASKING = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "is_nonzero", *UNIQUE})
"""Operators whose result, or its shape, depends on values: a GPU finishes all work before it."""
INDEXING = frozenset({"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"})
DRAWING = frozenset(
    {"bernoulli", "normal", "uniform", "random", "randn", "rand", "randint", "randperm", "exponential", "multinomial"}
)


class RefusedError(RuntimeError):
    """What a GPU would have refused."""


@dataclass
class Traffic:
    """How often the host waited for the card, by the place in our code that made it wait."""

    looks: Counter[str] = field(default_factory=Counter[str])
    sent: Counter[str] = field(default_factory=Counter[str])

    def clear(self) -> None:
        self.looks.clear()
        self.sent.clear()


traffic = Traffic()


def place() -> str:
    """The function of mmrl or of a plug-in that is at work, and the library within it that asks, if it is not ours."""
    frame, library = sys._getframe(), ""
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / "tests") and "site-packages" not in file.parts:
            return f"{file.relative_to(ROOT)}::{frame.f_code.co_qualname}{library and f' ({library})'}"
        if not library and "site-packages" in file.parts:
            package = file.parts[file.parts.index("site-packages") + 1]
            library = package if package != "torch" else ""
        frame = frame.f_back
    return f"gradients{library and f' ({library})'}"


def real(x: Any) -> Any:
    """The CPU's tensor of the same memory; a device becomes the CPU, and all else is itself."""
    if isinstance(x, Tensor) and is_on_card(x):
        return torch.empty(0, dtype=x.dtype).set_(cast(Any, x.untyped_storage()).real, x.storage_offset(), x.size(), x.stride())
    return HOST if isinstance(x, torch.device) and x.type == NAME else x


def mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """The function of what an operator takes or gives: a value, or a list or tuple of values."""
    return type(x)(map(function, x)) if type(x) in (list, tuple) else function(x)


def on_card(x: Any) -> Any:
    """A tensor of the card with the memory of a CPU's."""
    return placed(_C._acc.create_empty_tensor((0,), x.dtype), x) if isinstance(x, Tensor) else x


def placed(card: Tensor, x: Tensor) -> Tensor:
    """The card's tensor, which now lies where the CPU's does."""
    memory = x.untyped_storage()
    storage = _C._construct_storage_from_data_pointer(memory.data_ptr(), CARD, memory.nbytes())
    storage.real = memory
    set_storage = torch.ops.aten.set_.source_Storage_storage_offset
    return set_storage.redispatch(CPU_KERNELS, card, storage, x.storage_offset(), x.shape, x.stride())


def is_on_card(x: Tensor) -> bool:
    return x.device.type == NAME


def check(base: str, tensors: Sequence[Tensor], generator: torch.Generator | None) -> None:
    """Raise RefusedError for what a GPU refuses."""
    lost = [x for x in tensors if x.device == HOST and x.dim()] if any(map(is_on_card, tensors)) else []
    if base in INDEXING and is_on_card(tensors[0]):  # the host's indices are sent there, others' values are not
        values = [x for x in lost if "put" in base and x is tensors[-1]]
        traffic.sent[place()] += len(lost) - len(values)
        lost = values
    if lost:
        shapes = ", ".join(f"{tuple(x.shape)} on {x.device}" for x in tensors)
        raise RefusedError(f"{base} mixes devices: {shapes}, at {place()}")
    if base.removesuffix("_") in DRAWING and (generator is None or generator.device == HOST):
        raise RefusedError(f"{base} draws on the card, where the same seed gives other numbers, at {place()}")


def run(op: Any, base: str, *args: Any, **kwargs: Any) -> Any:
    """One operator, done by the CPU."""
    given = [*args, *kwargs.values()]
    tensors = [x for one in given for x in (one if type(one) in (list, tuple) else (one,)) if isinstance(x, Tensor)]
    check(base, tensors, kwargs.get("generator"))
    chosen_by_value = base in INDEXING and any(is_on_card(x) and x.dtype in (torch.bool, torch.uint8) for x in tensors[1:])
    if base in ASKING or chosen_by_value:
        traffic.looks[place()] += 1
    out = op(*(mapped(real, x) for x in args), **{name: mapped(real, x) for name, x in kwargs.items()})
    if not (written := written_by(op)):
        return out if torch.device(kwargs.get("device") or NAME) == HOST else mapped(on_card, out)
    given = [kwargs.get(op._schema.arguments[i].name, args[i] if i < len(args) else None) for i in written]
    outs = [out] if len(op._schema.returns) == 1 else out
    for card, x in zip(given, outs or (), strict=False):
        if isinstance(card, Tensor) and card.shape != x.shape:
            placed(card, x)
    returned = given[: len(op._schema.returns)]
    return None if not returned else returned[0] if len(returned) == 1 else tuple(returned)


@cache
def written_by(op: Any) -> list[int]:
    """The places of the arguments that an operator writes to."""
    return [i for i, one in enumerate(op._schema.arguments) if one.alias_info is not None and one.alias_info.is_write]


def of_shape(op: Any, base: str, *args: Any, **kwargs: Any) -> Any:
    """A view: the CPU's own kernel, which looks at shapes and strides alone."""
    return op.redispatch(CPU_KERNELS, *args, **kwargs)


def copy_to(op: Any, base: str, x: Tensor, **how: Any) -> Tensor:
    """`_to_copy`: between devices, or to another type."""
    target = torch.device(how.get("device") or x.device)
    crossed(x.device, target, bool(how.get("non_blocking")))
    out = op(real(x), **{**how, "device": HOST, "pin_memory": None})
    return out if target == HOST else on_card(out)


def copy_into(op: Any, base: str, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """`copy_`: between devices, or within the card."""
    crossed(source.device, to.device, non_blocking)
    real(to).copy_(real(source))
    return to


def crossed(start: torch.device, end: torch.device, non_blocking: bool) -> None:
    if start.type == end.type:
        return
    if end == HOST:
        traffic.looks[place()] += 1
    elif not non_blocking:
        traffic.sent[place()] += 1


class Module:
    """What torch and accelerate ask of a device's module, `torch.card`; what has no meaning here does nothing, also in `with`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ("is_available", "is_initialized"):
            return lambda: True
        if name in ("device_count", "current_device"):
            return lambda: int(name == "device_count")
        if name in ("_is_in_bad_fork", "is_bf16_supported"):
            return lambda *_: False
        if name == "get_rng_state":
            return lambda *_: torch.get_rng_state()
        return lambda *_, **__: nullcontext()


def kernels() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every operator of tensors that torch does not compose of others by itself, and what does it on the card."""
    special = {"_to_copy": copy_to, "copy_": copy_into}
    for full in _C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if space != "aten" or op is None or has_kernel(full, "CompositeImplicitAutograd"):
            continue
        schema = op._schema
        if not any("Tensor" in str(one.type) for one in (*schema.arguments, *schema.returns)):
            continue
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
        if not (is_view or torch.Tag.inplace_view in op.tags) or base == "resize_":
            yield name, partial(special.get(base, run), op, base)
        elif not has_kernel(full, "CompositeExplicitAutograd"):
            yield name, partial(of_shape, op, base)


def has_kernel(full: str, key: str) -> bool:
    return _C._dispatch_has_kernel_for_dispatch_key(full, key)


def install() -> torch.library.Library:
    """Make torch know the card; the library must be kept alive."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in kernels():
        library.impl(name, kernel, "PrivateUse1")
    return library


LIBRARY = install()
CARD = torch.device(NAME, 0)
CPU_KERNELS = _C.DispatchKeySet(_C.DispatchKey.CPU)
