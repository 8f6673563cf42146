"""What is sampled, and what samplers, planners, value models and dense rewards make of rewards, against their papers' code."""

from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from math import inf, nextafter
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch

from mmrl.algorithms.advantages.entropy import NoveltyBonus
from mmrl.algorithms.advantages.flow import StepRewards
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.remembered import Downsampled
from mmrl.algorithms.advantages.segments import ValueGae
from mmrl.algorithms.advantages.spread import WhereSpread
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.surrogates import WithRefinements
from mmrl.algorithms.planners.extra_samples import WhereHard, WhereUncertain
from mmrl.algorithms.planners.flow import extremes
from mmrl.algorithms.planners.hints import next_level
from mmrl.algorithms.planners.replay import ReplaySuccess
from mmrl.algorithms.presets.hints import policy_rollout
from mmrl.algorithms.samplers.learned import Bandit, Thompson, VarianceAware, min_max, nearest
from mmrl.algorithms.shaping.reference import agreement, gain
from mmrl.algorithms.shaping.thinking import exit_rewards
from mmrl.algorithms.weights.aggregate import FixedLength, TokenMean
from mmrl.algorithms.weights.importance import ConflictTokens, Kind, Rhythm, largest, steps_of
from mmrl.answers.calls import CallError
from mmrl.core.readings import LOGPROBS, MEAN_REWARD, OLD_LOGPROBS, OLD_VALUE, REWARD
from mmrl.core.types import Group, Prompt
from mmrl.data.tools.pictures import clip
from mmrl.lab.arena.mixtures import fit
from mmrl.policies.text.read.looks import backward_distance, future_influence
from tests.numerics.check_rewards import shipped
from tests.numerics.registry import check, close, tensor
from tests.numerics.rows import alone, credited
from tests.support.episodes import Said, episode
from tests.support.rows import counts_of, make_batch, rollouts, scores, weighed_loss, with_fields


def of_categories(names: Iterable[str]) -> list[Prompt]:
    return [Prompt(name, columns={"category": name}) for name in names]


@check("dump_ucb")
def dump_ucb(inputs: Any, params: Any, outputs: Any) -> None:
    names = inputs["sources"]
    part = Bandit(
        of_categories(names),
        rule="ucb",
        window=params["window"],
        temperature=params["temperature"],
        exploration=params["exploration"],
    )
    for i, moment in enumerate(outputs["trace"]):
        if "update" in moment:
            part.learn(moment["update"])
            assert [part.seen[name] for name in names] == moment["n"]
        close([part.chances()[name] for name in names], moment["weights"], what=f"moment {i}")


@check("sec_bandit")
def sec_bandit(inputs: Any, params: Any, outputs: Any) -> None:
    names = list(outputs["trace"][0]["Q"])
    part = Bandit(of_categories(names), rate=params["alpha"], temperature=params["tau"])
    for update, moment in zip(inputs["updates"], outputs["trace"], strict=True):
        part.learn(update)
        assert set(part.values) == set(moment["Q"])
        close([part.values[name] for name in moment["Q"]], list(moment["Q"].values()), what="values")
        close([part.chances()[name] for name in names], moment["p"], what="chances")


@check("vade_posterior")
def vade_posterior(inputs: Any, params: Any, outputs: Any) -> None:
    part = Thompson(
        of_categories(ascii_lowercase[: len(inputs["alpha"])]), fade_visited=params["lam_visited"], fade=params["lam_all"]
    )
    part.right, part.wrong = np.array(inputs["alpha"]), np.array(inputs["beta"])
    part.learn({int(i): [reward > 0 for reward in rewards] for i, rewards in inputs["visits"].items()})
    close(part.right, outputs["alpha"], what="right")
    close(part.wrong, outputs["beta"], what="wrong")


@check("mmr1_vas")
def mmr1_vas(inputs: Any, params: Any, outputs: Any) -> None:
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
def dars_extra_rollouts(inputs: Any, params: Any, outputs: Any) -> None:
    num_samples = params["N"]
    for weigh, name in (("even", "ET"), ("hard", "HW")):
        for (rate, deviation, most), expected in zip(inputs["cases"], outputs[name], strict=True):
            part = WhereHard(most=most, weigh="hard" if weigh == "hard" else "even", deviation=deviation)
            assert part.count(rate, num_samples) == expected, (name, rate, deviation, most)


@check("xrpo")
def xrpo(inputs: Any, params: Any, outputs: Any) -> None:
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
def reinforce_ada_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    right = tensor(inputs["kept_rewards"])
    for case in outputs["cases"]:
        part = Downsampled(scale=case["norm_by_std"], eps=params["eps"])
        count = case["pos_seen"] + case["neg_seen"]
        close(part.against(right, case["pos_seen"] / count, count), case["advantages"], 1e-6, str(case))
        everyone = torch.cat([torch.ones(case["pos_seen"]), torch.zeros(case["neg_seen"])]).double()
        assert part.choose(everyone).sum() == part.keep
        close(part.compare(everyone)[:1], case["advantages"][:1], 1e-6, "over all samples")


@check("gtpo_conflict_weights")
def gtpo_conflict_weights(inputs: Any, params: Any, outputs: Any) -> None:
    mask = torch.tensor(inputs["mask"]) > 0
    rewards = tensor(inputs["positive"])[:, None].expand(mask.shape)
    pairs = zip(inputs["ids"], mask.sum(1).tolist(), strict=True)
    rows = with_fields(rollouts(mask), token_ids=[tuple(ids[:length]) for ids, length in pairs])
    batch = make_batch(rows, tensor([0.0] * len(mask)), {REWARD: rewards, MEAN_REWARD: torch.full_like(rewards, 0.5)})
    weights = tensor(outputs["weights"])
    num_shared = (mask & (weights != 1)).sum(1, keepdim=True).clamp(min=1)  # its n_conflict is miscounted, see the card
    close(ConflictTokens(params["W"])(batch, counts_of(batch)), weights / num_shared)


@check("sage_light_ladder")
def sage_light_ladder(inputs: Any, params: Any, outputs: Any) -> None:
    names = ["no_hint", "level_1", "level_2", "level_3"]
    for (level, accuracy), expected in zip(inputs["cases"], outputs["next"], strict=True):
        found = next_level(names.index(level), accuracy, low=params["min"], high=params["max"])
        assert names[found] == expected, (level, accuracy)


@check("s_grpo_decay")
def s_grpo_decay(inputs: Any, outputs: Any) -> None:
    for correct, expected in zip(inputs["correct"], outputs["rewards"], strict=True):
        close(exit_rewards(torch.tensor(correct) > 0), expected, what=str(correct))


@check("policy_rollout")
def policy_rollout_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    advantage = policy_rollout.advantage
    assert isinstance(advantage, GroupNorm) and advantage.eps == params["eps"]
    rewards = [*inputs["plain"], *inputs["with_policy"]]
    close(credited(advantage, rewards, [0] * len(rewards)), outputs["advantages"], what="advantages")


@check("gui_replay_rule")
def gui_replay_rule(inputs: Any, params: Any, outputs: Any) -> None:
    part = ReplaySuccess(
        per_prompt=params["capacity"],
        success_above=params["positive"],
        std_below=params["std_below"],
        mean_below=params["mean_below"],
    )
    found = [part.fails([float(reward) for reward in group]) for group in inputs["groups"]]
    assert found == outputs["replays"]


@check("critique_grpo_loss")
def critique_grpo_loss(inputs: Any, params: Any, outputs: Any) -> None:
    cases = outputs["cases"]
    rows, width, clip = sum(map(any, inputs["mask"])), len(inputs["mask"][0]), params["clip"]
    algorithms = {
        # the script divides by the width, and not by the number of rows
        "script": (WithRefinements(gamma=params["gamma"]), FixedLength(width), rows),
        "clipped_mean": (WithRefinements(low=clip, high=clip, gamma=params["gamma"], clipped=True), TokenMean(), 1),
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
def sol_rl_select(inputs: Any, params: Any, outputs: Any) -> None:
    rewards, size = inputs["rewards"], params["group_size"]
    groups = [rewards[start : start + size] for start in range(0, len(rewards), size)]
    found = [extremes(group, params["top"], params["bottom"]) for group in groups]
    assert [i * size + place for i, own in enumerate(found) for place in own] == outputs["rows"]


@check("modomodo.fit")
def modomodo_fit(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    names = [f"set {i}" for i in range(len(inputs["weights"][0]))]
    surface = fit([dict(zip(names, row, strict=True)) for row in inputs["weights"]], inputs["scores"])
    close(surface(inputs["asked"]), outputs["predicted"], tolerance, "predicted")
    weights, score = surface.best(round(1 / params["grid_step"]))
    close(list(weights.values()), outputs["best_of_the_grid"], tolerance, "best")
    close(score, outputs["best_score"], tolerance, "score")


@check("tppo_egae")
def tppo_egae(inputs: Any, params: Any, outputs: Any) -> None:
    """A row that ended and one that was cut, which has no reward yet."""
    values = tensor(inputs["values"])
    for case in outputs["cases"]:
        is_cut = case["kind"] == "truncated"
        rows = replace(rollouts(torch.ones(1, len(values)), truncated=[is_cut]), recorded={OLD_VALUE: values[None]})
        total = tensor([[params["final_reward"]]])
        found = ValueGae(case["gamma"], case["lam"])(scores(total), rows).values[0]
        close(found, case["advantages"], what=str(case))
        close(found + values, case["returns"], what=str(case))


@check("pcl_selection")
def pcl_selection(inputs: Any, params: Any, outputs: Any) -> None:
    assert nearest(inputs["values"], params["tau"], params["m"]) == outputs["chosen"]


@check("vgpo_advantages")
def vgpo_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    """k s / (s + eps) of the value is added there, k of it here: with this eps they differ by as little."""
    part = StepRewards(params["gamma"], params["k"], 1.0, ddof=1, eps=params["eps"], zero_below=0.0)
    values = part.values_of(tensor(inputs["step_rewards"]))
    close(values, outputs["Q"], what="Q")
    close(part.weights_of(values), outputs["omega"], what="omega")
    close(part.compare(values), outputs["advantages"], 1e-6, "advantages")


@check("ps_grpo.rewards")
def ps_grpo_rewards(inputs: Any, outputs: Any, tolerance: float) -> None:
    for found, expected in zip(agreement(inputs["answers"]), outputs["rewards"], strict=True):
        close(found, expected, tolerance)


@check("group_similarity")
def group_similarity(inputs: Any, outputs: Any) -> None:
    for found, expected in zip(agreement(inputs["answers"]), outputs["reward"], strict=True):
        close(found, expected)


@check("deepeyes_zoom")
def deepeyes_zoom(inputs: Any, params: Any, outputs: Any) -> None:
    width, height = params["image"]
    for (x1, y1, x2, y2), expected in zip(inputs["boxes"], outputs["crops"], strict=True):
        box = float(x1), float(y1), float(x2), float(y2)
        least = nextafter(params["min_side_exclusive"], inf)
        with suppress(CallError) if expected is None else nullcontext():
            found = clip(box, width, height, least, params["max_aspect"])
            assert expected is not None and found == tuple(expected)
    for case in outputs["rewards"]:
        looked = episode(*[Said(used=True)] * int(case["crops"]), Said())
        [bonus] = shipped("tool_bonus", correct=lambda group, right=case["acc"]: [right])(Group(0, Prompt("p"), (looked,)))
        close(0.8 * case["acc"] - 0.2 * case["fmt_error"] + 1.2 * bonus, case["reward"], what=str(case))


@check("attention_rhythm")
def attention_rhythm(inputs: Any, params: Any, outputs: Any) -> None:
    distance = backward_distance(tensor(inputs["local"]), params["W"])
    influence = future_influence(tensor(inputs["global_"]), *params["H"])
    close(distance, outputs["waad"], what="distance")
    close(influence, outputs["fai"], what="influence")
    close(steps_of(distance), outputs["delta"], what="steps")
    assert largest(steps_of(distance), params["q"]).nonzero()[:, 0].tolist() == outputs["T_loc"]
    anchors = largest(influence, params["q"])
    assert anchors.nonzero()[:, 0].tolist() == outputs["T_glob"]
    rhythm = Rhythm(distance, influence)
    assert rhythm.leaders(anchors, params["k"]) == {int(t): u for t, u in outputs["dominated"].items()}
    kinds: tuple[Kind, ...] = ("local", "global", "coupled")
    for kind in kinds:
        found = rhythm.factors(kind, params["q"], params["gamma_amp"], params["k"], params["alpha"])
        close(found, outputs[f"gamma_{kind}"], what=kind)


@check("rlpr_reward")
def rlpr_reward(inputs: Any, params: Any, outputs: Any) -> None:
    share = params["format_coefficient"]
    reward = (1 - share) * gain(tensor(outputs["mean_prob"]), tensor(inputs["base_score"])) + share * tensor(inputs["format"])
    close(reward, outputs["reward"], what="reward")
    part = WhereSpread(share=params["std_filter_beta"], follow=params["ema_ratio"], hold=0, start=0)
    for deviation, mean, bound in zip(inputs["std_history"], outputs["ema_std"], outputs["std_lower_bound"], strict=True):
        close(part.learn([deviation]), bound, what="least deviation")
        close(part.notes["mean"], mean, what="mean deviation")
