"""What is sampled, and what samplers and planners learn from rewards, against the code or formula of their papers."""

from collections.abc import Iterable
from dataclasses import replace
from string import ascii_lowercase

import numpy as np
import torch

from mmrl.algorithms.advantages.entropy import NoveltyBonus
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.remembered import Downsampled
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.surrogates import WithRefinements
from mmrl.algorithms.planners.extra_samples import WhereHard, WhereUncertain
from mmrl.algorithms.planners.flow import extremes
from mmrl.algorithms.planners.hints import next_level
from mmrl.algorithms.planners.replay import ReplaySuccess
from mmrl.algorithms.presets.hints import policy_rollout
from mmrl.algorithms.samplers.learned import Bandit, Thompson, VarianceAware, min_max
from mmrl.algorithms.shaping.thinking import exit_rewards
from mmrl.algorithms.weights.aggregate import FixedLength, TokenMean
from mmrl.algorithms.weights.importance import ConflictTokens
from mmrl.core.readings import LOGPROBS, MEAN_REWARD, OLD_LOGPROBS, REWARD
from mmrl.core.types import Prompt
from mmrl.lab.arena.mixtures import fit
from tests.numerics.formulas import hint_value, hint_variance
from tests.numerics.registry import Vector, check, close, tensor
from tests.numerics.rows import alone, credited
from tests.support.rows import counts_of, make_batch, rollouts, weighed_loss, with_fields


def of_categories(names: Iterable[str]) -> list[Prompt]:
    return [Prompt(name, columns={"category": name}) for name in names]


@check("dump_ucb")
def dump_ucb(vector: Vector) -> None:
    names, params = vector.inputs["sources"], vector.params
    part = Bandit(
        of_categories(names),
        rule="ucb",
        window=params["window"],
        temperature=params["temperature"],
        exploration=params["exploration"],
    )
    for i, moment in enumerate(vector.outputs["trace"]):
        if "update" in moment:
            part.learn(moment["update"])
            assert [part.seen[name] for name in names] == moment["n"]
        close([part.chances()[name] for name in names], moment["weights"], what=f"moment {i}")


@check("sec_bandit")
def sec_bandit(vector: Vector) -> None:
    names = list(vector.outputs["trace"][0]["Q"])
    part = Bandit(of_categories(names), rate=vector.params["alpha"], temperature=vector.params["tau"])
    for update, moment in zip(vector.inputs["updates"], vector.outputs["trace"], strict=True):
        part.learn(update)
        assert set(part.values) == set(moment["Q"])
        close([part.values[name] for name in moment["Q"]], list(moment["Q"].values()), what="values")
        close([part.chances()[name] for name in names], moment["p"], what="chances")


@check("vade_posterior")
def vade_posterior(vector: Vector) -> None:
    inputs, outputs, params = vector.inputs, vector.outputs, vector.params
    part = Thompson(
        of_categories(ascii_lowercase[: len(inputs["alpha"])]), fade_visited=params["lam_visited"], fade=params["lam_all"]
    )
    part.right, part.wrong = np.array(inputs["alpha"]), np.array(inputs["beta"])
    part.learn({int(i): [reward > 0 for reward in rewards] for i, rewards in inputs["visits"].items()})
    close(part.right, outputs["alpha"], what="right")
    close(part.wrong, outputs["beta"], what="wrong")


@check("mmr1_vas")
def mmr1_vas(vector: Vector) -> None:
    inputs, outputs, params = vector.inputs, vector.outputs, vector.params
    columns = ([rate * (1 - rate) for rate in inputs["pass_rate"]], inputs["diversity"])
    scaled = [min_max(np.array(column)) for column in columns]
    weights = [sum(w * x for w, x in zip(params["metric_weights"], row, strict=True)) for row in zip(*scaled, strict=True)]
    close(weights, outputs["vps"], what="weights")
    for momentum, name in ((0.0, "momentum_0"), (0.5, "momentum_half")):
        part = VarianceAware(of_categories("abcd"), momentum=momentum)
        mixed = [part.mix(old, new) for old, new in zip(inputs["old_weights"], weights, strict=True)]
        close(mixed, outputs[name], what=name)
    part = VarianceAware(of_categories("abcd"), share=params["mixture_ratio"])
    part.draw(params["batch"])
    assert part.taken == outputs["num_uniform"] == params["batch"] - outputs["num_weighted"]


@check("dars_extra_rollouts")
def dars_extra_rollouts(vector: Vector) -> None:
    num_samples = vector.params["N"]
    for weigh, name in (("even", "ET"), ("hard", "HW")):
        for (rate, deviation, most), expected in zip(vector.inputs["cases"], vector.outputs[name], strict=True):
            part = WhereHard(most=most, weigh="hard" if weigh == "hard" else "even", deviation=deviation)
            assert part.count(rate, num_samples) == expected, (name, rate, deviation, most)


@check("xrpo")
def xrpo(vector: Vector) -> None:
    inputs, params, outputs = vector.inputs, vector.params, vector.outputs
    part = WhereUncertain(bonus=params["lambda_explore"], confidence=1 - params["alpha"])
    for expected in outputs["allocator"]:
        rewards = [float(reward) for reward in expected["rewards"]]
        narrower, bonus = part.gain(rewards, params["total"])
        close(narrower, expected["reduction"], what="reduction")
        close(bonus, expected["bonus"], what="bonus")
    logprobs = tensor(inputs["mean_logprobs"])[:, None]
    rows = replace(alone([0] * len(logprobs)), recorded={OLD_LOGPROBS: logprobs})
    bonus = NoveltyBonus(GroupNorm(eps=params["eps"]), novelty=params["lambda_novelty"], most=params["kappa_clip"])
    close(credited(bonus, inputs["rewards"], rows), outputs["advantages"], what="advantages")


@check("reinforce_ada_advantages")
def reinforce_ada_advantages(vector: Vector) -> None:
    right = tensor(vector.inputs["kept_rewards"])
    for case in vector.outputs["cases"]:
        part = Downsampled(scale=case["norm_by_std"], eps=vector.params["eps"])
        count = case["pos_seen"] + case["neg_seen"]
        close(part.against(right, case["pos_seen"] / count, count), case["advantages"], 1e-6, str(case))
        everyone = torch.cat([torch.ones(case["pos_seen"]), torch.zeros(case["neg_seen"])]).double()
        assert part.choose(everyone).sum() == part.keep
        close(part.compare(everyone)[:1], case["advantages"][:1], 1e-6, "over all samples")


@check("gtpo_conflict_weights")
def gtpo_conflict_weights(vector: Vector) -> None:
    mask = torch.tensor(vector.inputs["mask"]) > 0
    rewards = tensor(vector.inputs["positive"])[:, None].expand(mask.shape)
    pairs = zip(vector.inputs["ids"], mask.sum(1).tolist(), strict=True)
    rows = with_fields(rollouts(mask), token_ids=[tuple(ids[:length]) for ids, length in pairs])
    batch = make_batch(rows, tensor([0.0] * len(mask)), {REWARD: rewards, MEAN_REWARD: torch.full_like(rewards, 0.5)})
    weights = tensor(vector.outputs["weights"])
    num_shared = (mask & (weights != 1)).sum(1, keepdim=True).clamp(min=1)  # its n_conflict is miscounted, see the card
    close(ConflictTokens(vector.params["W"])(batch, counts_of(batch)), weights / num_shared)


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
    rewards = [*vector.inputs["plain"], *vector.inputs["with_policy"]]
    close(credited(advantage, rewards, [0] * len(rewards)), vector.outputs["advantages"], what="advantages")


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
        roles = ["injected" if i in inputs["refinement_rows"] else "policy" for i in range(len(inputs["mask"]))]
        given = with_fields(rollouts(tensor(inputs["mask"])), role=roles)
        batch = make_batch(given, tensor(inputs["advantages"]), {OLD_LOGPROBS: tensor(inputs["old"])})
        loss, gradient = weighed_loss(algorithm, batch, {LOGPROBS: tensor(inputs["new"])})
        close(scale * loss, cases[name]["loss"], 1e-6, f"{name} loss")
        close(scale * gradient, cases[name]["grad"], 1e-6, f"{name} gradient")


@check("sol_rl.select.a", "sol_rl.select.ties")
def sol_rl_select(vector: Vector) -> None:
    rewards, size = vector.inputs["rewards"], vector.params["group_size"]
    groups = [rewards[start : start + size] for start in range(0, len(rewards), size)]
    found = [extremes(group, vector.params["top"], vector.params["bottom"]) for group in groups]
    assert [i * size + place for i, own in enumerate(found) for place in own] == vector.outputs["rows"]


@check("modomodo.fit")
def modomodo_fit(vector: Vector) -> None:
    inputs, outputs = vector.inputs, vector.outputs
    names = [f"set {i}" for i in range(len(inputs["weights"][0]))]
    surface = fit([dict(zip(names, row, strict=True)) for row in inputs["weights"]], inputs["scores"])
    close(surface(inputs["asked"]), outputs["predicted"], vector.tolerance, "predicted")
    weights, score = surface.best(round(1 / vector.params["grid_step"]))
    close(list(weights.values()), outputs["best_of_the_grid"], vector.tolerance, "best")
    close(score, outputs["best_score"], vector.tolerance, "score")
