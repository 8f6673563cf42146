"""Stacks of equal layers without weights: only one of them is run, and the others take the bytes that it took.

A published model has some thirty layers that differ in nothing but their numbers, and counting bytes costs time for every
operator. Inside `share_layers` the first layer of a kind is measured by itself, forwards and backwards; every layer then takes,
keeps and gives back as many bytes at the same moments, under gradient checkpointing too, and computes nothing.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from mmrl.policies.shared.meta_models import LiveBytes

LEAST = 3
"""Equal layers that a stack needs for one to stand for all; fewer are all run."""
NUMBERS_OF_LAYERS = ("idx", "index")
"""Endings of the names of settings that say which layer of the stack it is."""
PLAIN = (bool, int, float, str, torch.dtype, type(None))
Key = tuple[Hashable, ...]


@runtime_checkable
class CountsLayers(Protocol):
    """An input that counts the layers which obey it; layers that are not run count as the first did."""

    obeyed: int


@dataclass(frozen=True)
class Output:
    """The metadata of a tensor that a layer gives."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    begin: int
    dtype: torch.dtype
    has_gradient: bool
    storage: int
    """Which of the layer's new pieces of memory it lies in: the halves of a tensor share one."""


@dataclass(frozen=True)
class LayerCost:
    """Bytes that a layer takes for inputs of one kind, beyond those of its inputs and weights."""

    forward: int
    """Peak of the forward pass."""
    passing: int
    """The same where nothing is kept for the backward pass, as in the first pass of gradient checkpointing."""
    kept: int
    """Kept for the backward pass, outputs excluded."""
    backward: int
    """Peak of the backward pass, beyond what was kept and the gradients of the outputs."""
    storages: Sequence[int]
    """Bytes of the memory of the outputs."""
    outputs: Sequence[Output]
    spec: TreeSpec
    """The form that outputs have: a tensor, or a tuple of tensors and None."""
    obeyed: Sequence[int]
    """By how much each input that counts layers went up."""


@contextmanager
def share_layers(*networks: nn.Module) -> Iterator[None]:
    """Let one layer of every kind stand for the equal ones of its stack, in a block; in networks without weights only."""
    changed: list[tuple[nn.Module, object]] = []
    for network in networks:
        for layers in equal_layers(network):
            known: dict[Key, LayerCost | None] = {}
            for layer in layers:
                changed.append((layer, vars(layer).get("forward")))
                vars(layer)["forward"] = SharedLayer(layer.forward, known, NarrowedWeights(layer))
    try:
        yield
    finally:
        for layer, before in changed:
            if before is None:
                del vars(layer)["forward"]
            else:
                vars(layer)["forward"] = before


def equal_layers(network: nn.Module) -> list[list[nn.Module]]:
    """The layers of a network's stacks that differ only in their place, where there are at least LEAST of a kind."""
    kinds: dict[Key, list[nn.Module]] = {}
    for i, stack in enumerate(part for part in network.modules() if isinstance(part, nn.ModuleList)):
        for layer in stack:
            kinds.setdefault((i, *kind_of(layer)), []).append(layer)
    return [layers for layers in kinds.values() if len(layers) >= LEAST]


def kind_of(layer: nn.Module) -> Key:
    """Classes, plain settings and shapes of everything in a layer."""
    found: list[Hashable] = []
    for name, part in layer.named_modules():
        settings = {key: value for key, value in vars(part).items() if isinstance(value, PLAIN)}
        held = {**part._parameters, **part._buffers}
        shapes = [(key, one.shape, one.dtype, one.requires_grad) for key, one in held.items() if one is not None]
        own = tuple(sorted((key, str(value)) for key, value in settings.items() if not key.endswith(NUMBERS_OF_LAYERS)))
        found.append((name, type(part), own, tuple(shapes)))
    return tuple(found)


@dataclass(frozen=True)
class SharedLayer:
    """Takes the place of a layer's forward, which is measured once per kind of inputs."""

    work: Callable[..., Any]
    """The layer's own forward."""
    known: dict[Key, LayerCost | None]
    """Kind of inputs -> bytes; None: the layer itself is run on them."""
    narrowed: "NarrowedWeights"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        key = inputs_key(leaves, spec)
        if key is None:
            return self.work(*args, **kwargs)
        if key not in self.known:
            self.known[key] = measure(self.work, leaves, spec)
        cost = self.known[key]
        if cost is None:
            return self.work(*args, **kwargs)
        outputs, is_kept = stand_in(cost, leaves)
        if not is_kept:
            self.narrowed.take_place()
        return outputs


def inputs_key(leaves: Sequence[object], spec: TreeSpec) -> Key | None:
    """The kind of a layer's inputs; None where the layer would fill a cache, or no tensor is fake."""
    found: list[Hashable] = [str(spec), torch.is_grad_enabled()]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            found.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad, values_of(leaf)))
        elif isinstance(leaf, PLAIN):
            found.append(leaf)
        elif hasattr(leaf, "update"):
            return None
        else:
            found.append(id(leaf))
    return tuple(found) if any(isinstance(leaf, FakeTensor) for leaf in leaves) else None


def values_of(tensor: Tensor) -> Hashable:
    """The values of a real tensor that code may look at: where pieces begin, which positions count."""
    if isinstance(tensor, FakeTensor) or tensor.is_floating_point():
        return None
    with _disable_current_modes():
        return tensor.numpy().tobytes()


def measure(work: Callable[..., Any], leaves: Sequence[object], spec: TreeSpec) -> LayerCost | None:
    """Run a layer forwards and backwards in isolation; None where it returns an input, or an output that is not fake."""
    counters = counters_in(leaves)
    before = [one.obeyed for one in counters]
    dtype, is_on = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
    # Weights of this layer that autocast remembered would be missing from the count of the others.
    plain = torch.autocast("cpu", dtype, is_on, cache_enabled=False)
    with _disable_current_modes(), plain:
        passing = peak_of(work, leaves, spec)
    for one, count in zip(counters, before, strict=True):
        one.obeyed = count
    with _disable_current_modes(), saved_tensors_hooks(same, same), plain, LiveBytes() as live:
        own = [one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one for one in leaves]
        given = {storage_of(one) for one in own if isinstance(one, Tensor)}
        args, kwargs = tree_unflatten(own, spec)
        found, form = tree_flatten(work(*args, **kwargs))
        forward, kept, obeyed = live.peak, live.now, [one.obeyed - count for one, count in zip(counters, before, strict=True)]
        if any(one is not None and (not isinstance(one, FakeTensor) or storage_of(one) in given) for one in found):
            return None
        storages, outputs = describe([one for one in found if one is not None])
        kept -= sum(storages)
        taught = [one for one in found if one is not None and one.requires_grad]
        del found
        backward = back(taught, live) - kept if taught else 0
        del args, kwargs, own
        # what is made once for all layers, such as a mask
        common = live.now
    for one, count in zip(counters, before, strict=True):
        one.obeyed = count
    return LayerCost(forward - common, passing, kept - common, max(0, backward), storages, outputs, form, obeyed)


def counters_in(leaves: Sequence[object]) -> list[CountsLayers]:
    """The inputs that count layers, each once."""
    return list({id(one): one for one in leaves if isinstance(one, CountsLayers)}.values())


def peak_of(work: Callable[..., Any], leaves: Sequence[object], spec: TreeSpec) -> int:
    """Peak bytes of a layer's forward that keeps nothing for the backward pass."""
    with saved_tensors_hooks(forget, forget), LiveBytes() as live:
        own = [one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one for one in leaves]
        args, kwargs = tree_unflatten(own, spec)
        work(*args, **kwargs)
    return live.peak


def describe(tensors: Sequence[Tensor]) -> tuple[list[int], list[Output]]:
    """Bytes of the pieces of memory that tensors lie in, each once, and the metadata of the tensors."""
    known = {storage_of(one): one.untyped_storage().nbytes() for one in tensors}
    places = list(known)
    outputs = [
        Output(
            *(tuple(one.shape), one.stride(), int(one.storage_offset()), one.dtype, one.requires_grad),
            storage=places.index(storage_of(one)),
        )
        for one in tensors
    ]
    return list(known.values()), outputs


def back(outputs: list[Tensor], live: LiveBytes) -> int:
    """Peak bytes of the backward pass from outputs, which are freed, beyond their gradients."""
    gradients = sum(one.numel() * one.element_size() for one in outputs)
    end = Seed.apply(*outputs)
    outputs.clear()
    live.reset_peak()
    end.backward()  # type: ignore[union-attr] - a tensor
    return live.peak - gradients


def same(tensor: Tensor) -> Tensor:
    return tensor


def forget(_: object) -> Any:
    return None


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Seed(torch.autograd.Function):
    """A number made of tensors that are not kept; in the backward pass each gets a gradient of its size."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.shapes = [(one.shape, one.dtype) for one in tensors]
        ctx.maker = tensors[0].new_empty(0)
        return tensors[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        return tuple(ctx.maker.new_empty(shape, dtype=dtype) for shape, dtype in ctx.shapes)


class NarrowedWeights:
    """The copies of a layer's float32 weights in the type of autocast, which it keeps until it ends."""

    def __init__(self, layer: nn.Module) -> None:
        taught = [one for one in layer.parameters() if one.requires_grad and one.dtype == torch.float32]
        self.copied: Tensor | None = None
        if taught:
            with _disable_current_modes():
                self.copied = taught[0].detach().new_empty(sum(one.numel() for one in taught), 1).requires_grad_()

    def take_place(self) -> None:
        """Let autocast copy and keep as many numbers as for a layer that is run."""
        if self.copied is not None and torch.is_autocast_enabled("cpu"):
            with torch.no_grad():
                nn.functional.linear(self.copied.new_empty(0, 1), self.copied)


def stand_in(cost: LayerCost, leaves: Sequence[object]) -> tuple[Any, bool]:
    """The outputs of a layer that is not run; its bytes are taken, kept and freed as if it were.

    Also returns whether anything is kept for the backward pass: not without gradients, nor under gradient checkpointing.
    """
    for one, count in zip(counters_in(leaves), cost.obeyed, strict=True):
        one.obeyed += count
    maker = next(one for one in leaves if isinstance(one, FakeTensor))
    # real ones as well: a mask lives as long as the layer that it was given to may go back
    tensors = [one for one in leaves if isinstance(one, Tensor)]
    anchor = torch.zeros((), requires_grad=any(one.has_gradient for one in cost.outputs))
    is_kept = anchor.requires_grad and keeps(maker, anchor)
    made = list(Replay.apply(cost, is_kept, anchor, maker, *tensors))  # type: ignore[arg-type] - a tuple
    return tree_unflatten(made, cost.spec), is_kept and cost.kept > 0


def keeps(maker: Tensor, anchor: Tensor) -> bool:
    """Is what is saved for the backward pass kept? Gradient checkpointing drops it and runs the layer again."""
    held: list[weakref.ref[torch.UntypedStorage]] = []
    end = Probe.apply(maker, held, anchor)
    return held[0]() is not None and end is not None


class Probe(torch.autograd.Function):
    """Saves a byte."""

    @staticmethod
    def forward(ctx: Any, maker: Tensor, held: list[weakref.ref[torch.UntypedStorage]], anchor: Tensor) -> Tensor:
        saved = take(maker, 1)
        held.append(weakref.ref(saved.untyped_storage()))
        ctx.save_for_backward(saved)
        return anchor.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, None, None]:
        return None, None, None


class Replay(torch.autograd.Function):
    """Takes a layer's bytes forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, cost: LayerCost, is_kept: bool, anchor: Tensor, maker: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        take(maker, cost.forward if is_kept else cost.passing)
        places = [take(maker, count) for count in cost.storages]
        outputs = tuple(places[one.storage].view(one.dtype).as_strided(one.shape, one.stride, one.begin) for one in cost.outputs)
        ctx.cost = cost
        # What is freed at once has the same form, and takes no memory.
        ctx.save_for_backward(take(maker, cost.kept) if is_kept else take(maker, 1).expand(cost.kept), *tensors)
        ctx.mark_non_differentiable(*(out for out, one in zip(outputs, cost.outputs, strict=True) if not one.has_gradient))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kept, *tensors = ctx.saved_tensors
        take(kept, ctx.cost.backward)
        wanted = ctx.needs_input_grad[4:]
        given = (torch.empty_like(one) if need else None for one, need in zip(tensors, wanted, strict=True))
        return None, None, None, None, *given


def take(maker: Tensor, count: int) -> Tensor:
    """A tensor of this many bytes, which takes memory as long as it is referenced."""
    return maker.new_empty(count, dtype=torch.uint8)
