"""What samplers and planners learn from rewards, against the code or formula of their papers."""

from dataclasses import replace
from string import ascii_lowercase

import numpy as np
import torch

from mmrl.algorithms.advantages.entropy import NoveltyBonus
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.remembered import Downsampled
from mmrl.algorithms.planners.extra_samples import WhereHard, WhereUncertain
from mmrl.algorithms.samplers.learned import Bandit, Thompson, VarianceAware, min_max
from mmrl.algorithms.weights.importance import ConflictTokens
from mmrl.core.readings import MEAN_REWARD, OLD_LOGPROBS, REWARD
from mmrl.core.types import Prompt
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import counts_of, make_batch, rollouts, scores


def of_categories(names: list[str]) -> list[Prompt]:
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
        of_categories(list(ascii_lowercase[: len(inputs["alpha"])])), fade_visited=params["lam_visited"], fade=params["lam_all"]
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
        part = VarianceAware(of_categories(list("abcd")), momentum=momentum)
        mixed = [part.mix(old, new) for old, new in zip(inputs["old_weights"], weights, strict=True)]
        close(mixed, outputs[name], what=name)
    part = VarianceAware(of_categories(list("abcd")), share=params["mixture_ratio"])
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
    rows = replace(rollouts(torch.ones(len(logprobs), 1)), recorded={OLD_LOGPROBS: logprobs})
    bonus = NoveltyBonus(GroupNorm(eps=params["eps"]), novelty=params["lambda_novelty"], most=params["kappa_clip"])
    found = bonus(scores(tensor(inputs["rewards"])[:, None]), rows)
    close(found.values[:, 0], outputs["advantages"], what="advantages")


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
    batch = make_batch(mask, tensor([0.0] * len(mask)), {REWARD: rewards, MEAN_REWARD: torch.full_like(rewards, 0.5)})
    (group,) = batch.rollouts.groups
    pairs = zip(group.samples, vector.inputs["ids"], mask.sum(1).tolist(), strict=True)
    samples = tuple(replace(sample, token_ids=tuple(ids[:length])) for sample, ids, length in pairs)
    batch = replace(batch, rollouts=replace(batch.rollouts, groups=(replace(group, samples=samples),)))
    weights = tensor(vector.outputs["weights"])
    num_shared = (mask & (weights != 1)).sum(1, keepdim=True).clamp(min=1)  # its n_conflict is miscounted, see the card
    close(ConflictTokens(vector.params["W"])(batch, counts_of(batch)), weights / num_shared)
