"""The trainable weights of a policy, the copies kept of them (the reference, a moving average), and which may be read."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import get_ident
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mmrl.core.protocols import State
from mmrl.core.ranks import OwnState, gathered
from mmrl.core.types import Reading
from mmrl.policies.shared.lora import AdaptedLayer, adapter_layers, is_own, switch_adapters
from mmrl.policies.shared.sharding import reshard
from mmrl.runtime.tensors import copy_all, mark_tables

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

SHADOWS = frozenset({"ref", "ema", "previous", "start"})
"""`start`: as they were when the current step began; `previous`: when the one before began, which takes `start` too."""
Decay = float | Callable[[int], float]
"""How much of an average is kept at an update: a number, or a function of how many updates there were before."""
USUAL_DECAY = 0.99
Rest = Literal["device", "cpu"]
"""Where copies of weights are kept while not in use."""


@runtime_checkable
class Partitioned(Protocol):
    """A weight under ZeRO-3, which is empty between forwards."""

    ds_tensor: Tensor
    """This process's part of it, flat."""
    ds_numel: int
    ds_shape: torch.Size


@runtime_checkable
class Distributed(Protocol):
    """A weight under FSDP: torch's DTensor, which is slow to import."""

    @property
    def device_mesh(self) -> "DeviceMesh": ...
    @property
    def placements(self) -> "tuple[Placement, ...]": ...
    def full_tensor(self) -> Tensor: ...


@dataclass(frozen=True)
class Shadow:
    """A copy of the trainable weights, which takes their place for the time of a reading.

    With a fresh LoRA it equals the model without its adapter, so one mechanism serves both kinds of training.
    """

    weights: list[Tensor]
    """None of them: it is the model without its adapter."""
    order: list[nn.Parameter]
    """The live weights that these are copies of."""
    rest: Rest = "device"
    """Where the copies are kept while not in use, and the live weights while the copies are in use."""

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], rest: Rest = "device") -> "Shadow":
        """The weights as they are now."""
        return cls([put_aside(own_part(weight).detach(), rest) for weight in parameters], list(parameters), rest)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """A block in which the live parameters hold the shadow's values. No gradient may be taken through it."""
        # Through .data the version counters stay, so a graph built before remains valid once the values are back.
        live = [own_part(weight).data for weight in self.order]
        kept = [put_aside(weight, self.rest) for weight in live]
        copy_all(live, self.weights)
        try:
            with torch.no_grad():
                yield
        finally:
            copy_all(live, kept)

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """shadow <- decay * shadow + (1 - decay) * policy."""
        for weight, live in zip(self.weights, self.order, strict=True):
            weight.lerp_(own_part(live).detach().to(weight.device), 1 - decay)


class Weights:
    """The trainable weights of a module; `ref` and `ema` start as copies of them, and `ema` follows at every update.

    `previous`, if `shadows` names it, holds the weights with which the step before began.

    Args:
        ema_decay: d in ema <- d * ema + (1 - d) * weights: a number, or a function of how many updates there were before.
        sharded: every process holds a part of every weight.
        rest: where the shadows are kept while not in use; "cpu" is refused where weights are sharded.
        prefix: dropped from the weights' names in states.
    """

    def __init__(
        self,
        module: nn.Module,
        shadows: Iterable[str],
        ema_decay: Decay = USUAL_DECAY,
        sharded: bool = False,
        rest: Rest = "device",
        prefix: str = "",
    ) -> None:
        asked = set(shadows)
        wanted = sorted(asked | {"start"} if "previous" in asked else asked)
        if sharded and rest == "cpu":
            raise ValueError(
                "policy.copies_on is 'cpu', but FSDP and ZeRO-3 keep a part of every copy on each GPU: leave policy.copies_on "
                "out, or start with configs/accelerate/ddp.yaml"
            )
        if set(wanted) - SHADOWS:
            raise ValueError(f"a policy keeps the shadows {sorted(SHADOWS)}, not {sorted(set(wanted) - SHADOWS)}")
        self.module, self.ema_decay, self.sharded = module, ema_decay, sharded
        # Looked up once: while a forward runs, sharded weights are other ones.
        trainable = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
        self.named = {name.removeprefix(prefix): weight for name, weight in trainable}
        mark_tables(module)
        self.rest: Rest = rest
        self._is_bare: tuple[list[int], bool] | None = None
        self.shadows = {name: self._copy() for name in wanted}
        self._drop_bare_copy()
        self.num_updates = 0
        self._swapped = "policy", 0
        """Which weights the module holds now, and the thread that swapped them in."""

    @property
    def active(self) -> str:
        """The weights that this thread has swapped in: `policy`, or the name of a shadow."""
        name, thread = self._swapped
        return name if thread == get_ident() else "policy"

    @contextmanager
    def swapped_in(self, model: str) -> Iterator[None]:
        """A block in which the module holds the weights of this name; nothing but `policy` may be given a gradient there."""
        with ExitStack() as stack:
            if model != "policy":
                if self.sharded:
                    reshard(self.module)
                if model == "ref" and self._reference_is_bare():
                    # adapters that are off save their share of every forward, and copying weights
                    stack.enter_context(switch_adapters(self._adapters, False))
                    stack.enter_context(torch.no_grad())
                else:
                    stack.enter_context(self.shadows[model].swapped_in())
                stack.callback(setattr, self, "_swapped", self._swapped)
                self._swapped = model, get_ident()
            yield

    @cached_property
    def _adapters(self) -> list[AdaptedLayer]:
        return adapter_layers(self.module.modules())

    def value(self, model: str, weight: Tensor) -> Tensor:
        """A weight of the module as it is under the weights of this name, where the live one lies.

        Raises ValueError for one of which every process holds a part.
        """
        shadow = None if model == "policy" else self.shadows[model]
        pairs = [] if shadow is None else zip(shadow.order, shadow.weights, strict=False)
        found = next((value for own, value in pairs if own is weight), weight)
        if self.sharded and found is not weight:
            raise ValueError(
                f"the next token is compared with the weights {model!r} over the whole vocabulary, and FSDP or ZeRO-3 cuts the "
                "head that trains: set policy.lora, take a teacher of policy.teachers, or the form sampled"
            )
        return weight if found is weight else found.detach().to(weight.device)

    def _copy(self) -> Shadow:
        return Shadow.of(list(self.named.values()), self.rest)

    def _drop_bare_copy(self) -> None:
        """Keep no copy for a reference that is the model without its adapter: it has one from the first rebase on."""
        if "ref" in self.shadows and self._reference_is_bare():
            self.shadows["ref"].weights.clear()
            self.__dict__.pop("_outer", None)

    def _reference_is_bare(self) -> bool:
        """Is the reference the model without its adapter, as with a fresh one, which adds nothing?"""
        if self.named and not self.shadows["ref"].weights:
            return True
        # Values are looked at once for each time they were written: on a GPU every look waits for all work before it.
        versions = [weight._version for weight in self._outer]
        if self._is_bare is None or self._is_bare[0] != versions:
            self._is_bare = versions, bool(versions) and not any(bool(weight.any()) for weight in self._outer)
        return self._is_bare[1]

    @cached_property
    def _outer(self) -> list[Tensor]:
        """The outer matrices of the reference's adapters; none where anything else trains too, or weights are sharded."""
        if self.sharded or not all(".lora_A." in name or ".lora_B." in name for name in self.named):
            return []
        copies = dict(zip(map(id, self.named.values()), self.shadows["ref"].weights, strict=True))
        outer = [(name, weight) for name, weight in self.module.named_parameters() if "lora_B" in name and is_own(name)]
        return [copies.get(id(weight), weight) for _, weight in outer]

    def follow(self) -> None:
        """Count an update, and let the average follow it."""
        if "ema" in self.shadows:
            decay = self.ema_decay(self.num_updates) if callable(self.ema_decay) else self.ema_decay
            self.shadows["ema"].follow(decay)
        self.num_updates += 1

    def end_step(self, rebase: bool = False) -> None:
        """End a step: `previous` takes the weights that it began with, and the next step begins with the current ones.

        Args:
            rebase: the reference takes over the current weights.
        """
        if rebase and "ref" in self.shadows:
            if self.shadows["ref"].weights:
                self.shadows["ref"].follow(0.0)
            else:
                self.shadows["ref"], self._is_bare = self._copy(), None
        if "previous" in self.shadows:
            copy_all(self.shadows["previous"].weights, self.shadows["start"].weights)
            self.shadows["start"].follow(0.0)

    def state_dict(self, keep: bool = True) -> State:
        """Everything by name, whole and in memory of its own on the CPU. With sharded weights every process must call it.

        Without `keep`, on processes that only help to gather, the tables are empty.
        """

        def table(values: Iterable[Tensor]) -> dict[str, Tensor]:
            kept: dict[str, Tensor] = {}
            # a reference without a copy has no values
            for (name, weight), value in zip(self.named.items(), values, strict=False):
                if keep or isinstance(weight, Partitioned | Distributed):
                    one = whole(weight, value)
                    kept |= {name: one} if keep else {}
            return kept

        live = [own_part(weight) for weight in self.named.values()]
        shadows = {name: table(shadow.weights) for name, shadow in self.shadows.items()}
        return OwnState(weights=table(live), shadows=shadows, num_updates=self.num_updates)

    def load_state_dict(self, state: State) -> None:
        """Put a state of `state_dict` back; raises ValueError where it belongs to other weights or shadows."""
        for what, found, own in (
            ("weights", set(state["weights"]), set(self.named)),
            ("averages or references", set(state["shadows"]), set(self.shadows)),
        ):
            if found != own:
                raise ValueError(
                    f"the saved state has other {what} than this policy ({sorted(found ^ own)[:3]} ...): "
                    "resume with the policy settings and the algorithm of the saved run"
                )
        for what, found in (("weights", state["weights"]), *state["shadows"].items()):
            if found or what == "weights":
                refuse_misfits(self.named, found, what)
        for name, weight in self.named.items():
            put(weight, state["weights"][name])
        for name, found in state["shadows"].items():
            if not self.shadows[name].weights:
                self.shadows[name] = self._copy()
            for (key, weight), value in zip(self.named.items(), self.shadows[name].weights, strict=True):
                # the reference of an adapter that adds nothing: none was kept
                put(weight, found[key] if found else torch.zeros_like(state["weights"][key]), value)
        # Loaded through .data, which changes no version counter.
        self._is_bare = None
        self._drop_bare_copy()
        self.num_updates = int(state.get("num_updates", 0))


def refuse_misfits(weights: Mapping[str, Tensor], found: Mapping[str, Tensor], what: str) -> None:
    """Raise ValueError for saved tensors of other names, shapes or types than these weights: a copy would bend them silently."""

    def kind(weight: Tensor) -> str:
        shape = weight.ds_shape if isinstance(weight, Partitioned) else weight.shape
        return f"{str(weight.dtype).removeprefix('torch.')} {list(shape)}"

    for name, weight in weights.items():
        saved = kind(found[name]) if name in found else "absent"
        if saved != kind(weight):
            raise ValueError(
                f"the saved state's {what} do not fit this policy: {name} is {saved} there and {kind(weight)} here: resume with "
                "the policy settings of the saved run, or take an earlier checkpoint"
            )


def check_reading(reading: Reading, kind: str, offers: Set[str], models: Set[str], views: Set[str]) -> None:
    """Raise ValueError for a reading that a policy of this kind cannot evaluate."""
    if reading.guidance is not None and kind != "flow":
        raise ValueError(f"{reading.quantity} is read with guidance {reading.guidance:g}, which a {kind} policy does not have")
    for what, name, known in (
        ("quantity", reading.quantity, offers),
        ("model", reading.model, models),
        ("view", reading.view, views),
        *((("model", reading.target.model, models), ("view", reading.target.view, views)) if reading.target else ()),
    ):
        if name not in known:
            raise ValueError(f"{what} {name!r} cannot be read from this {kind} policy, which has {', '.join(sorted(known))}")


Publication = tuple[int, Callable[[], None], Callable[[], None]]
"""The number of weights that were set aside, a call by which they write from then on, and one that gives up what is written."""


class FollowsWeights:
    """Samples: with the policy's own network, as a dry run, or in an engine that has a copy of the weights."""

    exact: bool = True
    """Are its log-probabilities those that the policy reads, up to rounding? An engine with other kernels says no."""

    def follow(self, weights: Weights, version: int) -> None:
        """Take over the live weights, which have had `version` updates; nothing is done where it samples with these or has none.

        The policy calls it before it first samples and once the weights have moved, on every process equally often, so it may
        gather what is sharded (`weights.state_dict()`).
        """

    def publish(self, version: int) -> Publication:
        """Set the live weights aside under this number, to write with them while the live ones move; see Publication.

        Raises:
            ValueError: it samples with the network that trains.
        """
        raise ValueError(
            "ahead is above 0, and the network that trains samples: set cluster.samplers, or add [policy.engine] to a model that "
            "writes, or set ahead = 0"
        )


def put_aside(weight: Tensor, rest: Rest) -> Tensor:
    """A copy of a weight, on its device or in the machine's memory."""
    return weight.clone() if rest == "device" else weight.to("cpu", copy=True)


def own_part(weight: Tensor) -> Tensor:
    """This process's part of a weight; the weight itself where it is not partitioned."""
    return weight.ds_tensor if isinstance(weight, Partitioned) else weight


def whole(weight: Tensor, value: Tensor | None = None) -> Tensor:
    """A weight, or a `value` that is sharded like it, on the CPU; gathered when it is sharded (all processes must ask)."""
    value = own_part(weight) if value is None else value
    if isinstance(weight, Partitioned):
        parts = [torch.empty_like(value) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, value.detach())
        value = torch.cat(parts)[: weight.ds_numel].view(weight.ds_shape)
    return gathered(value)


@torch.no_grad()
def put(weight: Tensor, value: Tensor, to: Tensor | None = None) -> None:
    """Copy a whole value into a weight, or into `to`, sharded like it: into this process's part when it is sharded."""
    to = own_part(weight) if to is None else to
    if isinstance(weight, Distributed):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
    elif isinstance(weight, Partitioned):
        # DeepSpeed cuts the flat weight into equal parts and fills up the last.
        flat, size = value.flatten(), to.numel()
        mine = flat[size * torch.distributed.get_rank() :][:size]
        value = torch.nn.functional.pad(mine, (0, size - len(mine)))
    to.data.copy_(value)
