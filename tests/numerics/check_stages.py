"""Supervised stages and preference pairs against TRL's losses and TON's dropout, with gradients."""

import torch

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.objectives.given import Imitation, Preference
from mmrl.algorithms.planners.taught import without_thought
from mmrl.core.readings import LOGPROBS, REF_LOGPROBS
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import loss_and_gradient, make_batch, weighed


@check("sft_trl")
def sft_trl(vector: Vector) -> None:
    """The mean over all tokens of the batch, however it is cut."""
    mask, live = tensor(vector.inputs["mask"]).bool(), tensor(vector.inputs["logprobs"])
    for case in vector.outputs["cases"]:
        algorithm = Algorithm(((1.0, Imitation(dft=case["loss_type"] == "dft")),), aggregation=KINDS["sft"].aggregation)
        batch = weighed(algorithm, make_batch(mask, torch.ones(mask.shape), {}))
        loss, gradient = loss_and_gradient(algorithm, batch, {LOGPROBS: live})
        close(loss, case["loss"], 1e-6, "loss")
        close(gradient, case["grad"], 1e-6, "gradient")
        for rows, part in zip(case["micro_batches"], case["parts"], strict=True):
            taken = torch.tensor([int(row) for row in rows])
            close(loss_and_gradient(algorithm, batch.take(taken), {LOGPROBS: live[taken]})[0], part, 1e-6, "part")


@check("dpo_trl")
def dpo_trl(vector: Vector) -> None:
    """All of TRL's, one pair a micro-batch or all together; its sft is Imitation of the chosen."""
    inputs, checked = vector.inputs, 0
    mask, live, ref = tensor(inputs["completion_mask"]).bool(), tensor(inputs["policy_logprobs"]), tensor(inputs["ref_logprobs"])
    pairs = len(mask) // 2
    sign, ids = torch.tensor([1.0] * pairs + [-1.0] * pairs), [*range(pairs)] * 2
    imitation = Algorithm(((1.0, Imitation()),), aggregation=KINDS["sft"].aggregation)
    taught, taught_gradient = loss_and_gradient(
        imitation, weighed(imitation, make_batch(mask[:pairs], torch.ones(mask[:pairs].shape), {})), {LOGPROBS: live[:pairs]}
    )
    taught_gradient = torch.cat([taught_gradient, torch.zeros_like(taught_gradient)])
    for case in vector.outputs["cases"]:
        kinds = case["loss_type"] if isinstance(case["loss_type"], list) else [case["loss_type"]]
        shares = dict(zip(kinds, case.get("weights", [1.0]), strict=True))
        loss, gradient = shares.get("sft", 0.0) * taught, shares.get("sft", 0.0) * taught_gradient
        if kinds[0] != "sft":
            term = Preference(
                case["beta"], kinds[0], smoothing=case.get("label_smoothing", 0.0), beyond=case.get("ld_alpha", 1.0)
            )
            algorithm = Algorithm(((1.0, term),), aggregation=KINDS["dpo"].aggregation)
            batch = weighed(algorithm, make_batch(mask, sign, {REF_LOGPROBS: ref}, ids))
            whole, its_gradient = loss_and_gradient(algorithm, batch, {LOGPROBS: live})
            loss, gradient = loss + whole, gradient + its_gradient
            cut = [torch.tensor([k, pairs + k]) for k in range(pairs)]
            parts = [loss_and_gradient(algorithm, batch.take(rows), {LOGPROBS: live[rows]})[0] for rows in cut]
            close(torch.stack(parts).sum(), whole, 1e-6, "parts")
            metrics = algorithm.loss(batch, {LOGPROBS: live})[1]
            if kinds == ["sigmoid"] and "ld_alpha" not in case:
                close(metrics["policy/preferred"] / metrics["policy/share"], case["rewards"]["accuracies"], 1e-6, "accuracies")
                close(metrics["policy/margin"] / metrics["policy/share"], case["rewards"]["margins"], 1e-6, "margins")
        close(loss, case["loss"], 1e-6, f"loss of {kinds}")
        close(gradient, case["grad"], 1e-6, f"gradient of {kinds}")
        checked += 1
    assert checked == 11


@check("thought_dropout")
def thought_dropout(vector: Vector) -> None:
    inputs = vector.inputs
    text = f"<think>{inputs['thought']}</think><action>{inputs['answer']}</action>"
    assert [without_thought(text, vector.params["share"], draw) for draw in inputs["draws"]] == vector.outputs["texts"]
