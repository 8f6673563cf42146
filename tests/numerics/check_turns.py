"""Credit by turn, methods of agents, and pairs of completions, against the code or formula of their papers."""

import math
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.advantages.segments import HGPO, GiGPO
from mmrl.algorithms.objectives.given import Preference
from mmrl.algorithms.planners.replay import Kept, ReplaySuccess
from mmrl.algorithms.planners.segments import is_begun_again, turn_entropy
from mmrl.algorithms.presets.turns import geometry_zero, mobile_agent_v3, ui_s1
from mmrl.algorithms.shaping.thinking import WhereToolsHelp
from mmrl.algorithms.turns import Turns, TurnTable, returns_of
from mmrl.algorithms.weights.aggregate import SequenceMean, TurnMean
from mmrl.core.samples import segments_of, turn_ids
from mmrl.core.types import Batch, Counts, Rollouts, Sample, StoredRow
from tests.numerics.registry import check, close, tensor
from tests.numerics.rows import alone, blocks, column, credited
from tests.support.episodes import Said, episode, per_turn, rollouts_of, scores_of

GAMMA = 0.95
"""Of vectors that do not say theirs."""


def rewards_of(inputs: Any, gamma: float) -> list[float]:
    """The rewards of the turns; where the vector does not say them, those that its returns follow from."""
    names, returns = inputs["trajectory"], inputs["returns"]
    after = [r if name == own else 0.0 for name, own, r in zip([*names[1:], None], names, [*returns[1:], 0.0], strict=True)]
    return inputs.get("step_rewards") or [now - gamma * later for now, later in zip(returns, after, strict=True)]


def episodes(inputs: Any, gamma: float) -> Rollouts:
    """The vector's turns as groups of episodes; those of a group begin with the same observation, the prompt."""
    names, seen, rewards = inputs["trajectory"], inputs["observation"], rewards_of(inputs, gamma)
    groups: dict[str, list[Sample]] = {}
    begun: dict[str, str] = {}
    for one in dict.fromkeys(names):
        rows = [i for i, name in enumerate(names) if name == one]
        own = inputs["group"][rows[0]] if "group" in inputs else ""
        assert seen[rows[0]] == begun.setdefault(own, seen[rows[0]])
        keys = [*(seen[i] for i in rows[1:]), "end"]
        said = [Said(2, float(rewards[i]), key) for i, key in zip(rows, keys, strict=True)]
        groups.setdefault(own, []).append(episode(*said))
    return rollouts_of(*groups.values())


def check_turns(inputs: Any, gamma: float) -> None:
    """The returns and totals that the parts make of these episodes are the vector's."""
    found, seen = episodes(inputs, gamma), list[Turns]()
    made = scores_of(found)

    def look(turns: Turns) -> Tensor:
        seen.append(turns)
        return turns.returns

    TurnTable(made, found, ~made.total().isnan(), gamma).deal(look)
    close(torch.cat([one.returns for one in seen]), inputs["returns"], what="returns")
    close(torch.cat([one.totals for one in seen]), inputs["episode_totals"], what="totals")


def advantages(part: GiGPO | HGPO, inputs: Any) -> list[float]:
    """One value per turn, trajectory after trajectory."""
    found = episodes(inputs, part.gamma)
    return [value for row in per_turn(part(scores_of(found), found).values, found) for value in row]


@check("gigpo_advantages")
def gigpo_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    check_turns(inputs, params["gamma"])
    for name, expected in outputs["cases"].items():
        told = {"gamma": params["gamma"], "weight": params["step_advantage_w"], "eps": params["eps"]}
        part = GiGPO(**told, deviation=name == "mean_std_norm")
        close(advantages(part, inputs), expected, 1e-6, name)


@check("hgpo_advantages")
def hgpo_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    gamma = params.get("gamma", GAMMA)
    check_turns(inputs, gamma)
    for case in outputs["cases"]:
        part = HGPO(
            gamma=gamma,
            history=case["history"],
            power=case["alpha"],
            base=case["base_group"],
            deviation=case["mode"] == "mean_std_norm",
            eps=params["eps"],
        )
        close(advantages(part, inputs), case["advantages"], 1e-6, str(case["history"]))


@check("multi_turn_layout")
def multi_turn_layout(inputs: Any, outputs: Any) -> None:
    segments = [(who, int(length)) for who, length in inputs["segments"]]
    own = segments_of(("policy" if who == "assistant" else "environment", length) for who, length in segments[1:])
    turns = torch.tensor(turn_ids(own))
    assert turns.tolist() == outputs["turn_index"]
    found = rollouts_of([Sample(token_ids=tuple(range(own[-1].stop)), segments=own)])
    assert found.action_mask[0].long().tolist() == outputs["action_mask"]
    assert int(found.action_mask.sum()) == outputs["trainable"]
    zero = torch.zeros(found.action_mask.shape, dtype=torch.float64)
    batch, counts = Batch(found, zero, zero, zero), Counts(1, outputs["trainable"], 1)
    share = TurnMean()(batch, counts)[0]
    for k, expected in enumerate(outputs["turn_mean_share"]):
        close(share[turns == k], [expected] * int((turns == k).sum()), 1e-6, "turn mean")
    close(float(SequenceMean()(batch, counts).max()), outputs["sequence_mean_share"], 1e-6, "sequence mean")


@check("arpo_branching")
def arpo_branching(inputs: Any, params: Any, outputs: Any) -> None:
    entropies = [sum(-math.exp(x) * x for x in row) for row in inputs["top_logprobs"]]
    close(turn_entropy(entropies, params["vocab"]), outputs["normalized_entropy"], what="entropy")
    weight, chance = params["entropy_weight"], params["branch_probability"]
    found = [is_begun_again(draw, before, now, weight, chance) for draw, before, now in inputs["cases"]]
    assert found == outputs["branches"]


@check("dpo_autoregressive")
def dpo_autoregressive(inputs: Any, outputs: Any) -> None:
    sides = [tensor(inputs[name]) for name in ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")]
    margin = sides[0] - sides[1] - (sides[2] - sides[3])
    for case in outputs["cases"]:
        beta = torch.full_like(margin, case["beta"])
        found = Preference(case["beta"]).of_pairs(margin, torch.zeros_like(margin), beta)
        close(found, case["loss"], what=f"loss {case['beta']}")
        close(case["beta"] * margin, case["margin"], what=f"margin {case['beta']}")


@check("mobile_agent_v3.replay")
def mobile_agent_v3_replay(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    """The preset's own planner and advantage, with a buffer that holds what the vector says."""
    rewards, held = tensor(inputs["rewards"]), inputs["has_a_success_in_store"]
    planner, size = mobile_agent_v3.planner, rewards.shape[1]
    assert isinstance(planner, ReplaySuccess) and planner.keep_old
    planner = ReplaySuccess()
    found = alone(blocks(rewards.numel(), size))
    planner.begin([group.prompt for group in found.groups], "v")
    stored = [Kept(str(i), i, StoredRow((1,), (-0.5,)), 1, params["stored_reward"]) for i, one in enumerate(held) if one]
    planner.buffer.add(stored, 1)
    revision = planner.revise(found.groups, column(rewards.flatten()), found.group_ids, 0, 0)
    assert [(i, 0) in revision.drop_samples for i in range(len(rewards))] == outputs["replaced_row_0"]
    assert [one.group_id for one in revision.requests] == [i for i, _ in sorted(revision.drop_samples)]
    for i, _ in revision.drop_samples:
        rewards[i, 0] = params["stored_reward"]
    values = credited(mobile_agent_v3.advantage, rewards.flatten(), found)
    close(values.view_as(rewards), outputs["advantages"], tolerance, "advantages")


@check("ui_s1.advantages")
def ui_s1_advantages(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    """Its episodes' rewards are no sums of its steps', so the formulas of the part are asked, task by task."""
    part = ui_s1.advantage
    assert isinstance(part, GiGPO) and (part.gamma, part.weight) == (params["gamma"], params["weight_of_steps"])
    trajectory, number = torch.tensor(inputs["trajectory"]), torch.tensor(inputs["step"])
    wrong = [not right for right in inputs["action_right"]]
    returns = returns_of(tensor(inputs["step_reward"]), trajectory, params["gamma"], wrong)
    close(returns, outputs["returns"], tolerance, "returns")
    task, totals = torch.tensor(inputs["task"]), tensor(inputs["episode_reward"])
    for name, deviation in (("mean_norm", False), ("mean_std_norm", True)):
        told = GiGPO(gamma=part.gamma, over=part.over, alike=part.alike, cut=part.cut, deviation=deviation, eps=params["eps"])
        values = torch.zeros_like(totals)
        for one in task.unique():
            at = task == one
            values[at] = told.values(Turns(totals[at], returns[at], trajectory[at], number[at] * 0, number[at]))
        close(values, outputs[name], tolerance, name)


@check("geometry_zero.halves")
def geometry_zero_halves(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    rewards, used, size = inputs["rewards"], inputs["used_the_tool"], params["group"]
    part = geometry_zero.shaping[0]
    assert isinstance(part, WhereToolsHelp) and part.asked and part.least == params["least"]
    groups = [range(start, start + size) for start in range(0, len(rewards), size)]
    found: Rollouts = rollouts_of(*([episode(Said(1, key="x", used=used[i]), Said(1)) for i in group] for group in groups))
    asked = inputs["asked_for_the_tool"]
    assert [i % size < size // 2 for i in range(len(rewards))] == asked, "the planner asks the first half"
    shaped = part(scores_of(found, 0.0, answer=rewards), found, {})
    close(shaped.values[:, -1], outputs["bonus"], tolerance, "bonus")
