"""Formulas of planners that show hints, refine, leave early and replay: what is sampled, and what it earns."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.surrogates import WithRefinements
from mmrl.algorithms.planners.flow import extremes
from mmrl.algorithms.planners.hints import next_level
from mmrl.algorithms.planners.replay import ReplaySuccess
from mmrl.algorithms.presets.hints import policy_rollout
from mmrl.algorithms.shaping.thinking import exit_rewards
from mmrl.algorithms.weights.aggregate import FixedLength, TokenMean
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS
from mmrl.core.types import Rollouts
from tests.numerics.formulas.hint_values import hint_value, hint_variance
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import make_batch, rollouts, scores, weighed


@check("sage_light_ladder")
def sage_light_ladder(vector: Vector) -> None:
    names = ["no_hint", "level_1", "level_2", "level_3"]
    for (level, accuracy), expected in zip(vector.inputs["cases"], vector.outputs["next"], strict=True):
        found = next_level(names.index(level), accuracy, low=vector.params["min"], high=vector.params["max"])
        assert names[found] == expected, (level, accuracy)


@check("hill_hinter_reward")
def hill_hinter_reward(vector: Vector) -> None:
    outputs, temperature = vector.outputs, vector.params["T"]
    for i, (answers, reliance) in enumerate(vector.inputs["cases"]):
        rewards = [float(answer) for answer in answers]
        close(hint_value(rewards, reliance, temperature), outputs["transfer_weighted_non_deg"][i], what="non_deg")
        close(hint_variance(rewards, reliance, temperature), outputs["transfer_weighted_variance"][i], what="variance")
        close(hint_value(rewards, 0.0), outputs["non_deg"][i], what="non_deg alone")
        close(hint_variance(rewards, 0.0), outputs["variance"][i], what="variance alone")


@check("s_grpo_decay")
def s_grpo_decay(vector: Vector) -> None:
    for correct, expected in zip(vector.inputs["correct"], vector.outputs["rewards"], strict=True):
        close(exit_rewards(torch.tensor(correct) > 0), expected, what=str(correct))


@check("policy_rollout")
def policy_rollout_advantages(vector: Vector) -> None:
    advantage = policy_rollout.advantage
    assert isinstance(advantage, GroupNorm) and advantage.eps == vector.params["eps"]
    rewards = tensor([*vector.inputs["plain"], *vector.inputs["with_policy"]])[:, None]
    found = advantage(scores(rewards), rollouts(torch.ones(len(rewards), 1), [0] * len(rewards)))
    close(found.values[:, 0], vector.outputs["advantages"], what="advantages")


@check("gui_replay_rule")
def gui_replay_rule(vector: Vector) -> None:
    params = vector.params
    part = ReplaySuccess(
        per_prompt=params["capacity"],
        success_above=params["positive"],
        std_below=params["std_below"],
        mean_below=params["mean_below"],
    )
    found = [part.fails([float(reward) for reward in group]) for group in vector.inputs["groups"]]
    assert found == vector.outputs["replays"]


@check("critique_grpo_loss")
def critique_grpo_loss(vector: Vector) -> None:
    inputs, cases = vector.inputs, vector.outputs["cases"]
    rows, width, clip = sum(map(any, inputs["mask"])), len(inputs["mask"][0]), vector.params["clip"]
    algorithms = {
        # the script divides by the width, and not by the number of rows
        "script": (WithRefinements(gamma=vector.params["gamma"]), FixedLength(width), rows),
        "clipped_mean": (WithRefinements(low=clip, high=clip, gamma=vector.params["gamma"], clipped=True), TokenMean(), 1),
    }
    for name, (term, aggregation, scale) in algorithms.items():
        algorithm = Algorithm(objective=((1.0, term),), aggregation=aggregation)
        live, old = tensor(inputs["new"]).requires_grad_(), {OLD_LOGPROBS: tensor(inputs["old"])}
        batch = make_batch(tensor(inputs["mask"]) > 0, tensor(inputs["advantages"]), old)
        batch = replace(batch, rollouts=with_given(batch.rollouts, inputs["refinement_rows"]))
        loss = scale * algorithm.loss(weighed(algorithm, batch), {LOGPROBS: live})[0]
        close(loss.detach(), cases[name]["loss"], 1e-6, f"{name} loss")
        close(torch.autograd.grad(loss, live)[0], cases[name]["grad"], 1e-6, f"{name} gradient")


def with_given(rows: Rollouts, given: Sequence[int]) -> Rollouts:
    """The rollouts of one group, in which some are given ones."""
    (group,) = rows.groups
    samples = tuple(replace(one, role="injected") if i in given else one for i, one in enumerate(group.samples))
    return replace(rows, groups=(replace(group, samples=samples),))


@check("sol_rl.select.a")
@check("sol_rl.select.ties")
def sol_rl_select(vector: Vector) -> None:
    rewards, size = vector.inputs["rewards"], vector.params["group_size"]
    groups = [rewards[start : start + size] for start in range(0, len(rewards), size)]
    found = [extremes(group, vector.params["top"], vector.params["bottom"]) for group in groups]
    assert [i * size + place for i, own in enumerate(found) for place in own] == vector.outputs["rows"]
