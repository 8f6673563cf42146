"""Schedules: training step -> RolloutPlan, as pure functions, so every rank and every resumed run has the same plan."""

from mmrl.flow.schedules.branching import Branching
from mmrl.flow.schedules.forward import Forward
from mmrl.flow.schedules.full import Full
from mmrl.flow.schedules.one_step import OneStep
from mmrl.flow.schedules.own_path import OwnPath
from mmrl.flow.schedules.random_subset import RandomSubset
from mmrl.flow.schedules.surrogate import Surrogate
from mmrl.flow.schedules.tree import Tree, even_splits
from mmrl.flow.schedules.window import Window, random_start

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
