"""Losses of single papers, with their gradients, against their code or their formula worked out by hand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.off_policy import KeepLikely, NegativeAwareText, OldKL, Rec, VarianceBound, dual_step
from mmrl.algorithms.objectives.regression import Discriminative, TrustHinge
from mmrl.algorithms.weights.aggregate import FixedLength, GroupSum, SequenceMean, TokenMean
from mmrl.core.protocols import Term, Weight
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import make_batch, weighed

FLOAT32 = 2e-6
"""Codes that run in float32."""


def loss_and_gradient(
    objective: Sequence[tuple[float, Term]],
    aggregation: Weight,
    inputs: Any,
    advantages: Tensor,
    ids: Sequence[int] | None = None,
    names: tuple[str, str] = ("new", "old"),
) -> tuple[Tensor, Tensor]:
    """The loss of the whole vector, and its gradient by the new log-probabilities."""
    algorithm = Algorithm(objective=tuple(objective), aggregation=aggregation)
    live = tensor(inputs[names[0]]).requires_grad_()
    batch = make_batch(tensor(inputs["mask"]) > 0, advantages, {OLD_LOGPROBS: tensor(inputs[names[1]])}, ids)
    loss, _ = algorithm.loss(weighed(algorithm, batch), {LOGPROBS: live})
    return loss.detach(), torch.autograd.grad(loss, live)[0]


def centred(rewards: Any, ids: Sequence[int]) -> Tensor:
    values, groups = tensor(rewards), torch.tensor(ids)
    return torch.stack([value - values[groups == one].mean() for value, one in zip(values, groups, strict=True)])


@check("disco_losses")
def disco_losses(vector: Vector) -> None:
    inputs, params = vector.inputs, vector.params
    advantages = centred(inputs["rewards"], inputs["index"])
    hinge = TrustHinge(beta=params["beta"], delta=params["delta"])
    for name, expected in vector.outputs.items():
        score = "ratio" if name.endswith("Lratio") else "logprob"
        tau = None if name.startswith("discob") else params["tau"][name]
        term = Discriminative(score=score, tau=tau)
        for objective, loss, grad in (
            ([(1.0, term), (1.0, hinge)], "loss", "grad"),
            ([(1.0, term)], "loss_beta0", "grad_beta0"),
        ):
            found, gradient = loss_and_gradient(objective, GroupSum(), inputs, advantages, inputs["index"])
            close(gradient, expected[grad], FLOAT32, f"{name} {grad}")
            if tau is None:
                close(found, expected[loss], FLOAT32, f"{name} {loss}")


@check("drpo_loss")
def drpo_loss(vector: Vector) -> None:
    inputs, params = vector.inputs, vector.params
    advantages = centred(inputs["rewards"], inputs["uid"])
    term = Discriminative(tau=params["tau"], short=params["Lambda"], length=len(inputs["mask"][0]))
    for case in vector.outputs["cases"]:
        hinge = TrustHinge(beta=params["beta"], delta=case["delta"], estimator="k1")
        names = ("log_prob", "old_log_prob")
        _, gradient = loss_and_gradient([(1.0, term), (1.0, hinge)], GroupSum(), inputs, advantages, inputs["uid"], names)
        close(gradient, case["grad"], 1e-5, f"delta {case['delta']}")


@check("rec_losses")
def rec_losses(vector: Vector) -> None:
    inputs, params = vector.inputs, vector.params
    kept: dict[str, Any] = {
        "none": "all",
        "two-side": "two_sides",
        "one-side": "one_side",
        "ring": "ring",
        "gspo-one-side": "rollout",
    }
    weight: dict[str, Any] = {"none": "one", "importance_sampling": "ratio", "advantage": "advantage"}
    for case in vector.outputs["cases"]:
        term = Rec(
            kept=kept[case["clip_mode"]],
            weight=weight[case["weight"]],
            low=params["eps_low"],
            high=params["eps_high"],
            outer_low=params["eps_low_prime"],
            outer_high=params["eps_high_prime"],
            temperature=params["temp"],
        )
        objective: list[tuple[float, Term]] = [(1.0, term)]
        if case["regularizer"] != "none":
            objective.append((case["coef"], OldKL("k2" if case["regularizer"] == "k2" else "forward")))
        loss, gradient = loss_and_gradient(objective, TokenMean(), inputs, tensor(inputs["advantages"]))
        what = " ".join(str(case[name]) for name in ("clip_mode", "weight", "regularizer"))
        close(loss, case["loss"], what=what)
        close(gradient, case["grad"], what=what)


@check("r2vpo_loss")
def r2vpo_loss(vector: Vector) -> None:
    inputs, params, outputs = vector.inputs, vector.params, vector.outputs
    term = VarianceBound(params["lam"])
    loss, gradient = loss_and_gradient([(1.0, term)], TokenMean(), inputs, tensor(inputs["advantages"]))
    close(loss, outputs["loss"], what="loss")
    close(gradient, outputs["grad"], what="gradient")
    multiplier, trace = params["lam"], []
    for variance in inputs["variances"]:
        multiplier = dual_step(multiplier, variance, params["delta"], params["dual_lr"])
        trace.append(multiplier)
    close(trace, outputs["dual_trace"], what="multiplier")


@check("llds_penalty")
def llds_penalty(vector: Vector) -> None:
    inputs, outputs, mask = vector.inputs, vector.outputs, tensor(vector.inputs["mask"]) > 0
    advantages = tensor(inputs["preserved_rows"]) * 2 - 1
    # the paper's denominator, the actions of rows with A >= 0, in place of all
    coef = float(mask.sum() / mask[advantages >= 0].sum())
    loss, gradient = loss_and_gradient([(coef, KeepLikely())], TokenMean(), inputs, advantages)
    gap = torch.where(mask, tensor(inputs["old"]) - tensor(inputs["new"]), 0.0)
    assert KeepLikely().gate(gap).double().tolist() == outputs["response_gate"]
    close(loss, outputs["penalty"], what="penalty")
    close(gradient, outputs["grad"], what="gradient")


@check("nft_text_loss")
def nft_text_loss(vector: Vector) -> None:
    inputs, params = vector.inputs, vector.params
    right, rate = tensor(inputs["rewards"]), tensor(inputs["correct_rate"])
    advantages = torch.where(right > 0, 1 - rate, -rate)
    for name, case in vector.outputs["cases"].items():
        level, form = name.split("_norm")
        term = NegativeAwareText(
            normalize=("none", "linear", "deviation")[int(form)],
            floor=params["clamp_negative"],
            level="action" if level == "token" else "rollout",
            rates=tuple(params["rate_clip"]),
        )
        # the code adds up actions / denominator, or whole rollouts
        sums = (len(right) / params["denominator"], FixedLength(1)) if level == "token" else (float(len(right)), SequenceMean())
        loss, gradient = loss_and_gradient([(sums[0], term)], sums[1], inputs, advantages)
        close(loss, case["loss"], what=f"{name} loss")
        close(gradient, case["grad"], what=f"{name} gradient")
