"""Models without weights that still know every shape, and a count of the bytes that live while they work.

A model that was built on torch's meta device is given fake tensors: sizes, types and storages as real ones have, and no memory.
Its inputs (ids, grids, masks) are real, so that code may look at their values.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
Operator = Callable[..., object]
"""One of torch's operators, such as aten.index.Tensor."""


def fake_weights(*modules: nn.Module) -> None:
    """Turn the weights of modules built on the meta device, and their buffers, into fake tensors on the CPU, in place."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            plain = mode.fake_tensor_converter.from_meta_and_device(mode, tensor.detach().to("meta"), CPU)
            made[id(tensor)] = nn.Parameter(plain, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else plain
        return made[id(tensor)]

    for module in [part for whole in modules for part in whole.modules()]:
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                held[name] = None if tensor is None else fake(tensor)  # type: ignore[assignment] - parameters and buffers by turns
        # Some models keep tables of angles as plain attributes.
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and value.device.type == "meta":
                setattr(module, name, fake(value))
            elif isinstance(value, list) and value and all(isinstance(one, Tensor) and one.is_meta for one in value):
                setattr(module, name, [fake(one) for one in value])


class KnownMasks(TorchDispatchMode):
    """Indexing a fake tensor with a real mask: the mask says how many entries are chosen, which the fake tensor does not know."""

    def __torch_dispatch__(
        self, func: Operator, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if func is torch.ops.aten.index.Tensor and isinstance(args[0], FakeTensor):
            *skipped, mask = args[1]
            if not any(one is not None for one in skipped) and mask.dtype == torch.bool and not isinstance(mask, FakeTensor):
                before, after = args[0].shape[: len(skipped)], args[0].shape[len(skipped) + mask.ndim :]
                return args[0].new_empty((*before, int(mask.sum()), *after))
        return func(*args, **(kwargs or {}))


class LiveBytes(KnownMasks):
    """Counts the bytes of tensors, real or fake, that were made inside and still live: now, and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        """Storage -> a weak reference that forgets it."""

    def __torch_dispatch__(
        self, func: Operator, types: Sequence[type], args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        for tensor in tensors_in((args, kwargs)):
            self.note(tensor, made_here=False)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in tensors_in(out):
            self.note(tensor, made_here=True)
        return out

    def note(self, tensor: Tensor, made_here: bool) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes() if made_here else 0
        if key in self.known:
            return
        self.known[key] = weakref.ref(storage, partial(self.forget, key, size))
        self.now += size
        self.peak = max(self.peak, self.now)

    def forget(self, key: int, size: int, _: object) -> None:
        """Subtract a storage that was freed from the count."""
        self.now -= size
        del self.known[key]


def tensors_in(values: object) -> Iterator[Tensor]:
    """The dense tensors in nested tuples, lists and dictionaries, as operators take and give them."""
    if isinstance(values, Tensor):
        if values.layout == torch.strided:
            yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in([*values.values()])


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes, shared storage counted once for each time it is named."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
