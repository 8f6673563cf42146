"""Advantages against TRL, verl, GDPO's and MC-GRPO's code, and those of single papers against theirs, or their formula by hand.

With them stand parts that remember, and clips and penalties that differ by action.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mmrl.algorithms.advantages.answers import Consistency, Polychromic, SemanticEntropy
from mmrl.algorithms.advantages.decoupled import Decoupled
from mmrl.algorithms.advantages.entropy import MostSpread, NearEntropy, evenly, largest, most_spread
from mmrl.algorithms.advantages.group import (
    Bold,
    GroupNorm,
    Halves,
    LeaveOneOut,
    LengthBaseline,
    MedianNorm,
    NonZeroScaled,
    PassK,
    ReinforcePlusPlus,
    Strata,
    TokenAverage,
    VirtualBest,
)
from mmrl.algorithms.advantages.remembered import SingleStream
from mmrl.algorithms.advantages.spread import Asymmetric, BetaNorm, Bundles, WhereLengthPays
from mmrl.algorithms.notes import memory_share
from mmrl.algorithms.objectives.penalties import BetweenReferences, LooserWhereGood
from mmrl.algorithms.objectives.surrogates import EntropyClip, MovingClip
from mmrl.algorithms.planners.extra_samples import Heat
from mmrl.algorithms.presets.thinking import d3s
from mmrl.algorithms.shaping.thinking import OverlongPenalty
from mmrl.algorithms.statistics import uncertainty
from mmrl.algorithms.turns import cutpoints, segment_advantages
from mmrl.core.readings import LOGPROBS, OLD_ENTROPY, OLD_LOGPROBS, START_LOGPROBS
from mmrl.core.types import Prompt, Rollouts
from tests.numerics.registry import check, close, tensor
from tests.numerics.rows import alone, blocks, column, credited, ids_of, up_to
from tests.support.rows import make_batch, rollouts, scores, with_fields

FLOAT32 = 1e-6
"""GDPO, MC-GRPO, verl_gdpo and codes of single papers run in float32; TRL takes n / (n - 1) of its deviation in float32."""


@check("trl_group_advantages")
def trl_group_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    rewards, eps = tensor(inputs["rewards_per_func"]), params["eps"]
    ids = blocks(len(rewards), params["num_generations"])
    for case in outputs["cases"]:
        decoupled = case["multi_objective_aggregation"] == "normalize_then_sum"
        advantage = Decoupled(eps=eps, whiten_eps=eps) if decoupled else GroupNorm(scale=case["scale_rewards"], eps=eps)
        found = advantage(scores(rewards, case["reward_weights"]), alone(ids))
        what = str({name: x for name, x in case.items() if name not in ("advantages", "is_std_zero")})
        close(found.values[:, 0], case["advantages"], FLOAT32, what)
        assert found.keep.tolist() == (~rewards.isnan().all(1)).tolist(), f"{what}: rows nothing scored are not trained on"
        dead = torch.tensor(case["is_std_zero"])
        assert not found.values[dead].any(), f"{what}: groups without spread get nothing"


@check("gdpo_advantages_trl_fork")
def gdpo_advantages_trl_fork(inputs: Any, params: Any, outputs: Any) -> None:
    # the fork counts a reward that does not apply as 0, we leave it out: give it the zeros
    rewards, eps = tensor(inputs["rewards_per_func"]).nan_to_num(), params["eps"]
    ids = blocks(len(rewards), params["num_generations"])
    for case in outputs["cases"]:
        found = credited(Decoupled(eps=eps, whiten_eps=eps), rewards, ids, case["weights"])
        close(found, case["advantages"], FLOAT32, str(case["weights"]))


@check("verl_gdpo")
def verl_gdpo(inputs: Any, params: Any, outputs: Any) -> None:
    eps = params["eps"]
    columns = [name for name in inputs if name not in ("index", "response_mask")]
    rewards = torch.stack([tensor(inputs[name]) for name in columns], dim=1)
    rows = rollouts(tensor(inputs["response_mask"]), inputs["index"])
    advantage = Decoupled(eps=eps, singleton="reward", whiten="action", whiten_eps=1e-8, whiten_mode="variance")
    for case in outputs["cases"]:
        found = advantage(scores(rewards, case["weights"]), rows)
        close(found.values, case["advantages"], FLOAT32, str(case["weights"]))


@check("verl_advantages")
def verl_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    eps = params["eps"]
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
    for name, expected in outputs.items():
        assert name in advantages, f"nothing reproduces verl's {name}"
        found = advantages[name](column(inputs["rewards"]), rows)
        # gpg's scale is a quotient in float32 there
        close(found.values, expected, FLOAT32 if name == "gpg" else 1e-9, name)


@check("mc_grpo_advantages")
def mc_grpo_advantages(params: Any, outputs: Any) -> None:
    advantage = MedianNorm(eps=params["mad_eps"], floor=0.0)
    for case in outputs["cases"]:
        found, what = advantage(column(case["rewards"]), alone([0] * len(case["rewards"]))), str(case["rewards"])
        assert found.keep.tolist() == [not dropped for dropped in case["dropped"]], what
        close(found.values[:, 0], case["advantages_all"], FLOAT32, what)
        close(found.values[found.keep, 0], case["advantages_kept"], FLOAT32, what)


@check("trl_rewards")
def trl_rewards(inputs: Any, params: Any, outputs: Any) -> None:
    """Only `soft_overlong`, which is a shaping here; the others are rewards, checked in tests/plugins."""
    length, buffer = params["soft_overlong"]
    mask = up_to(inputs["lengths"])
    shaped = OverlongPenalty(length, buffer)(scores(torch.zeros(len(mask), 1, dtype=torch.float64)), rollouts(mask), {})
    assert shaped.names[-1] == "overlong"
    assert shaped.weights[-1] == 1
    close(shaped.values[:, -1], outputs["soft_overlong"])


@check("ngrpo_advantages")
def ngrpo_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    rewards, ids, eps = inputs["rewards"], inputs["index"], params["eps"]
    for case in outputs["cases"]:
        part = VirtualBest(best=case["max_reward"], count=case["add_max_reward_num"], eps=eps)
        close(credited(part, rewards, ids), case["advantages"], FLOAT32, str(case["add_max_reward_num"]))
    wrong = outputs["all_wrong_group_of_8"]
    close(credited(VirtualBest(eps=eps), [0.0] * 8, [0] * 8), wrong, FLOAT32, "all wrong")


@check("bnpo_advantages")
def bnpo_advantages(inputs: Any, outputs: Any) -> None:
    close(credited(BetaNorm(), inputs["rewards"], inputs["index"]), outputs["advantages"], FLOAT32)
    single = inputs["single_group"]
    close(credited(BetaNorm(), single, [0] * len(single)), outputs["single_group_advantages"], FLOAT32, "one prompt")


@check("canon_advantages")
def canon_advantages(inputs: Any, outputs: Any) -> None:
    rows = rollouts(up_to(inputs["lengths"]))
    entropy = tensor(inputs["mean_entropy"])[:, None].expand(rows.action_mask.shape)
    rows = replace(rows, recorded={OLD_ENTROPY: entropy})
    for case in outputs["cases"]:
        for by in ("length", "entropy"):
            part = Halves(by=by, cross=case["lam"], favour=case["alpha"])
            close(credited(part, inputs["rewards"], rows), case[f"{by}_split"], FLOAT32, f"{by} {case['lam']}")


@check("a_grae")
def a_grae(inputs: Any, params: Any, outputs: Any) -> None:
    rewards = tensor(inputs["rewards"])
    found = credited(Asymmetric(knee=params["alpha"]), rewards.flatten(), blocks(rewards.numel(), rewards.shape[1]))
    close(found.view(rewards.shape), outputs["advantages"], what="advantages")


def answered(given: Sequence[str | None]) -> Rollouts:
    """One group with these answers."""
    return saying(["nothing" if answer is None else f"<answer>{answer}</answer>" for answer in given])


def saying(texts: Sequence[str]) -> Rollouts:
    return with_fields(alone([0] * len(texts)), text=texts)


@check("seed_grpo")
def seed_grpo(inputs: Any, params: Any, outputs: Any) -> None:
    part, rows = SemanticEntropy(alpha=params["alpha"]), answered(inputs["answers"])
    assert len(rows) == params["G"]
    close(credited(part, inputs["rewards"], rows), outputs["advantages"])


@check("copo_weight")
def copo_weight(inputs: Any, params: Any, outputs: Any) -> None:
    part = Consistency(k=float(params["k"]), b=float(params["b"]))
    labels = [float(hash(answer) % 1009) for answer in inputs["answers"]]
    entropy, factor = part.entropy(labels)
    close(entropy, outputs["entropy_bits"], what="entropy")
    close(factor, outputs["global_factor"], what="factor")
    close(1 / (1 + torch.tensor(-part.k * (entropy - part.b)).double().exp()), outputs["w"], what="w")


@check("polychromic_advantages")
def polychromic_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    rewards = inputs["rewards"]
    part = Polychromic(n=params["n"])
    assert len(part.sets(len(rewards), 0)) == outputs["num_sets"]
    close(credited(part, rewards, answered(inputs["signature"])), outputs["advantages"])


@check("stratified_advantages")
def stratified_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    rewards, eps = inputs["rewards"], params["eps"]
    rows = saying(["<tool_call>" * int(count) for count in inputs["strata"]])
    for share, name in ((1.0, "san"), (0.0, "gn")):
        close(credited(Strata(inside=share, eps=eps), rewards, rows), outputs[name], what=name)
    for case in outputs["cases"]:
        close(credited(Strata(inside=case["alpha"], eps=eps), rewards, rows), case["advantages"], what=str(case["alpha"]))


@check("adora_weights")
def adora_weights(inputs: Any, params: Any, outputs: Any) -> None:
    rows = rollouts(up_to(inputs["lengths"]), inputs["index"])
    part = WhereLengthPays(
        less=params["lamda"], cap=params["text_max_length_threshold"], above=params["text_correct_score"], empty="text"
    )
    close(credited(part, inputs["text_rewards"], rows), outputs["text_advantages"], FLOAT32, "text")
    part = WhereLengthPays(less=params["lamda"], cap=params["vl_max_length"], above=params["vl_threshold"], empty="vision")
    groups = zip(inputs["vl_rewards"], inputs["vl_lengths"], outputs["vl_weights"], strict=True)
    for i, (rewards, length, expected) in enumerate(groups):
        found = part.weight(tensor(rewards) > part.above, tensor(length))
        close([found] * len(rewards), expected, what=f"vision {i}")


@check("riskpo_advantages")
def riskpo_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    bundled = {
        question for question, bundle in zip(inputs["question"], inputs["bundle"], strict=True) if bundle == inputs["bundle"][0]
    }
    shares: dict[str, Any] = {"sum-mean": "sum_mean", "uniform": "uniform", "std": "std"}
    for name, case in outputs["cases"].items():
        config = case["config"]
        part = Bundles(
            size=len(bundled),
            low=config["quantile_down"],
            high=config["quantile_up"],
            mix=config["w_mix"] if config["use_mixing_risk_measure"] else None,
            quantiles=config["use_q_track_mode"],
            share=shares[config["credit_assign_mode"]],
            baseline=config["natural_baseline_adv"],
        )
        part.tracked.update({params["quantile_down"]: inputs["q_track_down"], params["quantile_up"]: inputs["q_track_up"]})
        close(credited(part, inputs["rewards"], ids_of(inputs["question"])), case["advantages"], 1e-6, name)
    part = Bundles(rate=params["lr_q"])
    for sums, expected in zip(inputs["tracker_scores"], outputs["tracker_q"], strict=True):
        part.track(tensor(sums))
        close([part.tracked[level] for level in params["alphas"]], expected, what="quantiles")


@check("hapo_tokens")
def hapo_tokens(inputs: Any, params: Any, outputs: Any) -> None:
    mask = tensor(inputs["mask"]) > 0
    found = uncertainty(tensor(inputs["entropy"]), mask, params["pivot"], "code")
    close(found.size, outputs["h_hat"], 2e-6, "h")
    close([found.pivot, found.deviation, found.upper, found.lower], outputs["stats"], 2e-6, "stats")
    heat = Heat(found.pivot, found.deviation, found.upper, found.lower, params["tau"])
    factor = torch.where(mask, heat.factor(tensor(inputs["entropy"])), 1.0)
    close(factor, 1 + params["tau"] * tensor(outputs["h_hat"]).clamp(-1, 1), 2e-6, "temperature")
    part = EntropyClip(params["clip"], params["clip"], params["pivot"], params["clip_alpha"], params["adv_beta"], sign="code")
    low, high = part.bounds(found.size)
    close(low * mask, outputs["clip_low"], 2e-6, "low")
    close(high * mask, outputs["clip_high"], 2e-6, "high")
    ratio = (tensor(inputs["new"]) - tensor(inputs["old"])).exp()
    moved = part.redistribution(tensor(inputs["advantages"]), ratio, found.size)
    close(moved * mask, outputs["redistributed"], 2e-6, "redistributed")
    average = TokenAverage()(column(inputs["rewards"]), rollouts(mask, inputs["index"]))
    close(average.values, torch.where(mask, tensor(outputs["token_group_average"]), 0.0), 2e-6, "token average")


@check("dcpo_advantages")
def dcpo_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    mask = tensor(inputs["mask"]) > 0
    ratio = (tensor(inputs["old_at_T"]) - tensor(inputs["old"])).exp()
    part = NearEntropy(target=params["entropy_base"], most=params["max_alpha"])
    for case in outputs["cases"]:
        part.notes["entropy"] = case["entropy"]
        assert part.reads[1].temperature == case["temperature"]
        found = part.mixture(tensor(inputs["advantages"]), ratio, mask)
        close(torch.where(mask, found, 0.0), torch.where(mask, tensor(case["advantages"]), 0.0), 1e-6, str(case["entropy"]))


@check("remix")
def remix(inputs: Any, params: Any, outputs: Any) -> None:
    ratio = tensor(inputs["ratio_to_behaviour"])
    mask = torch.ones(1, len(ratio))
    for case in outputs["loss"]:
        centre = torch.full_like(ratio, case["centre"])
        readings = {LOGPROBS: ratio.log()[None], OLD_LOGPROBS: torch.zeros_like(ratio)[None], START_LOGPROBS: centre.log()[None]}
        part = MovingClip(params["eps"], params["eps"])
        values, _ = part(readings, make_batch(mask, tensor([case["A"]]), {}))
        close(values[0], case["loss"], what=str(case))
    close([BetweenReferences(switch=0).weight(step) for step in inputs["step"]], outputs["lam"], what="weights")


@check("hart_ap_grpo")
def hart_ap_grpo(inputs: Any, params: Any, outputs: Any) -> None:
    rewards = tensor(inputs["rewards"])
    lead = rewards - rewards.mean()
    close(params["beta"] * LooserWhereGood(gain=params["k"]).weight(lead), outputs["mu2"], what="KL")
    found, plain = (credited(Bold(gain=gain), rewards, [0] * len(rewards)) for gain in (params["k"], 0.0))
    close(found, outputs["weighted_advantages"], what="advantages")
    close(found / plain, outputs["mu1"], what="weights")


@check("spo_tracker")
def spo_tracker(params: Any, outputs: Any) -> None:
    part = SingleStream(start=params["v0"], samples=float(params["N0"]), half=params["D_half"], whiten=False)
    one = alone([0])
    assert one.groups[0].prompt == Prompt("0")
    for i, visit in enumerate(outputs["trace"]):
        part.adapt(i, {"policy/kl_old": visit["kl_since_visit"]})
        close(memory_share(visit["kl_since_visit"], params["D_half"]), visit["rho"], what="rho")
        close(credited(part, [visit["reward"]], one), [visit["advantage"]], what=f"advantage {i}")
        known = part.visits.prompts["0"]
        close([known.right, known.wrong], [visit["alpha"], visit["beta"]], what=f"evidence {i}")
        close(known.weight(params["eps"]), visit["prompt_weight"], what=f"weight {i}")


@check("spo_segment_chain")
def spo_segment_chain(inputs: Any, params: Any, outputs: Any) -> None:
    probabilities, sure = inputs["probabilities"], params["prob_threshold"]
    for case in outputs["cases"]:
        assert cutpoints(probabilities, case["interval"], sure) == case["cutpoints"]
        found = segment_advantages(probabilities, case["cutpoints"], case["values"], inputs["score"], sure)
        close(found, case["advantages"], what=f"interval {case['interval']}")


@check("d3s.selection")
def d3s_selection(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    assert isinstance(d3s.advantage, MostSpread)
    advantages = tensor(inputs["advantages"])
    rows = most_spread(advantages, params["rows"])
    assert rows == outputs["rows"]
    entropy = tensor(inputs["entropy"])
    mask = up_to(inputs["lengths"], entropy.shape[1])
    found = largest(advantages[rows].abs()[:, None] * entropy, mask, params["share_of_tokens"])
    assert found.tolist() == outputs["tokens"]
    first_rows, last_rows, first_share, last_share, over = params["schedule"]
    sizes = [[evenly(k, first_rows, last_rows, over), evenly(k, first_share, last_share, over)] for k in range(over)]
    close(sizes, outputs["schedule"], tolerance, "schedule")
