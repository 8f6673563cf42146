"""Advantages against TRL, verl, GDPO's and MC-GRPO's code."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.advantages.decoupled import Decoupled
from mmrl.algorithms.advantages.group import (
    GroupNorm,
    LeaveOneOut,
    LengthBaseline,
    MedianNorm,
    NonZeroScaled,
    PassK,
    ReinforcePlusPlus,
)
from mmrl.algorithms.shaping.thinking import OverlongPenalty
from mmrl.core.protocols import Advantage
from mmrl.core.types import Credit
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import rollouts, scores

FLOAT32 = 1e-6
"""GDPO, MC-GRPO and verl_gdpo run in float32; TRL takes n / (n - 1) of its deviation in float32."""


def blocks(num_rows: int, size: int) -> list[int]:
    """Group ids of consecutive groups."""
    return [i // size for i in range(num_rows)]


def credit(advantage: Advantage, rewards: Tensor, ids: Sequence[int], weights: Sequence[float] | None = None) -> Credit:
    """One action per row."""
    return advantage(scores(rewards, weights), rollouts(torch.ones(len(rewards), 1), ids))


@check("trl_group_advantages")
def trl_group_advantages(vector: Vector) -> None:
    rewards, eps = tensor(vector.inputs["rewards_per_func"]), vector.params["eps"]
    ids = blocks(len(rewards), vector.params["num_generations"])
    for case in vector.outputs["cases"]:
        decoupled = case["multi_objective_aggregation"] == "normalize_then_sum"
        advantage = Decoupled(eps=eps, whiten_eps=eps) if decoupled else GroupNorm(scale=case["scale_rewards"], eps=eps)
        found = credit(advantage, rewards, ids, case["reward_weights"])
        what = str({name: x for name, x in case.items() if name not in ("advantages", "is_std_zero")})
        close(found.values[:, 0], case["advantages"], FLOAT32, what)
        assert found.keep.tolist() == (~rewards.isnan().all(1)).tolist(), f"{what}: rows nothing scored are not trained on"
        dead = torch.tensor(case["is_std_zero"])
        assert not found.values[dead].any(), f"{what}: groups without spread get nothing"


@check("gdpo_advantages_trl_fork")
def gdpo_advantages_trl_fork(vector: Vector) -> None:
    # the fork counts a reward that does not apply as 0, we leave it out: give it the zeros
    rewards, eps = tensor(vector.inputs["rewards_per_func"]).nan_to_num(), vector.params["eps"]
    ids = blocks(len(rewards), vector.params["num_generations"])
    for case in vector.outputs["cases"]:
        found = credit(Decoupled(eps=eps, whiten_eps=eps), rewards, ids, case["weights"])
        close(found.values[:, 0], case["advantages"], FLOAT32, str(case["weights"]))


@check("verl_gdpo")
def verl_gdpo(vector: Vector) -> None:
    inputs, eps = vector.inputs, vector.params["eps"]
    columns = [name for name in inputs if name not in ("index", "response_mask")]
    rewards = torch.stack([tensor(inputs[name]) for name in columns], dim=1)
    rows = rollouts(tensor(inputs["response_mask"]), inputs["index"])
    advantage = Decoupled(eps=eps, singleton="reward", whiten="action", whiten_eps=1e-8, whiten_mode="variance")
    for case in vector.outputs["cases"]:
        found = advantage(scores(rewards, case["weights"]), rows)
        close(found.values, case["advantages"], FLOAT32, str(case["weights"]))


@check("verl_advantages")
def verl_advantages(vector: Vector) -> None:
    inputs, eps = vector.inputs, vector.params["eps"]
    rows = rollouts(tensor(inputs["response_mask"]), inputs["index"])
    advantages: dict[str, Any] = {
        "grpo_std": GroupNorm(eps=eps, singleton="reward"),
        "grpo_nostd": GroupNorm(scale="none", singleton="reward"),
        "rloo": LeaveOneOut(singleton="reward"),
        "opo": LengthBaseline(singleton="reward"),
        "reinforce_pp_baseline": ReinforcePlusPlus(baseline=True),
        "reinforce_pp": ReinforcePlusPlus(),
        "gpg": NonZeroScaled(singleton="reward"),
        "passk": PassK(eps=eps),
    }
    for name, expected in vector.outputs.items():
        assert name in advantages, f"nothing reproduces verl's {name}"
        found = advantages[name](scores(tensor(inputs["rewards"])[:, None]), rows)
        # gpg's scale is a quotient in float32 there
        close(found.values, expected, FLOAT32 if name == "gpg" else 1e-9, name)


@check("mc_grpo_advantages")
def mc_grpo_advantages(vector: Vector) -> None:
    advantage = MedianNorm(eps=vector.params["mad_eps"], floor=0.0)
    for case in vector.outputs["cases"]:
        rewards = tensor(case["rewards"])
        found = credit(advantage, rewards[:, None], [0] * len(rewards))
        what = str(case["rewards"])
        assert found.keep.tolist() == [not dropped for dropped in case["dropped"]], what
        close(found.values[:, 0], case["advantages_all"], FLOAT32, what)
        close(found.values[found.keep, 0], case["advantages_kept"], FLOAT32, what)


@check("trl_rewards")
def trl_rewards(vector: Vector) -> None:
    """Only `soft_overlong`, which is a shaping here; the others are rewards, checked in tests/plugins."""
    length, buffer = vector.params["soft_overlong"]
    num_actions = torch.tensor(vector.inputs["lengths"])
    mask = torch.arange(int(num_actions.max())) < num_actions[:, None]
    shaped = OverlongPenalty(length, buffer)(scores(torch.zeros(len(mask), 1, dtype=torch.float64)), rollouts(mask), {})
    assert shaped.names[-1] == "overlong"
    assert shaped.weights[-1] == 1
    close(shaped.values[:, -1], vector.outputs["soft_overlong"])
