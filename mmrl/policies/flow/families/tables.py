"""Sigmas by the scheduler of a pipeline itself, for networks that magnify the last digit of their times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any

import numpy as np
import torch

from mmrl.flow.path import Sigmas
from mmrl.flow.sigmas import DynamicShift
from mmrl.policies.flow.families.facts import EULER


@dataclass(frozen=True)
class OwnTable(DynamicShift):
    """A dynamic shift in the float32 of diffusers' scheduler, bit for bit; the formula in float64 differs from it by 1e-7."""

    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The scheduler's config."""
    listed: tuple[float, ...] = ()
    """Sigmas before the shift that its makers give for this many steps; (): none."""

    @classmethod
    def of(cls, shift: DynamicShift, settings: Mapping[str, Any], listed: Sequence[float] = ()) -> "OwnTable":
        """The table of a scheduler whose shift this is."""
        return cls(**{own.name: getattr(shift, own.name) for own in fields(shift)}, settings=settings, listed=tuple(listed))

    def grid(self, num_steps: int) -> Sigmas:
        """The listed sigmas for as many steps, an even grid for others."""
        found = self.listed if len(self.listed) == num_steps else np.linspace(1.0, 1 / num_steps, num_steps)
        return torch.tensor([*found, 0.0], dtype=torch.float64)

    def sigmas(self, grid: Sigmas, image_tokens: int | None = None, num_steps: int | None = None) -> Sigmas:
        """Raises ValueError where DynamicShift does."""
        if image_tokens is None or len(grid) < 3:
            return super().sigmas(grid, image_tokens, num_steps)
        scheduler = getattr(import_module("diffusers"), EULER).from_config(dict(self.settings))
        scheduler.set_timesteps(sigmas=grid[:-1].tolist(), mu=self.mu(image_tokens))
        return scheduler.sigmas
