"""Schedules: training step -> RolloutPlan, as pure functions, so every rank and every resumed run has the same plan."""

from mmrl.flow.schedules.tree import Branching, Tree, even_splits
from mmrl.flow.schedules.window import Forward, Full, OneStep, OwnPath, RandomSubset, Surrogate, Window, random_start

__all__ = [
    "Branching",
    "Forward",
    "Full",
    "OneStep",
    "OwnPath",
    "RandomSubset",
    "Surrogate",
    "Tree",
    "Window",
    "even_splits",
    "random_start",
]
