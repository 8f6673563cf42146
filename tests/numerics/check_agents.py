"""Methods of agents: successes that come back, returns that a wrong step cuts, tools that were asked for."""

import torch

from mmrl.algorithms.advantages.segments import GiGPO
from mmrl.algorithms.planners.replay import Kept, ReplaySuccess
from mmrl.algorithms.presets.turns import geometry_zero, mobile_agent_v3, ui_s1
from mmrl.algorithms.shaping.thinking import WhereToolsHelp
from mmrl.algorithms.turns import Turns, returns_of
from mmrl.core.types import Rollouts, StoredRow
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.episodes import Said, episode, rollouts_of, scores_of
from tests.support.rows import rollouts, scores


@check("mobile_agent_v3.replay")
def mobile_agent_v3_replay(vector: Vector) -> None:
    """The preset's own planner and advantage, with a buffer that holds what the vector says."""
    rewards, held = tensor(vector.inputs["rewards"]), vector.inputs["has_a_success_in_store"]
    planner, size = mobile_agent_v3.planner, rewards.shape[1]
    assert isinstance(planner, ReplaySuccess) and planner.keep_old
    planner = ReplaySuccess()
    found = rollouts(torch.ones(rewards.numel(), 1), [i for i in range(len(rewards)) for _ in range(size)])
    planner.begin([group.prompt for group in found.groups], "v")
    stored = [Kept(str(i), i, StoredRow((1,), (-0.5,)), 1, vector.params["stored_reward"]) for i, one in enumerate(held) if one]
    planner.buffer.add(stored, 1)
    revision = planner.revise(found.groups, scores(rewards.flatten()[:, None]), found.group_ids, 0, 0)
    assert [(i, 0) in revision.drop_samples for i in range(len(rewards))] == vector.outputs["replaced_row_0"]
    assert [one.group_id for one in revision.requests] == [i for i, _ in sorted(revision.drop_samples)]
    for i, _ in revision.drop_samples:
        rewards[i, 0] = vector.params["stored_reward"]
    part = mobile_agent_v3.advantage
    values = part(scores(rewards.flatten()[:, None]), found).values[:, 0].view_as(rewards)
    close(values, vector.outputs["advantages"], vector.tolerance, "advantages")


@check("ui_s1.advantages")
def ui_s1_advantages(vector: Vector) -> None:
    """Its episodes' rewards are no sums of its steps', so the formulas of the part are asked, task by task."""
    inputs, params = vector.inputs, vector.params
    part = ui_s1.advantage
    assert isinstance(part, GiGPO) and (part.gamma, part.weight) == (params["gamma"], params["weight_of_steps"])
    trajectory, number = torch.tensor(inputs["trajectory"]), torch.tensor(inputs["step"])
    wrong = [not right for right in inputs["action_right"]]
    returns = returns_of(tensor(inputs["step_reward"]), trajectory, params["gamma"], wrong)
    close(returns, vector.outputs["returns"], vector.tolerance, "returns")
    task, totals = torch.tensor(inputs["task"]), tensor(inputs["episode_reward"])
    for name, deviation in (("mean_norm", False), ("mean_std_norm", True)):
        told = GiGPO(gamma=part.gamma, over=part.over, alike=part.alike, cut=part.cut, deviation=deviation, eps=params["eps"])
        values = torch.zeros_like(totals)
        for one in task.unique():
            at = task == one
            values[at] = told.values(Turns(totals[at], returns[at], trajectory[at], number[at] * 0, number[at]))
        close(values, vector.outputs[name], vector.tolerance, name)


@check("geometry_zero.halves")
def geometry_zero_halves(vector: Vector) -> None:
    rewards, used, size = vector.inputs["rewards"], vector.inputs["used_the_tool"], vector.params["group"]
    part = geometry_zero.shaping[0]
    assert isinstance(part, WhereToolsHelp) and part.asked and part.least == vector.params["least"]
    groups = [range(start, start + size) for start in range(0, len(rewards), size)]
    found: Rollouts = rollouts_of(*([episode(Said(1, key="x", used=used[i]), Said(1)) for i in group] for group in groups))
    asked = vector.inputs["asked_for_the_tool"]
    assert [i % size < size // 2 for i in range(len(rewards))] == asked, "the planner asks the first half"
    shaped = part(scores_of(found, 0.0, answer=rewards), found, {})
    close(shaped.values[:, -1], vector.outputs["bonus"], vector.tolerance, "bonus")
