"""Formulas of tools, value models, dense rewards and sets of prompts, which nothing runs yet, and of attention's rhythm."""

from contextlib import nullcontext, suppress
from dataclasses import replace
from math import inf, nextafter

import torch

from mmrl.algorithms.advantages.segments import ValueGae
from mmrl.algorithms.advantages.spread import WhereSpread
from mmrl.algorithms.shaping.reference import agreement, gain, mean_probability
from mmrl.algorithms.weights.importance import Kind, Rhythm, largest, steps_of
from mmrl.answers.calls import CallError
from mmrl.core.readings import OLD_VALUE
from mmrl.data.tools.pictures import clip
from mmrl.policies.text.read.looks import backward_distance, future_influence
from tests.numerics.formulas import code_reward, nearest_to, step_values, value_advantages, zoom_reward
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import rollouts, scores


@check("tppo_egae")
def tppo_egae(vector: Vector) -> None:
    """A row that ended and one that was cut, which has no reward yet."""
    values = tensor(vector.inputs["values"])
    for case in vector.outputs["cases"]:
        is_cut = case["kind"] == "truncated"
        rows = replace(rollouts(torch.ones(1, len(values)), truncated=[is_cut]), recorded={OLD_VALUE: values[None]})
        total = tensor([[vector.params["final_reward"]]])
        found = ValueGae(case["gamma"], case["lam"])(scores(total), rows).values[0]
        close(found, case["advantages"], what=str(case))
        close(found + values, case["returns"], what=str(case))


@check("pcl_selection")
def pcl_selection(vector: Vector) -> None:
    chosen = nearest_to(tensor(vector.inputs["values"]), vector.params["tau"], vector.params["m"])
    assert chosen == vector.outputs["chosen"]


@check("vgpo_advantages")
def vgpo_advantages(vector: Vector) -> None:
    params, outputs = vector.params, vector.outputs
    values = step_values(tensor(vector.inputs["step_rewards"]), params["gamma"])
    close(values, outputs["Q"], what="Q")
    close(values / values.mean(1, keepdim=True), outputs["omega"], what="omega")
    close(value_advantages(values, params["k"], params["eps"]), outputs["advantages"], what="advantages")


@check("ps_grpo.rewards")
def ps_grpo_rewards(vector: Vector) -> None:
    for found, expected in zip(agreement(vector.inputs["answers"]), vector.outputs["rewards"], strict=True):
        close(found, expected, vector.tolerance)


@check("group_similarity")
def group_similarity(vector: Vector) -> None:
    for found, expected in zip(agreement(vector.inputs["answers"]), vector.outputs["reward"], strict=True):
        close(found, expected)


@check("deepeyes_zoom")
def deepeyes_zoom(vector: Vector) -> None:
    params, outputs = vector.params, vector.outputs
    width, height = params["image"]
    for (x1, y1, x2, y2), expected in zip(vector.inputs["boxes"], outputs["crops"], strict=True):
        box = float(x1), float(y1), float(x2), float(y2)
        least = nextafter(params["min_side_exclusive"], inf)
        with suppress(CallError) if expected is None else nullcontext():
            found = clip(box, width, height, least, params["max_aspect"])
            assert expected is not None and found == tuple(expected)
    for case in outputs["rewards"]:
        close(zoom_reward(case["acc"], case["crops"], case["fmt_error"]), case["reward"], what=str(case))


@check("thyme_rewards")
def thyme_rewards(vector: Vector) -> None:
    params = vector.params
    for (accuracy, well_formed, consistency), total in zip(vector.inputs["cases"], vector.outputs["totals"], strict=True):
        found = code_reward(params["VQA"] * accuracy, well_formed, consistency, params["FMT"], params["CODE"])
        close(found, total)


@check("attention_rhythm")
def attention_rhythm(vector: Vector) -> None:
    params, outputs = vector.params, vector.outputs
    distance = backward_distance(tensor(vector.inputs["local"]), params["W"])
    influence = future_influence(tensor(vector.inputs["global_"]), *params["H"])
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
def rlpr_reward(vector: Vector) -> None:
    inputs, outputs, share = vector.inputs, vector.outputs, vector.params["format_coefficient"]
    means = torch.stack([mean_probability(tensor(row)) for row in inputs["reference_logprobs"]])
    close(means, outputs["mean_prob"], what="mean probability")
    reward = (1 - share) * gain(means, tensor(inputs["base_score"])) + share * tensor(inputs["format"])
    close(reward, outputs["reward"], what="reward")
    part = WhereSpread(share=vector.params["std_filter_beta"], follow=vector.params["ema_ratio"], hold=0, start=0)
    for deviation, mean, bound in zip(inputs["std_history"], outputs["ema_std"], outputs["std_lower_bound"], strict=True):
        close(part.learn([deviation]), bound, what="least deviation")
        close(part.notes["mean"], mean, what="mean deviation")
