"""DeepSpeed's engine under mmrl's loop: it owns gradients, clipping and the optimizer's step; the loop says when to do what."""

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from mmrl.core.protocols import State
from mmrl.core.ranks import OwnState, Ranks


class DeepSpeedEngine:
    """The engine of a prepared policy, with mmrl's optimizer in it.

    A policy is prepared before its optimizer exists, so the engine was begun with another one. Here the real one takes its
    place, on the flat parts that the engine updates. The learning rate is read from it as ever.

    Raises:
        ValueError: an older DeepSpeed, or an optimizer with several groups of weights.
    """

    def __init__(self, engine: Any, optimizer: torch.optim.Optimizer) -> None:
        self.engine, self.zero, self.optimizer = engine, engine.optimizer, optimizer
        self.weights: list[Any] = [weight for group in optimizer.param_groups for weight in group["params"]]
        self._update: Any = None
        if not hasattr(engine, "coalesce_grad_reduction"):
            raise ValueError(
                "this DeepSpeed cannot sum the gradients of several passes at once: install deepspeed 0.19.8 or newer"
            )
        begun = self.zero.optimizer
        if len(begun.param_groups) != 1 or len(optimizer.param_groups) != 1:
            raise ValueError("DeepSpeed is driven with one group of weights: take optimizer.kind = 'adamw'")
        optimizer.param_groups[0]["params"] = begun.param_groups[0]["params"]
        self.zero.optimizer = engine.basic_optimizer = optimizer

    @property
    def spreads_weights(self) -> bool:
        return self.engine.zero_optimization_stage() == 3

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add to the gradients of this process; with the `last` of an update, average them over processes.

        Summed as they come, they would be mixed up wherever processes look at other media and so compute them in another order.
        """
        if self._update is None:
            self._update = self.engine.coalesce_grad_reduction()
            self._update.__enter__()
        self.engine.backward(loss)
        if last:  # zeros for weights without a part in any loss here: sums over processes would be shifted against each other
            for weight in [] if self.spreads_weights else self.weights:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            self._update.__exit__(None, None, None)
            self._update = None

    def norm(self, limit: float) -> float:
        """The gradient's norm before clipping; the step that follows clips to `limit`, unless that is 0."""
        self.zero.clip_grad = limit
        found = self.zero._get_norm_groups() if self.spreads_weights else [self.zero.scaled_global_norm()]
        norms = [float(norm) for norm in found]
        # The engine writes -1 for what is not finite.
        return math.hypot(*norms) if min(norms) >= 0 else math.nan

    def step(self) -> None:
        self.engine.step()

    def state(self, keep: bool = True) -> State:
        """The optimizer's state as one process would have it; every process must call it, even with keep=False."""
        names, numbers = self._kinds()
        group = {name: x for name, x in self.optimizer.param_groups[0].items() if name != "params"}
        moments: dict[int, State] = {}
        for i, weight in enumerate(self.weights):
            found: dict[str, Any] = {name: deepspeed().safe_get_full_optimizer_state(weight, name).cpu() for name in names}
            moments |= {i: OwnState(found | numbers)} if keep else {}
        return {
            "state": moments if names or numbers else {},
            "param_groups": [group | {"params": list(range(len(self.weights)))}],
        }

    def load(self, state: State) -> None:
        """Put back what `state` gave, here or in one process, and take over the weights as they are now."""
        self.zero.refresh_fp32_params()
        saved: Mapping[int, Mapping[str, Any]] = state["state"]
        if not saved:
            return
        first = next(iter(saved.values()))
        for flat in self._flat():
            kept = {name: torch.zeros_like(flat) for name, x in first.items() if is_moment(x)}
            self.optimizer.state[flat] = kept | {name: copy_of(x) for name, x in first.items() if not is_moment(x)}
        if not self.spreads_weights:
            self.zero._hp_optimizer_states_linked = False
            self.zero._lazy_init_hp_params_optimizer_state()
        for i, weight in enumerate(self.weights):
            for name, x in saved.get(i, {}).items():
                if is_moment(x):
                    deepspeed().safe_set_full_optimizer_state(weight, x.to(self.engine.device), name)

    def _flat(self) -> list[Tensor]:
        """This process's part of the weights, in float32."""
        return self.zero.fp32_partitioned_groups_flat if self.spreads_weights else self.zero.single_partition_of_fp32_groups

    def _kinds(self) -> tuple[list[str], dict[str, Any]]:
        """Names of what is kept for every number of a weight, and what is kept once."""
        own = self.optimizer.state.get(self._flat()[0], {})
        moments = [name for name, x in own.items() if is_moment(x)]
        return moments, {name: copy_of(x) for name, x in own.items() if not is_moment(x)}


def drive(ranks: Ranks, optimizer: torch.optim.Optimizer) -> Ranks:
    """Give this optimizer to the engine of a policy that DeepSpeed trains, which then owns the update; else the same ranks."""
    wrapped = getattr(ranks.accelerator, "deepspeed_engine_wrapped", None)
    return ranks if wrapped is None else Ranks(ranks.accelerator, DeepSpeedEngine(wrapped.engine, optimizer))


def deepspeed() -> Any:
    """DeepSpeed's helpers for reading and writing sharded weights."""
    return import_module("deepspeed.utils")


def is_moment(x: object) -> bool:
    """True for tensors with a dimension. Counts of steps are tensors too, without one."""
    return isinstance(x, Tensor) and x.ndim > 0


def copy_of(x: Any) -> Any:
    return x.detach().cpu().clone() if isinstance(x, Tensor) else x
