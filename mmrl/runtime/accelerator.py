"""Libraries that spread a run over processes, as far as mmrl uses them: accelerate, and one that owns the update."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@runtime_checkable
class DistributedKind(Protocol):
    """How accelerate spreads a model: `MULTI_GPU`, `FSDP`, `DEEPSPEED`, ..."""

    @property
    def value(self) -> str: ...


@runtime_checkable
class Accelerator(Protocol):
    """accelerate's Accelerator, as far as mmrl uses it."""

    @property
    def num_processes(self) -> int: ...
    @property
    def process_index(self) -> int: ...
    @property
    def is_main_process(self) -> bool: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def distributed_type(self) -> DistributedKind: ...
    @property
    def deepspeed_plugin(self) -> Any: ...

    def prepare(self, *args: object) -> Any: ...
    def unwrap_model(self, model: nn.Module) -> nn.Module: ...
    def gather(self, tensor: Tensor) -> Tensor: ...
    def backward(self, loss: Tensor) -> None: ...
    def clip_grad_norm_(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor: ...
    def local_main_process_first(self) -> AbstractContextManager[None]: ...
    def wait_for_everyone(self) -> None: ...
    def end_training(self) -> None: ...


@runtime_checkable
class Engine(Protocol):
    """A library that owns gradients, clipping and the optimizer's step: DeepSpeed, as `mmrl.training.deepspeed` drives it."""

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add to the gradients; with the `last` of an update, average them over processes."""
        ...

    def norm(self, limit: float) -> float:
        """The gradient's norm before clipping to `limit`; 0 clips nothing."""
        ...

    def step(self) -> None: ...

    def state(self, keep: bool = True) -> dict[str, object]:
        """The optimizer's state as one process would have it; every process must ask, even with keep=False."""
        ...

    def load(self, state: dict[str, object]) -> None: ...


def zero_stage(accelerator: Accelerator) -> int:
    """DeepSpeed's ZeRO stage; 0 without DeepSpeed."""
    if accelerator.distributed_type.value != "DEEPSPEED":
        return 0
    return accelerator.deepspeed_plugin.deepspeed_config["zero_optimization"]["stage"]


def is_sharded(accelerator: Accelerator) -> bool:
    """True where every process holds a part of every weight."""
    return accelerator.distributed_type.value == "FSDP" or zero_stage(accelerator) == 3
