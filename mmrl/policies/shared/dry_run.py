"""The parts of a dry run: models without weights that know every shape, bytes that live while they work, a record of the work."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmrl.core.types import Prompt, Rollouts
from mmrl.policies.shared.holding import holding
from mmrl.policies.shared.weights import Decay, Rest, Weights

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


PHASES = ("rollout", "read", "update")
OF_TEACHERS = "teachers"
"""In the names of parts beside the network that a process which only samples does not hold."""


@dataclass
class CallCount:
    """The work of one phase of a step."""

    parts: int = 0
    """Pieces of work: decoding side by side, or one forward over part of a batch."""
    passes: int = 0
    """Forwards of the network; in a text model those that decode a token included."""
    vision: int = 0
    """Passes of the vision tower."""
    rows: int = 0
    """Completions, or (flow) latents that the network saw."""
    positions: int = 0
    """Tokens, padding included, that went through the network."""

    def add(self, passes: int, vision: int, rows: int, positions: int) -> None:
        """Count one more piece of work."""
        self.parts, self.passes, self.vision = self.parts + 1, self.passes + passes, self.vision + vision
        self.rows, self.positions = self.rows + rows, self.positions + positions


@dataclass
class CallLog:
    """Counts of a dry run by phase, and how many positions the largest piece of work of each had."""

    counts: dict[str, CallCount] = field(default_factory=lambda: {phase: CallCount() for phase in PHASES})
    largest: dict[str, int] = field(default_factory=dict[str, int])
    """Phase -> positions of the largest piece of work."""
    generating: bool = False
    episode: str = ""
    """Of samples of several turns: the longest, in words."""
    latents: int = 0
    """For image generators: bytes of the latents that rollouts keep in the memory of the host."""
    decoded: int = 0
    """For image generators: bytes of the samples' pixels."""
    drawn: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """For image generators: (width, height) -> number of samples."""

    def clear(self) -> None:
        """Begin again; counts that were handed out stay as they are."""
        self.counts, self.largest = {phase: CallCount() for phase in PHASES}, {}
        self.latents, self.decoded, self.drawn = 0, 0, {}

    @property
    def phase(self) -> str:
        """The phase that work is counted under at present."""
        return "rollout" if self.generating else "update" if torch.is_grad_enabled() else "read"

    def rollout(self) -> AbstractContextManager[None]:
        """Count the work of a block as that of sampling."""
        return holding([self], "generating", True)

    def note(self, passes: int, vision: int, rows: int, positions: int, compared: bool = True, fed: int | None = None) -> bool:
        """Count a piece of work; True if it is the largest of its phase so far, of those that are compared.

        `fed`: how many of the positions go through the network; None: all.
        """
        self.counts[self.phase].add(passes, vision, rows, positions if fed is None else fed)
        if not compared or positions <= self.largest.get(self.phase, 0):
            return False
        self.largest[self.phase] = positions
        return True


class DryRun(ABC):
    """A policy built of parts that count and compute nothing, and what it would take to compute it."""

    policy: Any
    """The policy that the trainer is given; it goes through the motions of a run."""
    log: CallLog

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """The network that trains, and what it is built on, without weights."""

    @abstractmethod
    def largest_work(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """The largest pieces of work that were asked for: the phase of each, and how to do it in full size.

        Gradients are on in an update, whose work goes back as well.
        """

    def largest_of(self, prompts: Sequence[Prompt], count: int) -> Sequence[Prompt]:
        """The n prompts whose samples take the most memory; none where that is unknown, or they are alike."""
        return ()

    def beside(self) -> Mapping[str, int]:
        """Part -> bytes of further networks."""
        return {}

    def activations(self) -> Mapping[str, int]:
        """Phase -> most bytes that its largest piece of work keeps at a time, weights and their gradients apart."""
        # gradients exist when the second part of an update begins
        for weight in self.network.parameters():
            weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
        found: dict[str, int] = {}
        for phase, work in self.largest_work():
            with LiveBytes() as live, torch.set_grad_enabled(phase == "update"):
                work()
            found[phase] = max(live.peak, found.get(phase, 0))
        return found

    def parts_of_activations(self) -> Mapping[str, int]:
        """The tensors that take much of them -> bytes; to be asked for after `activations`."""
        return {}

    @abstractmethod
    def host_bytes(self) -> Mapping[str, int]:
        """Part -> bytes of a step's rollouts that stay in the memory of the host until they are trained on."""


def no_audit(policy: object, rollouts: Rollouts) -> None:
    """The audit of a dry run, which has nothing real to find a mistake in."""


class StillWeights(nn.Module):
    """A network of one weight, 0, which no gradient moves: it stands for the weights that a dry run does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def zero(self) -> torch.Tensor:
        """0, with a gradient where gradients are on."""
        return 0.0 * self.weight if torch.is_grad_enabled() else torch.zeros(())

    def keeper(self) -> Callable[[nn.Module, Iterable[str], Decay, bool, Rest], Weights]:
        """The part of a policy that keeps its weights: it keeps these instead of its network's."""
        return lambda module, shadows, ema_decay, sharded, rest: Weights(self, shadows, ema_decay)
