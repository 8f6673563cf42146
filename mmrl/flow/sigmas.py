"""How the steps of a rollout are spaced between noise and data: sigma schedules.

A spacing has a grid of times u for a rollout of `num_steps` steps (float64, from 1 to 0, one entry more than steps) and a shift
u -> sigma that keeps both ends and returns diffusers' own numbers in float32.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.flow.path import Sigmas
from mmrl.runtime.ranges import BelowOne, Count, CountOrNone, Number, Positive, PositiveShare, Range, check_ranges

Exponent = Annotated[float, Range(-20, 20, why="e to it is a factor of the noise")]


def shift_by(factor: float, u: Tensor) -> Tensor:
    """factor u / (1 + (factor - 1) u): more steps near the noise for factor > 1."""
    return factor * u / (1 + (factor - 1) * u)


def stretched(sigmas: Sigmas, terminal: float | None) -> Sigmas:
    """1 - (1 - sigma) (1 - terminal) / (1 - last): the last sigma before 0 becomes the terminal one; none: as they are.

    Raises:
        ValueError: there is one step, whose sigma is the first one too.
    """
    if terminal is None:
        return sigmas
    if len(sigmas) < 3:
        raise ValueError(
            f"schedule.spacing.terminal = {terminal} fixes the last sigma before 0, and with one denoising step that is the "
            "first one too: take 2 steps or more"
        )
    remaining = 1 - sigmas[:-1]
    return torch.cat([1 - remaining * (1 - terminal) / remaining[-1], sigmas[-1:]])


def given(image_tokens: int | None, kind: str) -> int:
    """The number of image tokens; ValueError without it."""
    if image_tokens is None:
        raise ValueError(
            f"{kind} spaces the steps by the number of image tokens, which was not given: pass image_tokens, or set "
            "schedule.spacing to StaticShift"
        )
    return image_tokens


@dataclass(frozen=True)
class StaticShift:
    """sigma = s u / (1 + (s - 1) u) on u from 1 to sh(1 / 1000): diffusers' flow-matching scheduler (SD3: s = 3).

    At the small end the shift applies twice, since diffusers takes the grid's end from a shifted table: the last step is tiny.
    """

    shift: Positive = 3.0
    """s: the larger, the more steps lie near the noise; 1 = even."""
    train_steps: Count = 1000
    """Entries of the scheduler's table of times, whose last one the grid ends at."""
    terminal: BelowOne | None = None
    """Stretch the sigmas so that the last one before 0 is this."""
    kind: Literal["StaticShift"] = "StaticShift"
    """Names the spacing in a config."""

    __post_init__ = check_ranges

    def grid(self, num_steps: int) -> Sigmas:
        end = float(shift_by(self.shift, torch.tensor(1 / self.train_steps, dtype=torch.float64)))
        steps = torch.linspace(1, end, num_steps, dtype=torch.float64)
        return torch.cat([steps, torch.zeros(1, dtype=torch.float64)])

    def sigmas(self, grid: Sigmas, image_tokens: int | None = None, num_steps: int | None = None) -> Sigmas:
        return stretched(shift_by(self.shift, grid), self.terminal).float()


@dataclass(frozen=True)
class DynamicShift:
    """sigma = e^mu / (e^mu + 1 / u - 1), mu linear in the number of image tokens, u from 1 to 1 / T (FLUX, Qwen-Image)."""

    base_shift: Exponent = 0.5
    """mu at base_tokens."""
    max_shift: Exponent = 1.15
    """mu at max_tokens."""
    base_tokens: Count = 256
    """Image tokens at which mu is base_shift."""
    max_tokens: Count = 4096
    """Image tokens at which mu is max_shift."""
    terminal: BelowOne | None = None
    """Stretch the sigmas so that the last one before 0 is this (Qwen-Image: 0.02)."""
    kind: Literal["DynamicShift"] = "DynamicShift"
    """Names the spacing in a config."""

    __post_init__ = check_ranges

    def grid(self, num_steps: int) -> Sigmas:
        steps = torch.linspace(1, 1 / num_steps, num_steps, dtype=torch.float64)
        return torch.cat([steps, torch.zeros(1, dtype=torch.float64)])

    def sigmas(self, grid: Sigmas, image_tokens: int | None = None, num_steps: int | None = None) -> Sigmas:
        """Raises ValueError without the number of image tokens."""
        sigmas = shift_by(math.exp(self.mu(given(image_tokens, self.kind))), grid)
        return stretched(sigmas, self.terminal).float()

    def mu(self, image_tokens: int) -> float:
        slope = (self.max_shift - self.base_shift) / (self.max_tokens - self.base_tokens)
        return self.base_shift + slope * (image_tokens - self.base_tokens)


@dataclass(frozen=True)
class LinearShift:
    """sigma = s u / (1 + (s - 1) u) on an even grid u from 1 to 0 (DanceGRPO, MixGRPO, BranchGRPO, Pref-GRPO)."""

    shift: Positive = 3.0
    """s: the larger, the more steps lie near the noise; 1 = even."""
    listed: Literal["float32", "float64"] | None = None
    """Round as diffusers' pipelines, which list u from 1 to 1 / n in this dtype and put 0 behind; none: one list from 1 to 0."""
    terminal: BelowOne | None = None
    """Stretch the sigmas so that the last one before 0 is this."""
    kind: Literal["LinearShift"] = "LinearShift"
    """Names the spacing in a config."""

    __post_init__ = check_ranges

    def grid(self, num_steps: int) -> Sigmas:
        if self.listed is None:
            return torch.linspace(1, 0, num_steps + 1).double()
        steps = torch.linspace(1, 1 / num_steps, num_steps, dtype=getattr(torch, self.listed))
        return torch.cat([steps, torch.zeros(1)]).double()

    def sigmas(self, grid: Sigmas, image_tokens: int | None = None, num_steps: int | None = None) -> Sigmas:
        return stretched(shift_by(self.shift, grid.float()), self.terminal)


@dataclass(frozen=True)
class EmpiricalShift:
    """sigma = e^mu u / (1 + (e^mu - 1) u), mu by image tokens and number of steps, u from 1 to 1 / T (FLUX.2's pipelines).

    mu is linear in the steps between two lines in the tokens, those of 10 and of 200 steps; above 4300 tokens it is the
    second line at any number of steps.
    """

    slope: Number = 8.73809524e-05
    """Of mu over the image tokens, at 10 steps."""
    offset: Number = 1.89833333
    """mu without tokens, at 10 steps."""
    long_slope: Number = 0.00016927
    """Of mu over the image tokens, at 200 steps."""
    long_offset: Number = 0.45666666
    """mu without tokens, at 200 steps."""
    kind: Literal["EmpiricalShift"] = "EmpiricalShift"
    """Names the spacing in a config."""

    __post_init__ = check_ranges

    def grid(self, num_steps: int) -> Sigmas:
        return DynamicShift().grid(num_steps)

    def sigmas(self, grid: Sigmas, image_tokens: int | None = None, num_steps: int | None = None) -> Sigmas:
        """Raises ValueError without the number of image tokens."""
        return shift_by(math.exp(self.mu(given(image_tokens, self.kind), num_steps or len(grid) - 1)), grid).float()

    def mu(self, image_tokens: int, num_steps: int) -> float:
        most = self.long_slope * image_tokens + self.long_offset
        if image_tokens > 4300:
            return most
        least = self.slope * image_tokens + self.offset
        return most + (most - least) / 190 * (num_steps - 200)


@dataclass(frozen=True)
class FlowSigmas:
    """sigma = s u / (1 + (s - 1) u), u even from `start`, falling by 1 - 1 / T in all (Wan, Sana).

    The table of diffusers' multistep schedulers with `use_flow_sigmas`; the last step goes to 0 all the same.
    """

    shift: Positive = 3.0
    """s: the larger, the more steps lie near the noise; 1 = even."""
    start: PositiveShare = 1.0
    """The first u: 1 with UniPC (Wan), 0.999 with DPM-Solver (Sana)."""
    train_steps: Count = 1000
    """T, the entries of the scheduler's table of times."""
    kind: Literal["FlowSigmas"] = "FlowSigmas"
    """Names the spacing in a config."""

    __post_init__ = check_ranges

    def grid(self, num_steps: int) -> Sigmas:
        end = self.start - 1 + 1 / self.train_steps
        steps = torch.linspace(self.start, end, num_steps + 1, dtype=torch.float64)[:-1]
        return torch.cat([steps, torch.zeros(1, dtype=torch.float64)])

    def sigmas(self, grid: Sigmas, image_tokens: int | None = None, num_steps: int | None = None) -> Sigmas:
        return shift_by(self.shift, grid).float()


@dataclass(frozen=True)
class LogSnr:
    """sigma = 1 / (1 + e^l), l = most - (most - least) u, u even from 1 to 0; the first sigma is 1, the last 0 (Stable Audio 3).

    Half the steps lie above sigma 0.9: windows of noise belong among the last steps.
    """

    least: Exponent = -6.2
    """The logarithm of signal to noise at u = 1."""
    most: Exponent = 2.0
    """The same at u = 0."""
    kind: Literal["LogSnr"] = "LogSnr"
    """Names the spacing in a config."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.least >= self.most:
            raise ValueError(f"LogSnr.least is {self.least:g}: it must be below most ({self.most:g})")

    def grid(self, num_steps: int) -> Sigmas:
        return torch.linspace(1, 0, num_steps + 1).double()

    def sigmas(self, grid: Sigmas, image_tokens: int | None = None, num_steps: int | None = None) -> Sigmas:
        u = grid.float()
        found = torch.sigmoid(-(self.most - u * (self.most - self.least)))
        return torch.where(u == 1, 1.0, torch.where(u == 0, 0.0, found))


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


Spacing = StaticShift | DynamicShift | LinearShift | EmpiricalShift | FlowSigmas | LogSnr | DiffusionTable
"""Parts with grid(num_steps) and sigmas(grid, image_tokens, num_steps); the last are the steps that the grid was made for."""


def timesteps(sigmas: Sigmas) -> Float[Tensor, " t"]:
    """1000 sigma of every step, which diffusers' transformers are fed."""
    return sigmas[:-1] * 1000


def truncated_timesteps(sigmas: Sigmas) -> Int[Tensor, " t"]:
    """int(1000 sigma) in float32: what DanceGRPO's relatives feed the network (the step itself uses the exact sigma)."""
    return timesteps(sigmas.float()).to(torch.long)


SPACES = ("num_train_timesteps", "use_flow_sigmas", "use_dynamic_shifting", "time_shift_type")
BY_SHIFT = ("shift", "base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len", "shift_terminal")
DRAWS = (
    *("solver_order", "solver_type", "solver_p", "algorithm_type", "predict_x0", "lower_order_final", "euler_at_final"),
    *("disable_corrector", "prediction_type", "variance_type", "final_sigmas_type"),
)
"""How a multistep scheduler takes its steps, which mmrl takes by the schedule's own dynamics."""
OF_NOISE = (
    *("beta_start", "beta_end", "beta_schedule", "trained_betas", "lambda_min_clipped", "timestep_spacing", "steps_offset"),
    *("dynamic_thresholding_ratio", "sample_max_value", "sigma_min", "sigma_max"),
)
"""What flow-matching sigmas are not made from."""
KNOWN = {*SPACES, *BY_SHIFT, *DRAWS, *OF_NOISE, "flow_shift"}
CLASSES = ("FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler", "DPMSolverMultistepScheduler")


def not_reproduced(scheduler_config: Mapping[str, Any]) -> list[str]:
    """The values of a scheduler's config that change how it draws and are not honoured here, as `name = value`."""
    known, has_flow_sigmas = KNOWN, scheduler_config.get("use_flow_sigmas")
    if has_flow_sigmas:
        known = known - {"use_dynamic_shifting", "shift_terminal"}
    found = [name for name, value in scheduler_config.items() if value and name not in known and not name.startswith("_")]
    is_dynamic = scheduler_config.get("use_dynamic_shifting")
    if is_dynamic and not has_flow_sigmas and scheduler_config.get("time_shift_type", "exponential") != "exponential":
        found.append("time_shift_type")
    if scheduler_config.get("_class_name", CLASSES[0]) not in CLASSES:
        found.append("_class_name")
    return [f"{name} = {scheduler_config[name]}" for name in found]


def spacing_of(scheduler_config: Mapping[str, Any]) -> Spacing:
    """The spacing of a diffusers flow-matching scheduler, from its config.

    Raises:
        ValueError: a scheduler whose spacing is unknown, a key that is not known to be without effect, or numbers that are none.
    """
    used = not_reproduced(scheduler_config)
    shift = "flow_shift" if scheduler_config.get("use_flow_sigmas") else "shift"
    if used or shift not in scheduler_config:
        raise ValueError(
            f"the model's scheduler has {', '.join(used) or 'no shift'}, and its sigmas cannot be reproduced here: "
            "set schedule.spacing to StaticShift, DynamicShift or LinearShift"
        )
    train_steps = int(number_of(scheduler_config, "num_train_timesteps", 1000.0))
    if scheduler_config.get("use_flow_sigmas"):
        is_unipc = "UniPC" in str(scheduler_config.get("_class_name"))
        return FlowSigmas(number_of(scheduler_config, shift), 1.0 if is_unipc else 1 - 1 / train_steps, train_steps)
    terminal = number_of(scheduler_config, "shift_terminal") if scheduler_config.get("shift_terminal") else None
    if scheduler_config.get("use_dynamic_shifting"):
        return DynamicShift(
            base_shift=number_of(scheduler_config, "base_shift", 0.5),
            max_shift=number_of(scheduler_config, "max_shift", 1.15),
            base_tokens=int(number_of(scheduler_config, "base_image_seq_len", 256.0)),
            max_tokens=int(number_of(scheduler_config, "max_image_seq_len", 4096.0)),
            terminal=terminal,
        )
    return StaticShift(number_of(scheduler_config, shift), train_steps, terminal)


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
