"""Methods for video against their code, or (Reg-GRPO, TempSamp-R1: no code was reachable) their papers' formulas."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.advantages.experts import AnchoredNorm
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.penalties import Perception
from mmrl.algorithms.objectives.regression import AdvantageRegression
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets.video import tw_grpo
from mmrl.algorithms.shaping.video import ConsistencyBonus, InjectedScale, SoftReward, TemporalBonus
from mmrl.algorithms.views import column as of_view
from mmrl.algorithms.weights.aggregate import SequenceMean, TokenMean
from mmrl.algorithms.weights.importance import GroupDivergence
from mmrl.core.readings import ANSWER_MASK, EMA_LOGPROBS, GROUP_DIVERGENCE, LOGPROBS, MASKED_LOGPROBS, OLD_LOGPROBS
from mmrl.core.types import Scores
from mmrl.policies.text.read.evaluate import group_divergence
from tests.numerics.registry import check, close, tensor
from tests.numerics.rows import alone, blocks, close_loss, column
from tests.support.rows import counts_of, make_batch, rollouts, scores, weighed_loss, with_fields

FLOAT32 = 1e-6
"""Video-R1 and PAPO run in float32."""


def divergences(logprobs: Tensor, mask: Tensor, group_size: int, chunk: int) -> Tensor:
    """Group by group, as the reader asks; log-probabilities stand for logits, which a softmax leaves as they are."""
    rows, _, words = logprobs.shape
    everything = torch.ones(words, dtype=torch.bool)
    heat = torch.ones(group_size, dtype=logprobs.dtype)

    def head(hidden: Tensor, temperature: Tensor) -> Tensor:
        return hidden / temperature[:, None]

    pieces = [
        group_divergence(head, logprobs[a:b], heat, mask[a:b], everything, chunk)
        for a, b in pairwise(range(0, rows + 1, group_size))
    ]
    return torch.cat(pieces)


@check("tw_grpo_token_weights")
def tw_grpo_token_weights(inputs: Any, params: Any, outputs: Any) -> None:
    logprobs, size = tensor(inputs["log_probs_full_vocab"]), params["num_generations"]
    short = tensor(inputs["completion_mask"]).bool()
    cases = [(short, case["alpha"], case["token_weights"]) for case in outputs["cases"]]
    cases.append((torch.ones_like(short), 1.7, outputs["full_mask_alpha_1_7"]))
    for mask, alpha, expected in cases:
        for chunk in (1, 6, 1000):
            frozen = {GROUP_DIVERGENCE: divergences(logprobs, mask, size, chunk)}
            batch = make_batch(mask, tensor([0.0] * len(mask)), frozen, blocks(len(mask), size))
            close(GroupDivergence(alpha)(batch, counts_of(batch)) * mask, expected, what=f"alpha {alpha}, chunk {chunk}")


@check("tw_grpo_loss")
def tw_grpo_loss(inputs: Any, params: Any, outputs: Any) -> None:
    alpha = params["alpha"]
    # the weights of the file, as the divergences they come from: the weight of a group's first token need not be 1 there
    weights = tensor(inputs["token_weights"])
    mask = tensor(inputs["completion_mask"]).bool()
    longest = torch.cat([block.amax(0, keepdim=True).expand_as(block) for block in weights.split(3)]).clamp(min=1.0)
    frozen = {OLD_LOGPROBS: tensor(inputs["old_per_token_logps"]), GROUP_DIVERGENCE: longest - 1}
    batch = make_batch(mask, tensor(inputs["advantages"]), frozen, blocks(len(mask), 3))
    low, high = params["clip"]
    assert tw_grpo.objective == ((1.0, Clip(low, high)),)
    assert tw_grpo.aggregation == TokenMean()
    algorithm = replace(tw_grpo, importance=(GroupDivergence(alpha),))
    loss, _ = weighed_loss(algorithm, batch, {LOGPROBS: tensor(inputs["per_token_logps"])})
    close(loss, outputs["loss"], 1e-8)


@check("reg_grpo")
def reg_grpo(inputs: Any, params: Any, outputs: Any) -> None:
    rewards = tensor(inputs["rewards"])
    mask = torch.ones(rewards.numel(), 2)
    ids = blocks(rewards.numel(), rewards.shape[1])
    credit = GroupNorm(ddof=0, eps=params["eps_reward"])(scores(rewards.reshape(-1, 1)), rollouts(mask, ids))
    close(credit.values[:, 0], tensor(inputs["advantages"]).flatten())
    algorithm = Algorithm(objective=((1.0, AdvantageRegression(eps=params["eps_rho"])),), aggregation=SequenceMean())
    for case in outputs["cases"]:
        rho = tensor(case["rho"]).flatten()
        # two actions that add up to rho
        live = torch.stack([2 * rho - 1, 1 - rho], dim=1)
        batch = make_batch(mask, credit.values, {OLD_LOGPROBS: torch.zeros_like(live)}, ids)
        loss, gradient = weighed_loss(algorithm, batch, {LOGPROBS: live})
        close(loss, case["loss"], what=case["tag"])
        for action in gradient.unbind(1):
            close(action, tensor(case["grad_rho"]).flatten(), 1e-8, case["tag"])


@check("tempsamp_r1_shaping")
def tempsamp_r1_shaping(inputs: Any, params: Any, outputs: Any) -> None:
    soft = SoftReward(tau=params["tau"], rise=params["alpha1"], fall=params["alpha2"])
    values = inputs["reward_values"]
    close(soft(column(values), alone([0] * len(values)), {}).values[:, 1], outputs["shaped"])
    table, eps = column(inputs["group_rewards"]), params["eps"]
    ids, plain = [0] * len(table.values), GroupNorm(eps=eps)
    rows = with_fields(alone(ids), role=["injected" if i == inputs["gt_row"] else "policy" for i in range(len(ids))])
    scaled = InjectedScale(scale=params["gt_scale"])(table, rows, {})
    found = {
        "plain": plain(table, rows),
        "reward_downscaling": plain(scaled, rows),
        "advantage_anchoring": AnchoredNorm(anchor=params["anchor"], eps=eps)(table, rows),
        "nonlinear_shaping": plain(soft(table, rows, {}), rows),
    }
    assert found.keys() == outputs["advantages"].keys()
    for name, expected in outputs["advantages"].items():
        close(found[name].values[:, 0], expected, what=name)


@check("grpo_care_bonus")
def grpo_care_bonus(inputs: Any, params: Any, outputs: Any) -> None:
    frozen = {EMA_LOGPROBS: tensor(inputs["ref_per_token_logps"]), ANSWER_MASK: tensor(inputs["answer_mask"])}
    rows = rollouts(torch.ones_like(frozen[ANSWER_MASK]))
    for case in outputs["cases"]:
        # without an upper bound and a margin the code has neither
        most, margin = case["confidence_upper_bound"] or 1.0, case["consistency_margin"] or 0.0
        part = ConsistencyBonus(coef=case["bonus_coefficient"], most=most, margin=margin)
        table = scores(torch.stack([tensor(case["accuracy"]), tensor(inputs["format_reward"])], dim=1))
        found = part(table, rows, frozen)
        what = str({name: case[name] for name in ("accuracy", "confidence_upper_bound")})
        close(found.values[:, 2], case["bonus"], what=what)
        close(found.total(), case["rewards"], what=what)
        close(GroupNorm(eps=params["eps"])(found, rows).values[:, 0], case["advantages"], FLOAT32, what)


def with_probes(accuracy: list[float], probes: list[float]) -> Scores:
    """The scores of one group as the collector hands them on: with the mean over its shuffled probes."""
    mean = sum(probes) / len(probes)
    table = scores(tensor([[a, mean] for a in accuracy]), weights=[1.0, 0.0])
    return replace(table, names=("accuracy", of_view("accuracy", "shuffled")))


@check("t_grpo_temporal_bonus")
def t_grpo_temporal_bonus(params: Any, outputs: Any) -> None:
    part = TemporalBonus(bonus=params["bonus"], ratio=params["mu"], correct_above=params["correct_above"])
    for case in outputs["cases"]:
        rows = alone([0] * len(case["acc"]))
        found = part(with_probes(case["acc"], case["shuffled_acc"]), rows, {})
        assert found.names[-1] == "temporal"
        close(found.total(), case["acc_after"], FLOAT32, str(case["acc"]))
        assert bool((found.values[:, -1] > 0).any()) == (case["temporal_reward"] > 0 and max(case["acc"]) > 0.1)


@check("t_grpo_bonus_invariance")
def t_grpo_bonus_invariance(inputs: Any, outputs: Any) -> None:
    accuracy, form = (tensor(inputs[name]) for name in ("accuracy", "format"))
    rows = alone([0] * len(accuracy))
    plain = with_probes(accuracy.tolist(), [0.0])
    bonus = TemporalBonus()(plain, rows, {})
    for name, table in {"plain": plain, "bonus": bonus}.items():
        beside = replace(
            table,
            names=(*table.names, "format"),
            values=torch.cat([table.values, form[:, None]], dim=1),
            status=torch.cat([table.status, torch.zeros_like(table.status[:, :1])], dim=1),
            weights=torch.cat([table.weights, torch.ones_like(table.weights[:1])]),
        )
        for case, one in {f"binary_{name}": table, f"with_format_{name}": beside}.items():
            close(GroupNorm()(one, rows).values[:, 0], outputs[case], 1e-8, case)


@check("papo_perception_term")
def papo_perception_term(inputs: Any, params: Any, outputs: Any) -> None:
    live, masked = tensor(inputs["log_probs"]), tensor(inputs["aug_log_probs"])
    mask = tensor(inputs["mask"]).bool()
    batch = make_batch(mask, tensor([0.0] * len(mask)), {MASKED_LOGPROBS: masked})
    values, metrics = Perception()({LOGPROBS: live, MASKED_LOGPROBS: masked}, batch)
    expected = tensor(outputs["per_token"]) * mask
    close(-values, expected, FLOAT32)
    close(metrics["policy/perception"], expected, FLOAT32)
    algorithm = Algorithm(objective=((params["gamma"], Perception()),), aggregation=TokenMean())
    wanted = {"loss": outputs["loss_term"], "grad": outputs["grad"]}
    close_loss(algorithm, batch, {LOGPROBS: live}, wanted, FLOAT32)
