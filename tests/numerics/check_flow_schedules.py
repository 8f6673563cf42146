"""Windows, trees, forward times and decays against the official code of flow methods."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.ema_decay import RampDecay, WarmDecay
from mmrl.flow.layout import lay_out
from mmrl.flow.schedules import RandomSubset, Tree, Window, even_splits, random_start
from mmrl.flow.sigmas import StaticShift
from mmrl.flow.times import TimeSampler
from tests.numerics.check_flow import FLOAT32, checks, each
from tests.numerics.registry import Vector, check, close
from tests.support.flow_costs import forwards


@checks(*each("mixgrpo.window.", "progressive_default", "flash_star_frozen", "no_overlap", "no_rollback", "decay", "exp_decay"))
def mixgrpo_window(vector: Vector) -> None:
    p = vector.params
    schedule = Window(
        num_steps=p["max_timesteps"] + 2,
        size=p["group_size"],
        move=p["sample_strategy"],
        dwell=p["iters_per_group"],
        stride=p["prog_overlap_step"] if p["prog_overlap"] else p["group_size"],
        decay=(p["max_iters_per_group"], p["min_iters_per_group"]),
        high=p["max_timesteps"],
        roll_back=p["roll_back"],
        overrun=True,
    )
    changes: list[list[Any]] = []
    for i in range(vector.inputs["iterations"]):
        window = schedule.window(i)
        if not changes or window != changes[-1][1]:
            changes.append([i, window])
    assert changes == vector.outputs["changes"]


@check("mixgrpo.window.random_seeded")
def mixgrpo_random_window(vector: Vector) -> None:
    size, end = vector.params["group_size"], vector.params["max_timesteps"]
    for seed, window in vector.outputs["seed_to_window"]:
        start = random_start(seed, 0, end - size)
        assert list(range(start, start + size)) == window


@check("flow_factory.sde_step_selection")
def flow_factory_subset(vector: Vector) -> None:
    candidates, count = tuple(vector.params["sde_steps"]), vector.params["num_sde_steps"]
    for seed, chosen in vector.outputs.items():
        schedule = RandomSubset(max(candidates) + 2, candidates, count, seed=0)
        assert schedule.choice(int(seed)) == chosen


@checks(*each("branchgrpo.split_points.", "explicit", "rounds4", "clamped"))
def branchgrpo_splits(vector: Vector) -> None:
    total, points = vector.params["total_steps"], vector.params["tree_split_points"]
    splits = even_splits(vector.params["tree_split_rounds"], total) if points is None else given(points)
    assert list(Tree(total, splits).splits) == vector.outputs["points"]


def given(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@check("branchgrpo.counts")
def branchgrpo_counts(vector: Vector) -> None:
    tree = Tree(vector.params["T"], tuple(vector.params["splits"]))
    found, expected = forwards(tree.at(0), tree.group_size), vector.outputs
    assert (found.transitions, found.transitions + 1, found.rollout) == tuple(
        expected[name] for name in ("edges", "nodes", "rollout_forwards")
    )
    close([found.update / found.images, found.per_image], [expected["per_leaf_edges"], expected["per_leaf_forwards"]])


def kept_by_depth(mask: Tensor) -> dict[str, int]:
    return {str(depth): int(count) for depth, count in enumerate(mask.sum(0).tolist(), 1) if count}


@checks(*each("branchgrpo.prune.", "depth_fixed", "depth_slide", "width1"))
def branchgrpo_prune(vector: Vector) -> None:
    p = vector.params
    tree = Tree(
        pruned_depths=given(p["depth_pruning"]) if "depth_pruning" in p else (),
        slide_every=p.get("depth_pruning_slide_interval", 0) if p.get("depth_pruning_slide") else 0,
        stop_depth=p.get("depth_pruning_stop_depth", 0),
        first_half_only=p.get("width_pruning_mode") == 1,
    )
    mask = lay_out(tree.at(p["current_step"]), [tree.group_size], [0]).trained
    assert int(mask.sum()) == vector.outputs["kept"]
    assert kept_by_depth(mask) == vector.outputs["kept_per_child_depth"]
    assert int(lay_out(Tree().at(0), [16], [0]).trained.sum()) == vector.outputs["of"]


@check("flow_factory.time_sampler")
def time_sampler(vector: Vector) -> None:
    spacing, count = StaticShift(3.0), vector.params["num_timesteps"]
    sigmas = spacing.sigmas(spacing.grid(10))
    halves = torch.full((count,), 0.5, dtype=torch.float64)
    for name, expected in vector.outputs.items():
        kind, _, shift = name.partition("_shift")
        reach = vector.params["discrete_range"] if kind.startswith("discrete") else vector.params["timestep_range"]
        sampler = TimeSampler(kind, count, float(shift or 1), reach)  # type: ignore[arg-type]
        close(1000 * sampler.strata(sigmas, halves), expected, FLOAT32, name)


@check("flow_grpo.ema")
def warm_decay(vector: Vector) -> None:
    decay = WarmDecay(vector.params["decay"], vector.params["update_step_interval"])
    follow(decay, vector.inputs["init"], vector.inputs["steps"], vector.outputs["ema_after_step"])


def follow(decay: Any, average: float, steps: Sequence[int], expected: Sequence[float]) -> None:
    for step_index, after in zip(steps, expected, strict=True):
        average = decay(step_index) * average + (1 - decay(step_index)) * step_index
        close(average, after)


@check("nft.old_decay")
def ramp_decay(vector: Vector) -> None:
    types = {"0": RampDecay(slope=0.0), "1": RampDecay(), "2": RampDecay(flat=75, slope=0.0075, most=0.999)}
    for name, expected in vector.outputs.items():
        close([types[name](s) for s in vector.inputs["steps"]], expected)
