"""Two networks that each cover a part of the way from noise to data, as one module."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Experts(nn.Module):
    """v(x, t) = early(x, t) where t >= boundary, else late(x, t), row by row (Wan 2.2 A14B)."""

    def __init__(self, early: nn.Module, late: nn.Module, boundary: float) -> None:
        super().__init__()
        self.early, self.late, self.boundary = early, late, boundary
        # accelerate looks here for the layers it may shard.
        self._no_split_modules = getattr(early, "_no_split_modules", None)

    def forward(
        self,
        hidden_states: Float[Tensor, "n c f h w"],
        timestep: Float[Tensor, " n"],
        encoder_hidden_states: Float[Tensor, "n t d"],
        return_dict: bool = False,
    ) -> tuple[Float[Tensor, "n v f h w"]]:
        """The velocity of every row, by the expert of its time (1000 = noise); channels of a first frame have none."""
        is_early = timestep >= self.boundary
        parts: list[Tensor] = []
        places: list[Tensor] = []
        idle = hidden_states.new_zeros(())
        for network, chosen in ((self.early, is_early), (self.late, ~is_early)):
            rows = chosen.nonzero()[:, 0]
            if len(rows):
                parts.append(network(hidden_states[rows], timestep[rows], encoder_hidden_states[rows], return_dict=False)[0])
                places.append(rows)
            elif several_processes():
                # Processes that share weights or gradients wait for each other in every network, with rows or without.
                one = network(hidden_states[:1], timestep[:1], encoder_hidden_states[:1], return_dict=False)[0]
                idle = idle + 0 * one.sum()
        order = torch.cat(places).argsort()
        return (torch.cat(parts)[order] + idle.to(parts[0].dtype),)


def several_processes() -> bool:
    """Does this process work with others?"""
    return torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
