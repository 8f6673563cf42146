"""Parts that remember, and clips and penalties that differ by action, against the code or formula of their papers."""

from dataclasses import replace
from typing import Any

import torch

from mmrl.algorithms.advantages.entropy import NearEntropy
from mmrl.algorithms.advantages.group import Bold, TokenAverage
from mmrl.algorithms.advantages.remembered import SingleStream
from mmrl.algorithms.advantages.spread import Bundles
from mmrl.algorithms.notes import memory_share
from mmrl.algorithms.objectives.penalties import BetweenReferences, LooserWhereGood
from mmrl.algorithms.objectives.surrogates import EntropyClip, MovingClip
from mmrl.algorithms.planners.extra_samples import Heat
from mmrl.algorithms.statistics import uncertainty
from mmrl.algorithms.turns import cutpoints, segment_advantages
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, START_LOGPROBS
from mmrl.core.types import Prompt
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import make_batch, rollouts, scores


@check("riskpo_advantages")
def riskpo_advantages(vector: Vector) -> None:
    inputs, params = vector.inputs, vector.params
    names = sorted(set(inputs["question"]))
    ids = [names.index(name) for name in inputs["question"]]
    bundled = {
        question for question, bundle in zip(inputs["question"], inputs["bundle"], strict=True) if bundle == inputs["bundle"][0]
    }
    shares: dict[str, Any] = {"sum-mean": "sum_mean", "uniform": "uniform", "std": "std"}
    for name, case in vector.outputs["cases"].items():
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
        found = part(scores(tensor(inputs["rewards"])[:, None]), rollouts(torch.ones(len(ids), 1), ids))
        close(found.values[:, 0], case["advantages"], 1e-6, name)
    part = Bundles(rate=params["lr_q"])
    for sums, expected in zip(inputs["tracker_scores"], vector.outputs["tracker_q"], strict=True):
        part.track(tensor(sums))
        close([part.tracked[level] for level in params["alphas"]], expected, what="quantiles")


@check("hapo_tokens")
def hapo_tokens(vector: Vector) -> None:
    inputs, params, outputs = vector.inputs, vector.params, vector.outputs
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
    average = TokenAverage()(scores(tensor(inputs["rewards"])[:, None]), rollouts(mask, inputs["index"]))
    close(average.values, torch.where(mask, tensor(outputs["token_group_average"]), 0.0), 2e-6, "token average")


@check("dcpo_advantages")
def dcpo_advantages(vector: Vector) -> None:
    inputs, params = vector.inputs, vector.params
    mask = tensor(inputs["mask"]) > 0
    ratio = (tensor(inputs["old_at_T"]) - tensor(inputs["old"])).exp()
    part = NearEntropy(target=params["entropy_base"], most=params["max_alpha"])
    for case in vector.outputs["cases"]:
        part.notes["entropy"] = case["entropy"]
        assert part.reads[1].temperature == case["temperature"]
        found = part.mixture(tensor(inputs["advantages"]), ratio, mask)
        close(torch.where(mask, found, 0.0), torch.where(mask, tensor(case["advantages"]), 0.0), 1e-6, str(case["entropy"]))


@check("remix")
def remix(vector: Vector) -> None:
    ratio = tensor(vector.inputs["ratio_to_behaviour"])
    mask = torch.ones(1, len(ratio))
    for case in vector.outputs["loss"]:
        centre = torch.full_like(ratio, case["centre"])
        readings = {LOGPROBS: ratio.log()[None], OLD_LOGPROBS: torch.zeros_like(ratio)[None], START_LOGPROBS: centre.log()[None]}
        part = MovingClip(vector.params["eps"], vector.params["eps"])
        values, _ = part(readings, make_batch(mask, tensor([case["A"]]), {}))
        close(values[0], case["loss"], what=str(case))
    close([BetweenReferences(switch=0).weight(step) for step in vector.inputs["step"]], vector.outputs["lam"], what="weights")


@check("hart_ap_grpo")
def hart_ap_grpo(vector: Vector) -> None:
    rewards, params, outputs = tensor(vector.inputs["rewards"]), vector.params, vector.outputs
    lead = rewards - rewards.mean()
    close(params["beta"] * LooserWhereGood(gain=params["k"]).weight(lead), outputs["mu2"], what="KL")
    found = Bold(gain=params["k"])(scores(rewards[:, None]), rollouts(torch.ones(len(rewards), 1)))
    close(found.values[:, 0], outputs["weighted_advantages"], what="advantages")
    plain = replace(Bold(), gain=0.0)(scores(rewards[:, None]), rollouts(torch.ones(len(rewards), 1)))
    close(found.values / plain.values, tensor(outputs["mu1"])[:, None], what="weights")


@check("spo_tracker")
def spo_tracker(vector: Vector) -> None:
    params = vector.params
    part = SingleStream(start=params["v0"], samples=float(params["N0"]), half=params["D_half"], whiten=False)
    one = rollouts(torch.ones(1, 1))
    assert one.groups[0].prompt == Prompt("0")
    for i, visit in enumerate(vector.outputs["trace"]):
        part.adapt(i, {"policy/kl_old": visit["kl_since_visit"]})
        close(memory_share(visit["kl_since_visit"], params["D_half"]), visit["rho"], what="rho")
        credit = part(scores(tensor([[visit["reward"]]])), one)
        close(credit.values[0, 0], visit["advantage"], what=f"advantage {i}")
        known = part.visits.prompts["0"]
        close([known.right, known.wrong], [visit["alpha"], visit["beta"]], what=f"evidence {i}")
        close(known.weight(params["eps"]), visit["prompt_weight"], what=f"weight {i}")


@check("spo_segment_chain")
def spo_segment_chain(vector: Vector) -> None:
    probabilities, sure = vector.inputs["probabilities"], vector.params["prob_threshold"]
    for case in vector.outputs["cases"]:
        assert cutpoints(probabilities, case["interval"], sure) == case["cutpoints"]
        found = segment_advantages(probabilities, case["cutpoints"], case["values"], vector.inputs["score"], sure)
        close(found, case["advantages"], what=f"interval {case['interval']}")
