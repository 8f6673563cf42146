"""Episodes by their turns, and completions by their segments: which action belongs to which, and what each earned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Observation, Sample, turn_ids
from mmrl.core.types import Rollouts, Scores, Status


@dataclass(frozen=True)
class Turns:
    """The turns of one group's samples, in order of time within each."""

    totals: Float[Tensor, " m"]
    """Total reward of the turn's sample."""
    returns: Float[Tensor, " m"]
    """Discounted reward from the turn on."""
    trajectory: Int[Tensor, " m"]
    """A number of the turn's sample."""
    observation: Int[Tensor, " m"]
    """Equal where the policy had been shown the same directly before the turn."""
    number: Int[Tensor, " m"]
    """The turn's own, from 0."""


def turn_numbers(rollouts: Rollouts) -> Int[Tensor, "n t"]:
    """The turn of every action, from 0, and -1 where there is none. Without segments a sample has one turn."""
    found = torch.zeros_like(rollouts.action_mask, dtype=torch.long)
    for row, (_, sample) in zip(found, rollouts.samples(), strict=True):
        ids = turn_ids(sample.segments)[: len(row)]
        row[: len(ids)] = torch.tensor(ids, dtype=torch.long).clamp(min=0)
    return torch.where(rollouts.action_mask, found, -1)


def returns_of(
    rewards: Float[Tensor, " m"], trajectory: Int[Tensor, " m"], gamma: float, cuts: Sequence[bool] = ()
) -> Float[Tensor, " m"]:
    """R_t = sum_k gamma^(k - t) r_k over the later turns of the same trajectory; rows are in order of time.

    A turn that cuts keeps its own reward alone, and turns before it get nothing from it or behind it.
    """
    found, ahead = torch.zeros_like(rewards), dict[int, float]()
    for i in reversed(range(len(rewards))):
        one, cut = int(trajectory[i]), bool(cuts) and cuts[i]
        found[i] = float(rewards[i]) + (0.0 if cut else gamma * ahead.get(one, 0.0))
        ahead[one] = 0.0 if cut else float(found[i])
    return found


def past_observations(turns: Turns, most: int) -> list[tuple[int, ...]]:
    """The observations before every turn and before the turns in front of it, its own last: at most `most` of them."""
    seen: dict[int, tuple[int, ...]] = {}
    found: list[tuple[int, ...]] = []
    for one, shown in zip(map(int, turns.trajectory), map(int, turns.observation), strict=True):
        seen[one] = (*seen.get(one, ()), shown)[-most:]
        found.append(seen[one])
    return found


def observations_of(sample: Sample) -> list[Observation | None]:
    """The world's answer to each turn; an episode of an earlier step no longer has them."""
    return [turn.observation for turn in sample.turns]


def uses(rollouts: Rollouts, fact: str = "tool") -> Bool[Tensor, " n"]:
    """True for rows of which some observation states the fact: `tool`, where a tool was used."""
    answers = [observations_of(sample) for _, sample in rollouts.samples()]
    return torch.tensor([any(states_fact(one, fact) for one in row) for row in answers], dtype=torch.bool)


def states_fact(heard: Observation | None, fact: str) -> bool:
    return heard is not None and heard.facts.get(fact, 0.0) > 0


@dataclass(frozen=True)
class TurnTable:
    """The turns of all rows that have a total, group by group as `Turns`, and the way back to actions."""

    scores: Scores
    rollouts: Rollouts
    keep: Bool[Tensor, " n"]
    gamma: float = 1.0
    reward: str = "environment"
    """The reward that adds up what observations state."""
    cut: str = ""
    """The fact of an observation that says that returns end at its turn; empty: none does."""

    def deal(self, f: Callable[[Turns], Tensor]) -> Float[Tensor, "n t"]:
        """f of every group's turns, given to their actions; 0 where there is none and in rows that are not kept."""
        numbers = turn_numbers(self.rollouts)
        count = [max(1, int(row.max()) + 1) if len(row) else 1 for row in numbers]
        values = torch.zeros(len(numbers), max(count, default=1), dtype=torch.float64, device=numbers.device)
        pairs, totals = list(self.rollouts.samples()), self.scores.total().double()
        for group_id in dict.fromkeys(map(int, self.rollouts.group_ids[self.keep])):
            rows = list(map(int, ((self.rollouts.group_ids == group_id) & self.keep).nonzero()[:, 0]))
            turns = self._turns([(i, pairs[i][1], count[i]) for i in rows], totals)
            values[turns.trajectory, turns.number] = f(turns).to(values)
        found = values.gather(1, numbers.clamp(min=0))
        return torch.where((numbers >= 0) & self.keep[:, None], found, 0.0)

    def _turns(self, rows: list[tuple[int, Sample, int]], totals: Tensor) -> Turns:
        """The turns of one group: its rows, each with its sample and how many turns it has."""
        names: dict[object, int] = {}
        places = [(i, k) for i, _, count in rows for k in range(count)]
        seen = [names.setdefault(name, len(names)) for i, sample, count in rows for name in states(sample, i, count)]
        rewards = [reward for i, sample, count in rows for reward in self._rewards(i, sample, count, float(totals[i]))]
        trajectory, number = torch.tensor(places, dtype=torch.long).view(-1, 2).unbind(1)
        cuts = [states_fact(one, self.cut) for _, sample, count in rows for one in padded(observations_of(sample), count)]
        returns = returns_of(totals.new_tensor(rewards), trajectory, self.gamma, cuts)
        return Turns(totals[trajectory], returns, trajectory, torch.tensor(seen, dtype=torch.long), number)

    def _rewards(self, row: int, sample: Sample, count: int, total: float) -> list[float]:
        """Rewards of a sample's turns, which add up to its total: what no observation states is the last turn's."""
        stated = [self._weight(row) * ((one and one.reward) or 0.0) for one in padded(observations_of(sample), count)]
        stated[-1] += total - sum(stated)
        return stated

    def _weight(self, row: int) -> float:
        """The weight of the reward that adds up what observations state; 0 where it is missing, or says nothing of the row."""
        if self.reward not in self.scores.names:
            return 0.0
        column = self.scores.names.index(self.reward)
        return float(self.scores.weights[column]) * (int(self.scores.status[row, column]) == Status.OK)


def padded(heard: Sequence[Observation | None], count: int) -> list[Observation | None]:
    """The answers to so many turns; None where there is none."""
    return [*heard[:count], *[None] * (count - len(heard))]


def states(sample: Sample, row: int, count: int) -> list[object]:
    """A name for what each turn began from: the prompt, then the keys of observations; what is not known is like nothing else."""
    keys = [one.key if one else "" for one in observations_of(sample)[: count - 1]]
    return ["", *(key or (row, k) for k, key in enumerate(keys)), *((row, k) for k in range(len(keys), count - 1))]


SURE = 0.9
"""The probability from which on an action is no decision, in the chain form of SPO (arXiv:2505.23564), not single-stream SPO."""


def cutpoints(probabilities: Sequence[float], interval: int = 5, sure: float = SURE) -> list[int]:
    """The last actions of the prefixes to value: those before every `interval`-th unsure action; -1 is the prompt alone."""
    return [i - 1 for i, probability in enumerate(probabilities) if probability < sure][::interval]


def segment_advantages(
    probabilities: Sequence[float], cuts: Sequence[int], values: Sequence[float], reward: float, sure: float = SURE
) -> list[float]:
    """Value at the end of an action's segment less that at its beginning; 0 before the first cut and for sure actions.

    Args:
        probabilities: of a completion's actions when they were sampled.
        cuts: rising, as from `cutpoints`.
        values: mean rewards of the continuations from each cut; the last segment ends at `reward`.
    """
    found = [0.0] * len(probabilities)
    if not cuts:
        return found
    ends, after = [*cuts[1:], len(probabilities) - 1], [*values[1:], reward]
    for begin, end, before, then in zip(cuts, ends, values, after, strict=True):
        for i in range(begin + 1, end + 1):
            found[i] = then - before if probabilities[i] < sure else 0.0
    return found


def probabilities_of(rollouts: Rollouts) -> list[list[float]]:
    """How likely each row's actions were when they were sampled, in order; NaN where the row was not sampled as it is trained.

    Raises ValueError if the policy notes no probabilities of actions that could be told apart by them.
    """
    noted = rollouts.recorded.get(ROLLOUT_LOGPROBS)
    if noted is None or any(sample.token_ids is None for _, sample in rollouts.samples()):
        raise ValueError(
            "segments of an answer end where the sampler noted an unlikely token, and this policy's samples have no tokens: "
            "take a text policy"
        )
    return [list(map(float, row[mask].double().exp())) for row, mask in zip(noted, rollouts.action_mask, strict=True)]
