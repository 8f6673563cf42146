"""Pairs and teaching of pictures against the scripts of diffusers, flow_grpo, Flow-Factory and UniRL, with gradients."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.advantages.flow import BestAgainstWorst, BestWorst
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.forward import DenoisingPreference, Matching
from mmrl.algorithms.weights.aggregate import SequenceMean
from mmrl.core.readings import SIGMA, TARGET_VELOCITY, VELOCITY
from mmrl.core.types import Reading
from mmrl.flow.path import add_noise
from mmrl.flow.sigmas import DiffusionTable
from tests.numerics.check_flow import checks, each
from tests.numerics.check_flow_parts import credited, ids_of
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import make_batch, rollouts, scores, weighed

LIVE = VELOCITY._replace(guidance=1.0)
REF = LIVE._replace(model="ref")


def loss_of_pairs(
    term: DenoisingPreference, readings: Mapping[Reading, Tensor], sign: list[float], ids: list[int]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The mean over pairs, and what is logged; rows hold one noised copy each."""
    algorithm = Algorithm(((1.0, term),), aggregation=SequenceMean())
    frozen = {reading: x[:, None] for reading, x in readings.items() if reading != LIVE}
    batch = weighed(algorithm, make_batch(torch.ones(len(sign), 1), torch.tensor(sign, dtype=torch.float64), frozen, ids))
    return algorithm.loss(batch, {LIVE: readings[LIVE][:, None]})


@check("dpo_diffusion")
def dpo_diffusion(vector: Vector) -> None:
    """Errors of predicted noise, from the velocities of the same model as a flow."""
    inputs, p = vector.inputs, vector.params
    table = DiffusionTable(p["beta_start"], p["beta_end"], p["beta_schedule"]).table.double()
    sigma = table[torch.tensor(inputs["timesteps"])].repeat(2)
    noise, weights = tensor(inputs["noise"]).repeat(2, 1, 1, 1), tensor(inputs["weights"]).requires_grad_()
    noisy = add_noise(tensor(inputs["latents"]), noise, sigma) / ((1 - sigma) ** 2 + sigma**2).sqrt()[:, None, None, None]
    close(noisy, vector.outputs["noisy"], 1e-5, "noisy")
    noisy = tensor(vector.outputs["noisy"])

    def velocity(of: Tensor) -> Tensor:
        predicted = torch.einsum("oc,nchw->nohw", of, noisy)
        return (predicted - noise) / (1 - sigma)[:, None, None, None]

    readings = {LIVE: velocity(weights), REF: velocity(tensor(inputs["ref_weights"])), SIGMA: sigma}
    readings |= {TARGET_VELOCITY: torch.zeros_like(noisy)}
    for case in vector.outputs["cases"]:
        loss, metrics = loss_of_pairs(DenoisingPreference(case["beta"], "noise"), readings, [1, 1, -1, -1], [0, 1, 0, 1])
        close(loss, case["loss"], 1e-6, "loss")
        (gradient,) = torch.autograd.grad(loss, weights, retain_graph=True)
        close(gradient, case["grad"], 1e-6, "gradient")
        close(metrics["policy/preferred"], case["implicit_acc"], 1e-6, "accuracy")
        close(metrics["policy/margin"], tensor(case["inside"]).mean(), 1e-6, "inside")


@check("dpo_flow")
def dpo_flow(vector: Vector) -> None:
    inputs = vector.inputs
    data, noise = tensor(inputs["data"]), tensor(inputs["noise"]).repeat(2, 1, 1, 1)
    noisy = add_noise(data, noise, tensor(inputs["sigma"]).repeat(2))
    close(noisy, vector.outputs["noisy"], 1e-9, "noisy")
    weights = tensor(inputs["weights"]).requires_grad_()
    live, ref = (torch.einsum("oc,nchw->nohw", of, noisy) for of in (weights, tensor(inputs["ref_weights"])))
    readings = {LIVE: live, REF: ref, TARGET_VELOCITY: noise - data}
    for case in vector.outputs["cases"]:
        term = DenoisingPreference(case["beta"])
        loss, metrics = loss_of_pairs(term, readings, [1, 1, -1, -1], [0, 1, 0, 1])
        close(loss, case["loss"], 1e-9, "loss")
        close(torch.autograd.grad(loss, weights, retain_graph=True)[0], case["grad"], 1e-9, "gradient")
        close(metrics["policy/margin"], tensor(case["inside"]).mean(), 1e-9, "inside")
        both, _ = loss_of_pairs(replace(term, sft=0.5), readings, [1, 1, -1, -1], [0, 1, 0, 1])
        chosen = ((live - noise + data)[:2] ** 2).mean()
        close(both, loss + 0.5 * chosen, 1e-9, "with the error of the chosen")


@checks(*each("flow_dpo.loss.", "beta2000", "beta100", "beta5"))
def flow_dpo(vector: Vector) -> None:
    """Winners behind losers, with a row between that belongs to no pair."""
    inputs, out = vector.inputs, vector.outputs
    winner, loser, noise = (tensor(inputs[name]) for name in ("winner", "loser", "noise"))
    leaves = [tensor(inputs[name]).requires_grad_() for name in ("v_loser", "v_winner")]
    n = len(noise)
    readings = {
        LIVE: torch.cat([leaves[0], leaves[0].detach() + 1, leaves[1]]),
        REF: torch.cat([tensor(inputs[name]) for name in ("ref_loser", "ref_loser", "ref_winner")]),
        TARGET_VELOCITY: torch.cat([noise - loser, noise - loser, noise - winner]),
    }
    sign, ids = [-1.0] * n + [0.0] * n + [1.0] * n, [*range(n)] * 3
    loss, _ = loss_of_pairs(DenoisingPreference(vector.params["beta"]), readings, sign, ids)
    loss = loss * 3 / 2
    close(loss, out["loss"], vector.tolerance, "loss")
    for found, name in zip(torch.autograd.grad(loss, leaves), ("grad_v_loser", "grad_v_winner"), strict=True):
        close(found, out[name], vector.tolerance, name)


@check("dpo_denoising")
def dpo_denoising(vector: Vector) -> None:
    """Errors are given: one place of a latent holds their root."""
    w, l_, ref_w, ref_l = (tensor(vector.inputs[name]) for name in ("model_w", "model_l", "ref_w", "ref_l"))
    readings = {LIVE: torch.cat([w, l_]).sqrt()[:, None], REF: torch.cat([ref_w, ref_l]).sqrt()[:, None]}
    readings |= {TARGET_VELOCITY: torch.zeros_like(readings[LIVE])}
    n = len(w)
    for case in vector.outputs["cases"]:
        sign, ids = [1.0] * n + [-1.0] * n, [*range(n)] * 2
        loss, metrics = loss_of_pairs(DenoisingPreference(case["beta"]), readings, sign, ids)
        close(loss, tensor(case["loss"]).mean(), what=f"loss {case['beta']}")
        close(metrics["policy/margin"], tensor(case["inside"]).mean(), what=f"inside {case['beta']}")


def pairs_of(rewards: list[float], ids: list[int]) -> list[tuple[int, int]]:
    """The best and the worst row of every group that has a pair."""
    credit = BestAgainstWorst()(scores(tensor(rewards)[:, None]), rollouts(torch.ones(len(ids), 1), ids))
    values = torch.where(credit.keep, credit.values[:, 0], 0.0).tolist()
    found: dict[int, dict[float, int]] = {}
    for row, (group, value) in enumerate(zip(ids, values, strict=True)):
        if value:
            found.setdefault(group, {})[value] = row
    return [(pair[1.0], pair[-1.0]) for pair in found.values()]


@checks(*each("flow_dpo.pairs.", "a", "ties"))
def flow_dpo_pairs(vector: Vector) -> None:
    """A group of equal rewards has no pair, where the code compares its first sample with itself."""
    wanted: list[Any] = [tuple(pair) for pair in vector.outputs["pairs"] if pair[0] != pair[1]]
    assert pairs_of(vector.inputs["advantages"], vector.inputs["groups"]) == wanted


@checks(*each("labels.", "a", "b"))
def labels(vector: Vector) -> None:
    """Those that are built: of rejection fine-tuning and of pairs."""
    rewards, ids = tensor(vector.inputs["rewards"])[:, None], ids_of(vector.inputs["prompts"])
    close(credited(BestWorst(worst=False), rewards, ids), vector.outputs["sft"], vector.tolerance, "sft")
    close(credited(BestWorst(), rewards, ids), vector.outputs["dpo"], vector.tolerance, "dpo")


@checks(*each("flow_sft.loss.", "a", "b"))
def flow_sft(vector: Vector) -> None:
    inputs, out = vector.inputs, vector.outputs
    v, target = tensor(inputs["v"]).requires_grad_(), tensor(inputs["noise"]) - tensor(inputs["data"])
    algorithm = Algorithm(((1.0, Matching()),), aggregation=SequenceMean())
    batch = make_batch(torch.ones(len(v), 1), tensor(inputs["labels"]), {TARGET_VELOCITY: target[:, None]})
    loss, metrics = algorithm.loss(weighed(algorithm, batch), {LIVE: v[:, None]})
    close(loss, out["loss"], vector.tolerance, "loss")
    close(metrics["policy/matching_error"], tensor(out["error"]).mean(), vector.tolerance, "error")
    close(torch.autograd.grad(loss, v)[0], out["grad_v"], vector.tolerance, "gradient")
