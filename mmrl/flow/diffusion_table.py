"""Noise levels of models that were trained to predict noise, as sigmas of a flow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.flow.path import Sigmas
from mmrl.runtime.ranges import Count, CountOrNone, Positive, check_ranges


@dataclass(frozen=True)
class DiffusionTable:
    """sigma = s / (a + s) at whole times t of a noise schedule, a = sqrt(alpha_bar_t), s = sqrt(1 - a^2): DDIM's steps as a flow.

    Times are those of diffusers' DDIMScheduler (arXiv:2010.02502), each `train_steps // num_steps` before the last; the end
    is that of alpha_bar_0, a little above 0, or 0.
    """

    beta_start: Positive = 0.00085
    """The first beta of the noise schedule."""
    beta_end: Positive = 0.012
    """The last one."""
    beta_schedule: Literal["scaled_linear", "linear"] = "scaled_linear"
    """scaled_linear: even in the roots of beta (Stable Diffusion); linear: even in beta."""
    train_steps: Count = 1000
    """Entries of the table of times."""
    placing: Literal["leading", "trailing"] = "leading"
    """leading: the last step starts at `offset`; trailing: the first one at the last time."""
    offset: CountOrNone = 1
    """Of leading times (Stable Diffusion: 1)."""
    ends_at_data: bool = False
    """True: the last step goes to sigma 0; False: to the sigma of the table's first time."""
    kind: Literal["DiffusionTable"] = "DiffusionTable"
    """Names the spacing in a config."""

    __post_init__ = check_ranges

    @cached_property
    def table(self) -> Float[Tensor, " t"]:
        """The sigma of every time, ascending."""
        root = 0.5 if self.beta_schedule == "scaled_linear" else 1.0
        betas = torch.linspace(self.beta_start**root, self.beta_end**root, self.train_steps) ** (1 / root)
        signal = (1 - betas).cumprod(0).sqrt()
        noise = (1 - signal**2).sqrt()
        return noise / (signal + noise)

    def grid(self, num_steps: int) -> Sigmas:
        """Raises ValueError for more steps than the table has times."""
        if num_steps > self.train_steps:
            raise ValueError(f"{num_steps} denoising steps are more than the {self.train_steps} times of the table: take fewer")
        if self.placing == "leading":
            times = torch.arange(num_steps).flip(0) * (self.train_steps // num_steps) + self.offset
        else:
            times = (torch.arange(num_steps, 0, -1).double() * self.train_steps / num_steps).round() - 1
        return torch.cat([times.double().clamp(max=self.train_steps - 1), torch.full((1,), -1.0).double()]) / self.train_steps

    def sigmas(self, grid: Sigmas, image_tokens: int | None = None, num_steps: int | None = None) -> Sigmas:
        times = (grid * self.train_steps).round().long()
        end = torch.zeros(()) if self.ends_at_data else self.table[0]
        return torch.where(times < 0, end, self.table[times.clamp(min=0)])

    def times_of(self, sigmas: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
        """The whole time whose sigma is nearest."""
        table = self.table.to(sigmas.device)
        above = torch.searchsorted(table, sigmas).clamp(1, self.train_steps - 1)
        is_lower = (sigmas - table[above - 1]) < (table[above] - sigmas)
        return above - is_lower.long()


def table_of(scheduler_config: Mapping[str, Any]) -> DiffusionTable:
    """The table of a diffusers scheduler of noise prediction; "linspace" times become leading ones.

    Raises ValueError for an unknown noise schedule, or numbers that are none.
    """
    known = dict(scheduler_config)
    schedule, placing = known.get("beta_schedule"), known.get("timestep_spacing", "leading")
    if schedule not in ("scaled_linear", "linear") or known.get("rescale_betas_zero_snr") or known.get("trained_betas"):
        raise ValueError(
            f"the model's noise schedule ({schedule}, with zero terminal signal: {bool(known.get('rescale_betas_zero_snr'))}) "
            "is not known here: take a Stable Diffusion with scaled_linear or linear betas"
        )
    return DiffusionTable(
        number_of(known, "beta_start"),
        number_of(known, "beta_end"),
        schedule,
        int(number_of(known, "num_train_timesteps")),
        "trailing" if placing == "trailing" else "leading",
        int(number_of(known, "steps_offset", 0.0)),
        bool(known.get("set_alpha_to_one")),
    )


def number_of(scheduler_config: Mapping[str, Any], name: str, otherwise: float | None = None) -> float:
    """A number of a scheduler's config, which may write 3.0 as 3.

    Raises:
        ValueError: it is something else.
    """
    value = scheduler_config.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(
            f"the model's scheduler_config.json has {name} = {value!r}, which is no number: take the file anew from where the "
            "model comes from"
        )
    return float(value)
