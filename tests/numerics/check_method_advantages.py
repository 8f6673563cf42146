"""Advantages of single papers against their code, or their formula worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.advantages.answers import Consistency, Polychromic, SemanticEntropy
from mmrl.algorithms.advantages.group import Halves, Strata, VirtualBest
from mmrl.algorithms.advantages.spread import Asymmetric, BetaNorm, WhereLengthPays
from mmrl.core.protocols import Advantage
from mmrl.core.readings import OLD_ENTROPY
from mmrl.core.types import Rollouts
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import rollouts, scores

FLOAT32 = 1e-6
"""Codes that run in float32."""


def values(advantage: Advantage, rewards: Any, rows: Rollouts) -> Tensor:
    """The advantage of every row, which is the same for all its actions."""
    return advantage(scores(tensor(rewards)[:, None]), rows).values[:, 0]


def ones(ids: Sequence[int]) -> Rollouts:
    """Rows of one action."""
    return rollouts(torch.ones(len(ids), 1), ids)


def with_texts(rows: Rollouts, texts: Sequence[str]) -> Rollouts:
    """The rows of one group, with these completions."""
    (group,) = rows.groups
    samples = tuple(replace(sample, text=text) for sample, text in zip(group.samples, texts, strict=True))
    return replace(rows, groups=(replace(group, samples=samples),))


@check("ngrpo_advantages")
def ngrpo_advantages(vector: Vector) -> None:
    rewards, ids, eps = vector.inputs["rewards"], vector.inputs["index"], vector.params["eps"]
    for case in vector.outputs["cases"]:
        part = VirtualBest(best=case["max_reward"], count=case["add_max_reward_num"], eps=eps)
        close(values(part, rewards, ones(ids)), case["advantages"], FLOAT32, str(case["add_max_reward_num"]))
    wrong = vector.outputs["all_wrong_group_of_8"]
    close(values(VirtualBest(eps=eps), [0.0] * 8, ones([0] * 8)), wrong, FLOAT32, "all wrong")


@check("bnpo_advantages")
def bnpo_advantages(vector: Vector) -> None:
    inputs, outputs = vector.inputs, vector.outputs
    close(values(BetaNorm(), inputs["rewards"], ones(inputs["index"])), outputs["advantages"], FLOAT32)
    alone = inputs["single_group"]
    close(values(BetaNorm(), alone, ones([0] * len(alone))), outputs["single_group_advantages"], FLOAT32, "one prompt")


@check("canon_advantages")
def canon_advantages(vector: Vector) -> None:
    inputs = vector.inputs
    lengths = torch.tensor(inputs["lengths"], dtype=torch.long)
    rows = rollouts(torch.arange(int(lengths.max())) < lengths[:, None])
    entropy = tensor(inputs["mean_entropy"])[:, None].expand(rows.action_mask.shape)
    rows = replace(rows, recorded={OLD_ENTROPY: entropy})
    for case in vector.outputs["cases"]:
        for by in ("length", "entropy"):
            part = Halves(by=by, cross=case["lam"], favour=case["alpha"])
            close(values(part, inputs["rewards"], rows), case[f"{by}_split"], FLOAT32, f"{by} {case['lam']}")


@check("a_grae")
def a_grae(vector: Vector) -> None:
    rewards = tensor(vector.inputs["rewards"])
    ids = torch.arange(len(rewards))[:, None].expand(rewards.shape).flatten().tolist()
    found = values(Asymmetric(knee=vector.params["alpha"]), rewards.flatten().tolist(), ones(ids))
    close(found.view(rewards.shape), vector.outputs["advantages"], what="advantages")


def answered(given: Sequence[str | None]) -> list[str]:
    return ["nothing" if answer is None else f"<answer>{answer}</answer>" for answer in given]


@check("seed_grpo")
def seed_grpo(vector: Vector) -> None:
    rows = with_texts(ones([0] * vector.params["G"]), answered(vector.inputs["answers"]))
    found = values(SemanticEntropy(alpha=vector.params["alpha"]), vector.inputs["rewards"], rows)
    close(found, vector.outputs["advantages"])


@check("copo_weight")
def copo_weight(vector: Vector) -> None:
    part = Consistency(k=float(vector.params["k"]), b=float(vector.params["b"]))
    labels = [float(hash(answer) % 1009) for answer in vector.inputs["answers"]]
    entropy, factor = part.entropy(labels)
    close(entropy, vector.outputs["entropy_bits"], what="entropy")
    close(factor, vector.outputs["global_factor"], what="factor")
    close(1 / (1 + torch.tensor(-part.k * (entropy - part.b)).double().exp()), vector.outputs["w"], what="w")


@check("polychromic_advantages")
def polychromic_advantages(vector: Vector) -> None:
    rewards = vector.inputs["rewards"]
    part = Polychromic(n=vector.params["n"])
    rows = with_texts(ones([0] * len(rewards)), answered(vector.inputs["signature"]))
    assert len(part.sets(len(rewards), 0)) == vector.outputs["num_sets"]
    close(values(part, rewards, rows), vector.outputs["advantages"])


@check("stratified_advantages")
def stratified_advantages(vector: Vector) -> None:
    rewards, eps = vector.inputs["rewards"], vector.params["eps"]
    texts = ["<tool_call>" * int(count) for count in vector.inputs["strata"]]
    rows = with_texts(ones([0] * len(rewards)), texts)
    for share, name in ((1.0, "san"), (0.0, "gn")):
        close(values(Strata(inside=share, eps=eps), rewards, rows), vector.outputs[name], what=name)
    for case in vector.outputs["cases"]:
        close(values(Strata(inside=case["alpha"], eps=eps), rewards, rows), case["advantages"], what=str(case["alpha"]))


@check("adora_weights")
def adora_weights(vector: Vector) -> None:
    inputs, params = vector.inputs, vector.params
    lengths = torch.tensor(inputs["lengths"]).long()
    rows = rollouts(torch.arange(int(lengths.max())) < lengths[:, None], inputs["index"])
    part = WhereLengthPays(
        less=params["lamda"], cap=params["text_max_length_threshold"], above=params["text_correct_score"], empty="text"
    )
    close(values(part, inputs["text_rewards"], rows), vector.outputs["text_advantages"], FLOAT32, "text")
    part = WhereLengthPays(less=params["lamda"], cap=params["vl_max_length"], above=params["vl_threshold"], empty="vision")
    groups = zip(inputs["vl_rewards"], inputs["vl_lengths"], vector.outputs["vl_weights"], strict=True)
    for i, (rewards, length, expected) in enumerate(groups):
        found = part.weight(tensor(rewards) > part.above, tensor(length))
        close([found] * len(rewards), expected, what=f"vision {i}")
