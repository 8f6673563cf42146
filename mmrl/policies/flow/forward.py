"""One forward of the network, on latents that fit into it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.core.tensors import to_device
from mmrl.policies.flow.families.base import Condition
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.shared.sharding import reshard


@runtime_checkable
class Forward(Protocol):
    """Velocities of at most `forward_rows` latents: by the policy's network, or by a dry run."""

    def __call__(
        self,
        x: Float[Tensor, "m ..."],
        timesteps: Float[Tensor, " m"],
        conditions: Sequence[Condition],
        index: Int[Tensor, " m"],
        guidance: float | None = None,
    ) -> Float[Tensor, "m ..."]:
        """On the network's device; with a gradient where gradients are on."""
        ...


@dataclass(frozen=True)
class LocalForward:
    """The network that trains: its wrapped module, or without a gradient the module itself."""

    host: FlowHost

    def __call__(
        self,
        x: Float[Tensor, "m ..."],
        timesteps: Float[Tensor, " m"],
        conditions: Sequence[Condition],
        index: Int[Tensor, " m"],
        guidance: float | None = None,
    ) -> Float[Tensor, "m ..."]:
        host, grad, count = self.host, torch.is_grad_enabled(), len(x)
        device = host.net.device
        x, timesteps = to_device(x, device), to_device(timesteps, device)
        if host.config.equal_forwards:
            rows = torch.arange(host.config.forward_rows).clamp(max=count - 1)
            x, timesteps, index = x[to_device(rows, device)], timesteps[to_device(rows, device)], index[rows]
        is_shared = host.net.passes(guidance) == 2 and not host.family.own_negatives
        empty = host.encoder.empty(device) if is_shared else None
        module = host.module if grad else host.net
        v = module(x, timesteps, conditions, index, empty, guidance)
        if not grad and host.ranks.is_sharded:
            reshard(host.net)
        return v[:count]
