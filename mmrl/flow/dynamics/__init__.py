"""How a denoising step moves: one frozen part per kind of step, and the word by which a config names it.

A user's schedule may put any part that implements `Stochastic` or `Solver` into its `StepPlan`s.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from mmrl.flow.dynamics.base import Before, Dynamics, Gaussian, Solver, SolverStep, Stochastic
from mmrl.flow.dynamics.solvers import DPM2, ODE, SA
from mmrl.flow.dynamics.stochastic import CPS, DDIM, DanceSDE, FlowSDE, Wan

__all__ = [
    "CPS",
    "DDIM",
    "DPM2",
    "ODE",
    "SA",
    "Before",
    "DanceSDE",
    "Dynamics",
    "FlowSDE",
    "Gaussian",
    "Solver",
    "SolverStep",
    "Stochastic",
    "Wan",
]

SolverName = Literal["ode", "dpm2", "sa"]
DynamicsName = Literal["flow_sde", "dance_sde", "wan", "cps", "ddim", "ode", "dpm2", "sa"]
DYNAMICS: Mapping[str, Callable[[float], Dynamics]] = {
    "flow_sde": FlowSDE,
    "dance_sde": DanceSDE,
    "wan": lambda level: Wan(),
    "cps": CPS,
    "ddim": DDIM,
    "ode": lambda level: ODE(),
    "dpm2": lambda level: DPM2(),
    "sa": SA,
}
"""A config's word -> the part at a level; wan, ode and dpm2 have none and ignore it."""


def dynamics_of(name: DynamicsName, level: float) -> Dynamics:
    """The part that a config names: eta of flow_sde, dance_sde, cps and ddim, tau of sa."""
    return DYNAMICS[name](level)


def name_of(dynamics: Dynamics) -> str:
    """A config's word for the part; the class name of a part of the user's own."""
    known = {type(make(0.0)): name for name, make in DYNAMICS.items()}
    return known.get(type(dynamics), type(dynamics).__name__)


def stochastic_names() -> list[str]:
    """The words of the parts that have a density, sorted."""
    return sorted(name for name, make in DYNAMICS.items() if isinstance(make(1.0), Stochastic))
