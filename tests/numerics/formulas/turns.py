"""Formulas for answers of several turns: which tokens are the policy's own, and credit by what was seen before each turn.

Nothing samples such answers yet; the formulas stand here with their checks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.runtime.tensors import within

Segment = tuple[str, int]
"""Who wrote (user, assistant, tool), and how many tokens."""


def after_prompt(segments: Sequence[Segment]) -> Sequence[Segment]:
    """The answer: everything from the first turn of the assistant on."""
    first = next(i for i, (who, _) in enumerate(segments) if who == "assistant")
    return segments[first:]


def turn_index(segments: Sequence[Segment]) -> Int[Tensor, " t"]:
    """The number of the turn that every token of an answer belongs to, from 0; -1 for tokens the policy did not write."""
    numbers: list[int] = []
    turn = -1
    for who, length in after_prompt(segments):
        turn += who == "assistant"
        numbers += [turn if who == "assistant" else -1] * length
    return torch.tensor(numbers)


def kept_length(segments: Sequence[Segment], budget: int) -> int:
    """Tokens of an answer that stay within a budget: a turn may be cut, an observation that would reach it is not begun."""
    kept = 0
    for who, length in after_prompt(segments):
        if who == "assistant":
            kept += min(length, budget - kept)
        elif kept + length >= budget:
            break
        else:
            kept += length
        if kept >= budget:
            break
    return ends_with_turn(segments, kept)


def ends_with_turn(segments: Sequence[Segment], length: int) -> int:
    """The length without an observation at its end."""
    turns = turn_index(segments)[:length]
    own = (turns >= 0).nonzero()
    return int(own[-1]) + 1 if len(own) else 0


def turn_mean_shares(turns: Int[Tensor, " t"]) -> Float[Tensor, " k"]:
    """The share of a token of each of k turns where every turn counts the same, and every token of a turn."""
    lengths = torch.bincount(turns[turns >= 0])
    return 1 / (len(lengths) * lengths)


def returns_of(rewards: Float[Tensor, " n"], trajectory: Int[Tensor, " n"], gamma: float) -> Float[Tensor, " n"]:
    """R_t = sum_k gamma^(k - t) r_k over the later turns of the same trajectory; rows are in order of time."""
    out = torch.zeros_like(rewards)
    for one in sorted(set(map(int, trajectory))):
        rows, ahead = (trajectory == one).nonzero()[:, 0], 0.0
        for row in map(int, rows.flip(0)):
            ahead = float(rewards[row]) + gamma * ahead
            out[row] = ahead
    return out


@dataclass(frozen=True)
class Turns:
    """The turns of one prompt's trajectories, in order of time within each."""

    totals: Float[Tensor, " n"]
    """Total reward of the turn's trajectory."""
    returns: Float[Tensor, " n"]
    """Discounted reward from the turn on."""
    trajectory: Int[Tensor, " n"]
    observation: Int[Tensor, " n"]
    """Equal where the policy had seen the same before the turn."""


def step_group_advantages(
    turns: Turns,
    weight: float = 1.0,
    deviation: bool = False,
    eps: float = 1e-6,
) -> Float[Tensor, " n"]:
    """A = A_episode + weight A_step of the turns of one prompt (GiGPO, arXiv:2505.10978).

    A_episode compares the trajectory's total reward with those of the other trajectories, each counted once; A_step compares the
    return with those of turns that began with the same observation. `deviation` divides both by the unbiased deviation + eps. A
    lone turn of its observation gets 0 from A_step; a lone trajectory keeps its total.
    """
    totals, trajectory = turns.totals, turns.trajectory
    first = torch.stack([(trajectory == one).nonzero()[0, 0] for one in sorted(set(map(int, trajectory)))])
    each = totals[first]
    mean, spread = (each.mean(), each.std()) if len(each) > 1 else (each.new_zeros(()), each.new_ones(()))
    episode = (totals - mean) / (spread + eps) if deviation else totals - mean

    def centre(values: Tensor) -> Tensor:
        if len(values) == 1:
            return torch.zeros_like(values)
        return (values - values.mean()) / (values.std() + eps) if deviation else values - values.mean()

    return episode + weight * within(turns.observation, turns.returns, centre)


def history_advantages(
    turns: Turns,
    history: int,
    power: float = 1.0,
    base: bool = False,
    deviation: bool = True,
    eps: float = 1e-6,
) -> Float[Tensor, " n"]:
    """A = sum_k w_k a_k / sum_k w_k, a_k among turns whose last k observations agree, w_k = (k + 1)^power (HGPO).

    From a recipe beside verl-agent; its paper's id was not found. k = 1 ... history + 1, as far as a trajectory has that many
    turns. a_k divides by the biased deviation + eps; clusters of one turn are left out. `base` adds k = 0, the episode's total
    among all turns, by the unbiased deviation. A turn with no cluster at all gets 0.
    """
    totals, returns = turns.totals, turns.returns
    pasts = past_observations(turns.trajectory, turns.observation, history + 1)
    top, bottom = torch.zeros_like(returns), torch.zeros_like(returns)
    if base:
        scale = totals.std() + eps if deviation else totals.new_ones(())
        top, bottom = (totals - totals.mean()) / scale, torch.ones_like(totals)
    for k in range(1, history + 2):
        clusters: dict[tuple[int, ...], list[int]] = {}
        for row, past in enumerate(pasts):
            if len(past) >= k:
                clusters.setdefault(past[-k:], []).append(row)
        for rows in clusters.values():
            if len(rows) > 1:
                values = returns[rows]
                scale = values.std(correction=0) + eps if deviation else 1.0
                top[rows] += (k + 1) ** power * (values - values.mean()) / scale
                bottom[rows] += (k + 1) ** power
    return torch.where(bottom > 0, top / bottom.clamp(min=1e-12), 0.0)


def past_observations(trajectory: Int[Tensor, " n"], observation: Int[Tensor, " n"], most: int) -> list[tuple[int, ...]]:
    """The last observations of every turn's trajectory, its own last, at most so many."""
    seen: dict[int, tuple[int, ...]] = {}
    out: list[tuple[int, ...]] = []
    for one, now in zip(map(int, trajectory), map(int, observation), strict=True):
        seen[one] = (*seen.get(one, ()), now)[-most:]
        out.append(seen[one])
    return out


def branches(draw: float, first_entropy: float, entropy: float, weight: float = 0.2, chance: float = 0.5) -> bool:
    """clamp(draw - weight (entropy - first_entropy), 0, 1) <= chance: does a rollout branch after a tool (ARPO)?

    arXiv:2507.19849. `draw` is uniform in [0, 1); entropies are normalized, before the first tool and after this one.
    """
    return min(1.0, max(0.0, draw - weight * (entropy - first_entropy))) <= chance


def normalized_entropy(top_logprobs: Sequence[Sequence[float]], vocabulary: int) -> float:
    """-sum p ln p over the likeliest tokens of the first tokens after a tool, divided by ln(vocabulary): a sum, not a mean."""
    return sum(-math.exp(x) * x for row in top_logprobs for x in row) / math.log(vocabulary)
