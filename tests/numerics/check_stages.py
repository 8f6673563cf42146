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
    """The losses that Preference has, one pair a micro-batch or all together."""
    inputs, checked = vector.inputs, 0
    mask, live, ref = tensor(inputs["completion_mask"]).bool(), tensor(inputs["policy_logprobs"]), tensor(inputs["ref_logprobs"])
    pairs = len(mask) // 2
    sign, ids = torch.tensor([1.0] * pairs + [-1.0] * pairs), [*range(pairs)] * 2
    for case in vector.outputs["cases"]:
        if case["loss_type"] not in ("sigmoid", "ipo", "sigmoid_norm") or "ld_alpha" in case:
            continue
        algorithm = Algorithm(((1.0, Preference(case["beta"], case["loss_type"])),), aggregation=KINDS["dpo"].aggregation)
        batch = weighed(algorithm, make_batch(mask, sign, {REF_LOGPROBS: ref}, ids))
        loss, gradient = loss_and_gradient(algorithm, batch, {LOGPROBS: live})
        close(loss, case["loss"], 1e-6, "loss")
        close(gradient, case["grad"], 1e-6, "gradient")
        cut = [torch.tensor([k, pairs + k]) for k in range(pairs)]
        parts = [loss_and_gradient(algorithm, batch.take(rows), {LOGPROBS: live[rows]})[0] for rows in cut]
        close(torch.stack(parts).sum(), case["loss"], 1e-6, "parts")
        metrics = algorithm.loss(batch, {LOGPROBS: live})[1]
        if case["loss_type"] == "sigmoid":
            close(metrics["policy/preferred"] / metrics["policy/share"], case["rewards"]["accuracies"], 1e-6, "accuracies")
            close(metrics["policy/margin"] / metrics["policy/share"], case["rewards"]["margins"], 1e-6, "margins")
        checked += 1
    assert checked == 4


@check("thought_dropout")
def thought_dropout(vector: Vector) -> None:
    inputs = vector.inputs
    text = f"<think>{inputs['thought']}</think><action>{inputs['answer']}</action>"
    assert [without_thought(text, vector.params["share"], draw) for draw in inputs["draws"]] == vector.outputs["texts"]
