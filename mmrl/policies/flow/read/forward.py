"""One forward of the network, on latents that fit into it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.policies.flow.families.base import Condition
from mmrl.policies.flow.families.sources import alike
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.trace import FlowTrace, NoisyLatents
from mmrl.policies.shared.sharding import reshard
from mmrl.runtime.tensors import to_device

Forward = Callable[[NoisyLatents, Sequence[Condition], float | None], Float[Tensor, "m ..."]]
"""Velocities of at most `forward_rows` latents, by the network or a dry run; with a gradient where gradients are on."""


@dataclass(frozen=True)
class LocalForward:
    """The network that trains: its wrapped module, or without a gradient the module itself."""

    host: FlowHost

    def __call__(
        self, asked: NoisyLatents, conditions: Sequence[Condition], guidance: float | None = None
    ) -> Float[Tensor, "m ..."]:
        host, grad, count, index = self.host, torch.is_grad_enabled(), len(asked.x), asked.index
        device = host.net.device
        x, timesteps = to_device(asked.x, device), to_device(asked.timesteps, device)
        if host.config.equal_forwards:
            most = host.family.rows_at(host.config.forward_rows, asked.size)
            rows = torch.arange(most).clamp(max=count - 1)
            x, timesteps, index = x[to_device(rows, device)], timesteps[to_device(rows, device)], index[rows]
        is_shared = host.net.passes(guidance) == 2 and not host.family.own_negatives
        empty = host.encoder.empty(device) if is_shared else None
        module = host.module if grad else host.net
        v = module(x, timesteps, conditions, index, empty, guidance, asked.size)
        if not grad and host.ranks.is_sharded:
            reshard(host.net)
        return v[:count]


def noisy_latents(trace: FlowTrace, rows: Int[Tensor, " m"], columns: Int[Tensor, " m"]) -> NoisyLatents:
    """The latents that the network sees for some actions, whose pictures have one size."""
    x, index = trace.inputs(rows, columns), trace.prompt_index[rows]
    return NoisyLatents(x, trace.timesteps[rows, columns], index, trace.size_of(rows))


def velocities_of(
    host: FlowHost, asked: Sequence[NoisyLatents], conditions: Sequence[Condition], guidance: float | None = None
) -> list[Tensor]:
    """The velocities at latents of every size, in forwards of one size each: equally many on all processes."""
    most, family = host.config.forward_rows, host.family
    pieces = [alike(conditions, own.index, family.rows_at(most, own.size), family.one_length) for own in asked]
    missing = host.ranks.forwards(sum(map(len, pieces))) - sum(map(len, pieces))
    found: list[Tensor] = []
    for own, cut in zip(asked, pieces, strict=True):
        out = [host.forward(own.take(rows), conditions, guidance) for rows in cut]
        if own is asked[-1]:
            # The condition of a row of this size: one of another size may hold pictures of another size.
            one = own.index[:1] if len(own.index) else torch.zeros(1, dtype=own.index.dtype)
            empty = NoisyLatents(own.x.new_zeros(1, *own.x.shape[1:]), own.timesteps.new_zeros(1), one, own.size)
            out += [host.forward(empty, conditions, guidance)[:0] for _ in range(missing)]
        found.append(put_back(out, cut) if out else own.x)
    return found


def put_back(out: Sequence[Tensor], cut: Sequence[Tensor | slice]) -> Tensor:
    """The rows of all forwards in the order that they were cut from."""
    order = [rows for rows in cut if isinstance(rows, Tensor)]
    if len(cut) > 1 and order:
        return torch.cat(list(out))[to_device(torch.cat(order).argsort(), out[0].device)]
    return torch.cat(list(out))
