"""Given texts, pairs and teachers: TRL's SFT, DPO and distillation, SDPO's loss by its authors, SRPO's and TON's formulas."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.advantages.experts import Demonstrated, ExceptTaught, Told, TowardsTeacher
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.objectives.given import FollowTeacher, Imitation, Preference
from mmrl.algorithms.objectives.surrogates import Reinforce
from mmrl.algorithms.planners.taught import without_thought
from mmrl.algorithms.views import Privileged
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.algorithms.weights.importance import SureTeacher
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, REF_LOGPROBS, TAUGHT, TEACHER_LOGPROBS
from mmrl.core.types import Credit, Reading, Rollouts, Scores, Target
from mmrl.policies.text.net import NEVER
from mmrl.policies.text.read.distance import Other, TeachersPart, divergence, overlap
from mmrl.policies.text.read.evaluate import token_values
from tests.numerics.registry import Vector, check, close, tensor
from tests.numerics.rows import alone, blocks, close_loss, column, up_to
from tests.support.rows import counts_of, loss_and_gradient, make_batch, rollouts, scores, weighed, weighed_loss, with_fields


@check("sft_trl")
def sft_trl(inputs: Any, outputs: Any) -> None:
    """The mean over all tokens of the batch, however it is cut."""
    mask, live = tensor(inputs["mask"]).bool(), tensor(inputs["logprobs"])
    for case in outputs["cases"]:
        algorithm = Algorithm(((1.0, Imitation(dft=case["loss_type"] == "dft")),), aggregation=KINDS["sft"].aggregation)
        batch = weighed(algorithm, make_batch(mask, torch.ones(mask.shape), {}))
        close_loss(algorithm, batch, {LOGPROBS: live}, case, 1e-6)
        for rows, part in zip(case["micro_batches"], case["parts"], strict=True):
            taken = torch.tensor([int(row) for row in rows])
            close(loss_and_gradient(algorithm, batch.take(taken), {LOGPROBS: live[taken]})[0], part, 1e-6, "part")


@check("dpo_trl")
def dpo_trl(inputs: Any, outputs: Any) -> None:
    """All of TRL's, one pair a micro-batch or all together; its sft is Imitation of the chosen."""
    checked = 0
    mask, live, ref = tensor(inputs["completion_mask"]).bool(), tensor(inputs["policy_logprobs"]), tensor(inputs["ref_logprobs"])
    pairs = len(mask) // 2
    sign, ids = torch.tensor([1.0] * pairs + [-1.0] * pairs), [*range(pairs)] * 2
    imitation = Algorithm(((1.0, Imitation()),), aggregation=KINDS["sft"].aggregation)
    chosen = make_batch(mask[:pairs], torch.ones(mask[:pairs].shape), {})
    taught, taught_gradient = weighed_loss(imitation, chosen, {LOGPROBS: live[:pairs]})
    taught_gradient = torch.cat([taught_gradient, torch.zeros_like(taught_gradient)])
    for case in outputs["cases"]:
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
def thought_dropout(inputs: Any, params: Any, outputs: Any) -> None:
    text = f"<think>{inputs['thought']}</think><action>{inputs['answer']}</action>"
    assert [without_thought(text, params["share"], draw) for draw in inputs["draws"]] == outputs["texts"]


FLOAT32 = 2e-6
TELLING = Privileged(column="told")


def logits_of(vector: Vector) -> tuple[Tensor, Tensor]:
    """Of the student, with a gradient, and of its teacher."""
    return tensor(vector.inputs["student_logits"]).requires_grad_(), tensor(vector.inputs["teacher_logits"])


def token_logprobs(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    return logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[..., None])[..., 0]


@check(
    *(f"gkd_beta_{beta}" for beta in ("0.0_t_1.0", "1.0_t_1.0", "0.5_t_1.0", "0.1_t_0.7")),
    *(f"sdpo_top_{top}_tail_alpha_{beta}" for top, beta in ((3, 0.5), (3, 1.0), (2, 0.0))),
)
def whole_vocabulary(params: Any, outputs: Any, tolerance: float, vector: Vector) -> None:
    """TRL's generalized Jensen-Shannon divergence, of all tokens or of the likeliest and the rest."""
    (student, teacher) = logits_of(vector)
    heat = params.get("temperature", 1.0)
    found = divergence(student / heat, teacher / heat, params["beta"], params.get("top", 0))
    close(found, outputs["per_token"], tolerance)
    close(torch.autograd.grad(found.sum(), student)[0], outputs["grad_of_sum"], tolerance)


@check("sdpo_top_3_renormalised_alpha_1.0")
def renormalised(params: Any, outputs: Any, vector: Vector) -> None:
    """Not offered: this is the formula, and ours, which keeps the rest as one token, is another one."""
    student, teacher = logits_of(vector)
    ids = student.topk(params["top"], -1).indices
    found = divergence(student.gather(-1, ids), teacher.gather(-1, ids), 1.0)
    close(found, outputs["per_token"])
    assert float((divergence(student, teacher, 1.0, params["top"]) - found).detach().abs().min()) > 0.01


@check("sampled_token", "full_with_ratio_bound_2")
def of_term(inputs: Any, params: Any, outputs: Any, tolerance: float, vector: Vector) -> None:
    """A term's values at tokens in a row, and their gradient in the student's logits."""
    (student, teacher), tokens = logits_of(vector), inputs["tokens"]
    term = FollowTeacher(form="sampled", beta=1.0)
    if "ratio_bound" in params:
        term = FollowTeacher(beta=params["beta"], ratio_bound=params["ratio_bound"])
    old = tensor(inputs.get("old_logprobs", [0.0] * len(tokens)))
    batch = make_batch(torch.ones(1, len(tokens)) > 0, torch.ones(1), {OLD_LOGPROBS: old[None]})
    compared = {
        term.compared("divergence"): divergence(student, teacher, term.beta)[None],
        term.compared("overlap"): overlap(student, teacher)[None],
    }
    logprobs = {LOGPROBS: token_logprobs(student, tokens)[None], term.teacher: token_logprobs(teacher, tokens)[None]}
    values, _ = term({**batch.frozen, **compared, **logprobs}, batch)
    close(values[0], outputs["per_token"], tolerance)
    close(torch.autograd.grad(values.sum(), student)[0], outputs["grad_of_sum"], tolerance)


@check("sdpo_authors_whole_loss")
def authors_loss(inputs: Any, params: Any, outputs: Any, vector: Vector) -> None:
    (student, teacher) = logits_of(vector)
    term = FollowTeacher(model="ema", beta=params["beta"], top=params["top"], ratio_bound=params["ratio_bound"], view=TELLING)
    algorithm = Algorithm(objective=((1.0, term),), advantage=Told(), aggregation=TokenMean())
    mask = tensor(inputs["action_mask"]) > 0
    taught = tensor(inputs["taught_rows"])[:, None].expand(mask.shape)
    rows = rollouts(mask, range(len(mask)))
    credit = algorithm.advantage(scores(torch.ones(len(mask), 1)), replace(rows, recorded={TAUGHT: taught}))
    assert credit.keep.tolist() == [one > 0 for one in inputs["taught_rows"]]
    frozen = {OLD_LOGPROBS: tensor(inputs["old_logprobs"]), TAUGHT: taught}
    batch = weighed(algorithm, make_batch(mask & credit.keep[:, None], credit.values, frozen, range(len(mask))))
    flat = divergence(student.flatten(0, 1), teacher.flatten(0, 1), term.beta, term.top)
    live = {
        LOGPROBS: token_logprobs(student, inputs["tokens"]),
        term.compared("divergence"): flat.view(mask.shape),
        term.compared("overlap"): torch.ones_like(taught),
    }
    loss, metrics = algorithm.loss(batch, live)
    # shares are float32
    close(loss, outputs["loss"][0], FLOAT32)
    close(torch.autograd.grad(loss, student)[0], outputs["grad"], FLOAT32)
    close(metrics["teacher/taught"], 1.0, FLOAT32)


@check("distillation_trainer_beta_1.0_t_1.0", "distillation_trainer_beta_0.3_t_1.3")
def trainer_of_distillation(inputs: Any, params: Any, outputs: Any) -> None:
    """TRL's DistillationTrainer: heads of two widths, chunk by chunk."""
    states, head = tensor(inputs["student_states"]).requires_grad_(), tensor(inputs["student_head"])
    theirs = tensor(inputs["teacher_head"])
    heat = torch.full((len(states),), params["temperature"], dtype=torch.float64)
    part = TeachersPart(torch.arange(len(states)), tensor(inputs["teacher_states"]), lambda x, heat: x @ theirs.T / heat[:, None])
    other = Other(Target("teacher"), [part], torch.zeros(len(head), dtype=torch.bool))
    logits = states @ head.T / heat[:, None]
    found = divergence(logits, other.logits(torch.arange(len(states)), heat), params["beta"])
    close(found, outputs["per_token"], params["tolerance"])
    entropy = token_values(logits, torch.zeros(len(states), dtype=torch.long), ("entropy",))[0]
    close(entropy, outputs["entropy"], params["tolerance"])
    close(torch.autograd.grad(found.sum(), states)[0], outputs["grad_of_states"], params["tolerance"])


@check("advantage_towards_teacher")
def towards_teacher(inputs: Any, params: Any, outputs: Any) -> None:
    recorded = {TEACHER_LOGPROBS: tensor(inputs["teacher_logprobs"]), OLD_LOGPROBS: tensor(inputs["old_logprobs"])}
    rows = replace(rollouts(torch.ones(recorded[OLD_LOGPROBS].shape)), recorded=recorded)
    part = TowardsTeacher(weight=params["weight"], bound=params["bound"])
    close(part(scores(torch.zeros(len(rows), 1)), rows).values, outputs["advantages"])


@check("overlap")
def agreement(outputs: Any, vector: Vector) -> None:
    close(overlap(*logits_of(vector)), outputs["per_token"], FLOAT32)


@check("other_vocabulary_size_and_banned")
def other_vocabulary(params: Any, outputs: Any, vector: Vector) -> None:
    """A head with more rows, and a token that the policy may not write."""
    student, teacher = logits_of(vector)
    banned = torch.zeros(student.shape[-1], dtype=torch.bool)
    banned[params["banned"]] = True
    other = Other(Target("teacher"), [TeachersPart(torch.arange(len(student)), teacher, lambda x, heat: x)], banned)
    theirs = other.logits(torch.arange(len(student)), torch.ones(len(student), dtype=torch.float64))
    found = divergence(student.masked_fill(banned, NEVER), theirs, params["beta"])
    close(found, outputs["per_token"])


def told_rows(groups: Sequence[int]) -> Rollouts:
    """Rows of one token, each of which wrote its own number."""
    return with_fields(alone(groups), text=[str(number) for number in range(len(groups))])


@check("sdpo_demonstration")
def demonstration(inputs: Any, params: Any, outputs: Any) -> None:
    term = FollowTeacher(model="ema", view=TELLING, success_at=params["success_at"])
    taught, texts = term.route(told_rows(inputs["groups"]), column(inputs["rewards"]))
    assert [int(text) if text else -1 for text in texts] == outputs["told_by"]
    assert taught.tolist() == [told >= 0 for told in outputs["told_by"]]


class Ones(GroupNorm):
    """Of rewards that all count the same."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        return Demonstrated()(scores, rollouts)


@check("srpo_routing")
def routing(inputs: Any, params: Any, outputs: Any) -> None:
    term = FollowTeacher(model="ema", rows="wrong", view=TELLING, success_at=params["success_at"])
    totals, rows = column(inputs["rewards"]), told_rows(inputs["groups"])
    taught, _ = term.route(rows, totals)
    recorded = {TAUGHT: taught[:, None].double()}
    credit = ExceptTaught(Ones())(totals, replace(rows, recorded=recorded))
    assert taught.int().tolist() == outputs["distilled"]
    assert credit.values[:, 0].int().tolist() == outputs["rewarded"] and bool(credit.keep.all())


@check("srpo.loss")
def srpo_loss(inputs: Any, params: Any, outputs: Any) -> None:
    """GRPO's losses of a row and those of its teacher are given: routing, weights and the one denominator are ours."""
    right, losses = column(inputs["right"]), tensor(inputs["grpo_losses"])
    mask = up_to(inputs["lengths"], losses.shape[1])
    term = FollowTeacher(model="ema", rows="wrong", weighed=True, view=TELLING)
    weight = SureTeacher(beta=params["beta"])
    parts = ((1.0, Reinforce()), (1.0, term))
    algorithm = Algorithm(parts, ExceptTaught(Ones()), TokenMean(), (weight,))
    groups = blocks(len(losses), params["group"])
    taught = term.route(told_rows(groups), right)[0]
    assert taught.tolist() == outputs["distilled"]
    teacher = tensor(inputs["teacher_logprobs"])
    entropy = -(teacher.exp() * teacher).sum(-1)
    close(entropy, outputs["entropy"])
    frozen = {TAUGHT: taught[:, None].expand(mask.shape).double(), weight.entropy: entropy, OLD_LOGPROBS: losses}
    rows = replace(rollouts(mask, groups), recorded=frozen)
    credit = algorithm.advantage(right, rows)
    batch = make_batch(mask, credit.values.double(), frozen, groups)
    pooled: dict[Reading, Tensor] = {reading: frozen[reading][mask] for reading in weight.pools}
    batch = weighed(algorithm, batch, replace(counts_of(batch), pooled=pooled))
    close(torch.where(taught[:, None] & mask, batch.importance, 0.0), outputs["weights"])
    live = {LOGPROBS: -losses, term.compared("divergence"): tensor(inputs["sdpo_losses"])}
    loss, _ = algorithm.loss(batch, {**live, term.compared("overlap"): torch.ones_like(losses)})
    close(loss, outputs["loss"], FLOAT32)
