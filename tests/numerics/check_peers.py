"""What peers' samplers, advantages and packed layouts give, in terms of ours."""

from collections.abc import Iterator, Sequence
from itertools import chain

import torch

from mmrl.algorithms.advantages.decoupled import Decoupled
from mmrl.algorithms.advantages.group import GroupNorm, LeaveOneOut, ReinforcePlusPlus
from mmrl.core.protocols import Advantage
from mmrl.policies.text.packed.row import pack_row
from mmrl.policies.text.prompt.encode import Encoded
from tests.numerics.registry import Vector, check, close, tensor
from tests.numerics.rows import blocks, credited


def repeated(order: Sequence[int], batch_size: int, each: int, whole: int) -> Iterator[int]:
    """The rows of TRL's sampler from an order of prompts: batches, each prompt `each` times, each batch `whole` times.

    Ours draws prompts once and asks for samples by count; passes over a step's rollouts are the algorithm's.
    """
    for start in range(0, len(order) - batch_size + 1, batch_size):
        for _ in range(whole):
            yield from (prompt for prompt in order[start : start + batch_size] for _ in range(each))


@check("trl_repeat_sampler")
def trl_repeat_sampler(vector: Vector) -> None:
    params, outputs = vector.params, vector.outputs
    numbers = params["batch_size"], params["mini_repeat_count"], params["repeat_count"]
    shuffled = torch.randperm(params["num_samples"], generator=torch.Generator().manual_seed(params["seed"])).tolist()
    assert list(repeated(shuffled, *numbers)) == outputs["shuffled"]
    assert list(repeated(range(params["num_samples"]), *numbers)) == outputs["unshuffled"]
    assert len(outputs["shuffled"]) == outputs["length"]


@check("swift_advantages")
def swift_advantages(vector: Vector) -> None:
    inputs, params = vector.inputs, vector.params
    size, eps = params["num_generations"], params["eps"]
    ids = blocks(len(inputs["rewards_per_func"]), size)
    for case in vector.outputs["cases"]:
        name, scale = case["advantage_estimator"], case["scale_rewards"]
        rewards, weights, tolerance, factor = tensor(case["rewards"]), [1.0], 1e-6, 1.0
        part: Advantage = GroupNorm(scale=scale if scale != "gdpo" else "group", eps=eps)
        if scale == "gdpo":
            part = Decoupled(eps=params["gdpo_eps"], whiten_eps=params["gdpo_eps"])
            rewards, weights = tensor(inputs["rewards_per_func"]), inputs["reward_weights"]
        elif name == "rloo":
            # it divides leave-one-out differences by deviations, which is a constant times GroupNorm
            part, factor = (LeaveOneOut(), 1.0) if scale == "none" else (part, size / (size - 1))
        elif name == "reinforce_plus_plus" and scale == "batch":
            # its eps is added to the deviation, ours to the variance
            part, tolerance = ReinforcePlusPlus(baseline=True), eps * 4
        found = credited(part, rewards, ids, weights) * factor
        close(found, case["advantages"], tolerance, f"{name} {scale} {case['kl_in_reward']}")


@check("prefix_grouper_layout")
def prefix_grouper_layout(vector: Vector) -> None:
    """Its row of a group is ours without padding; positions go on after the prompt for every completion."""
    inputs, outputs = vector.inputs, vector.outputs
    size = vector.params["group_sizes"]
    for i, (ids, mask) in enumerate(zip(inputs["prefix_ids"], inputs["prefix_mask"], strict=True)):
        prompt = torch.tensor([token for token, real in zip(ids, mask, strict=True) if real])
        suffixes = torch.tensor(inputs["suffix_ids"][i * size : (i + 1) * size])
        lengths = torch.tensor(inputs["suffix_mask"][i * size : (i + 1) * size]).sum(1)
        # ours never feeds a completion's last token, which predicts nothing: one more is appended to feed all of them
        tokens = torch.nn.functional.pad(suffixes, (0, 1))
        encoded = Encoded("0", prompt, torch.arange(len(prompt))[None])
        row = pack_row([encoded], torch.zeros(size, dtype=torch.long), tokens, lengths + 1)
        real = int(lengths.sum()) + len(prompt)
        order = sorted(range(size), key=lambda row: -int(lengths[row]))
        fed = [suffixes[j, : lengths[j]].tolist() for j in order]
        assert row.token_ids[0].tolist() == [*prompt.tolist(), *chain.from_iterable(fed)]
        theirs = dict(zip(range(size), split(outputs["packed_ids"][i][len(prompt) : real], lengths.tolist()), strict=True))
        assert [theirs[j] for j in order] == fed
        places = dict(zip(range(size), split(outputs["position_ids"][i][len(prompt) : real], lengths.tolist()), strict=True))
        assert row.positions[0, 0].tolist() == [
            *outputs["position_ids"][i][: len(prompt)],
            *chain.from_iterable(places[j] for j in order),
        ]
        # the prompt's last token predicts the first one of every completion
        assert row.place[:, 0].tolist() == [len(prompt) - 1] * size


def split(row: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """The row cut into pieces of these lengths."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return [list(row[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
