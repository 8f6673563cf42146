"""Formulas of turns and of preference pairs, which nothing runs yet, against the code or formula of their papers."""

import torch
from torch import Tensor

from mmrl.algorithms.objectives.preference import Preference
from tests.numerics.formulas.pairs import denoising_preference_loss, summed_logprobs
from tests.numerics.formulas.turns import (
    Turns,
    branches,
    history_advantages,
    kept_length,
    normalized_entropy,
    returns_of,
    step_group_advantages,
    turn_index,
    turn_mean_shares,
)
from tests.numerics.registry import Vector, check, close, tensor


def numbered(names: list[str]) -> Tensor:
    """Names as numbers, the same for the same name."""
    return torch.tensor([sorted(set(names)).index(name) for name in names])


@check("gigpo_advantages")
def gigpo_advantages(vector: Vector) -> None:
    inputs, params = vector.inputs, vector.params
    trajectory, observation, group = (numbered(inputs[name]) for name in ("trajectory", "observation", "group"))
    returns = returns_of(tensor(inputs["step_rewards"]), trajectory, params["gamma"])
    close(returns, inputs["returns"], what="returns")
    for one in group.unique():
        rows = group == one
        turns = Turns(tensor(inputs["episode_totals"])[rows], returns[rows], trajectory[rows], observation[rows])
        for name, expected in vector.outputs["cases"].items():
            found = step_group_advantages(turns, params["step_advantage_w"], deviation=name == "mean_std_norm", eps=params["eps"])
            close(found, tensor(expected)[rows], 1e-6, name)


@check("hgpo_advantages")
def hgpo_advantages(vector: Vector) -> None:
    inputs = vector.inputs
    for case in vector.outputs["cases"]:
        found = history_advantages(
            Turns(
                tensor(inputs["episode_totals"]),
                tensor(inputs["returns"]),
                numbered(inputs["trajectory"]),
                numbered(inputs["observation"]),
            ),
            case["history"],
            case["alpha"],
            case["base_group"],
            deviation=case["mode"] == "mean_std_norm",
            eps=vector.params["eps"],
        )
        close(found, case["advantages"], 1e-6, str(case["history"]))


@check("multi_turn_layout")
def multi_turn_layout(vector: Vector) -> None:
    segments = [(who, int(length)) for who, length in vector.inputs["segments"]]
    outputs, turns = vector.outputs, turn_index(segments)
    assert turns.tolist() == outputs["turn_index"]
    assert (turns >= 0).long().tolist() == outputs["action_mask"]
    assert int((turns >= 0).sum()) == outputs["trainable"]
    assert [kept_length(segments, budget) for budget in vector.inputs["budgets"]] == outputs["kept_length"]
    close(turn_mean_shares(turns), outputs["turn_mean_share"], 1e-6, "turn mean")
    close(1 / int((turns >= 0).sum()), outputs["sequence_mean_share"], what="sequence mean")


@check("arpo_branching")
def arpo_branching(vector: Vector) -> None:
    inputs, params, outputs = vector.inputs, vector.params, vector.outputs
    close(normalized_entropy(inputs["top_logprobs"], params["vocab"]), outputs["normalized_entropy"], what="entropy")
    weight, chance = params["entropy_weight"], params["branch_probability"]
    found = [branches(draw, before, now, weight, chance) for draw, before, now in inputs["cases"]]
    assert found == outputs["branches"]


@check("dpo_autoregressive")
def dpo_autoregressive(vector: Vector) -> None:
    inputs, outputs = vector.inputs, vector.outputs
    labels = torch.tensor(inputs["labels"])
    mask = labels >= 0
    # the text before the picture, one token more than max_seq_length, does not count
    mask[:, : vector.params["max_seq_length"] + 1] = False
    total, mean = summed_logprobs(tensor(inputs["logits"]), labels, mask)
    close(total, outputs["sum_logps"], what="sums")
    close(mean, outputs["mean_logps"], what="means")
    sides = [tensor(inputs[name]) for name in ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")]
    margin = sides[0] - sides[1] - (sides[2] - sides[3])
    for case in outputs["cases"]:
        close(Preference(case["beta"]).of_margin(margin), case["loss"], what=f"loss {case['beta']}")
        close(case["beta"] * margin, case["margin"], what=f"margin {case['beta']}")


@check("dpo_denoising")
def dpo_denoising(vector: Vector) -> None:
    sides = [tensor(vector.inputs[name]) for name in ("model_w", "model_l", "ref_w", "ref_l")]
    for case in vector.outputs["cases"]:
        loss, inside = denoising_preference_loss(*sides, beta=case["beta"])
        close(loss, case["loss"], what=f"loss {case['beta']}")
        close(inside, case["inside"], what=f"inside {case['beta']}")
