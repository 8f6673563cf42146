"""Episodes made by hand: who wrote how many tokens, what the world said of each turn, and rollouts and scores of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmrl.core.samples import Segment, segments_of, turn_ids
from mmrl.core.types import Group, Observation, Prompt, Rollouts, Sample, Scores, Status, Turn
from tests.support.rows import Nothing

OBSERVED = 2
"""Tokens of an observation."""


@dataclass(frozen=True)
class Said:
    """One turn: how many tokens, what the world gave for it, and the state that it led to."""

    length: int = 1
    reward: float | None = None
    key: str = ""
    text: str = "a"
    used: bool = False
    """Was a tool used?"""
    wrong: bool = False
    """Does the world say that it was wrong?"""


def episode(*said: Said, answered: bool = True) -> Sample:
    """A sample of these turns; the world answers the last one, too, unless the model stopped there."""
    turns: list[Turn] = []
    pieces: list[tuple[str, int]] = []
    for k, one in enumerate(said):
        start = sum(length for _, length in pieces)
        pieces.append(("policy", one.length))
        last = k + 1 == len(said)
        facts = {name: 1.0 for name, so in (("tool", one.used), ("wrong", one.wrong)) if so}
        heard = Observation(reward=one.reward, key=one.key, facts=facts, done=last)
        turns.append(Turn(one.text, (start, start + one.length), heard if answered or not last else None))
        pieces += [] if last else [("environment", OBSERVED)]
    segments: tuple[Segment, ...] = segments_of(pieces)  # type: ignore[arg-type]
    tokens = tuple(range(sum(length for _, length in pieces)))
    return Sample(text=said[-1].text, token_ids=tokens, segments=segments, turns=tuple(turns))


def rollouts_of(*groups: Sequence[Sample]) -> Rollouts:
    """Rows of these groups, of ids 0, 1, ..; their own tokens may train."""
    rows = [(i, k, sample) for i, group in enumerate(groups) for k, sample in enumerate(group)]
    mask = torch.zeros(len(rows), max(len(sample.token_ids or ()) for _, _, sample in rows), dtype=torch.bool)
    for row, (_, _, sample) in zip(mask, rows, strict=True):
        ids = torch.tensor(turn_ids(sample.segments))
        row[: len(ids)] = ids >= 0
    made = tuple(Group(i, Prompt(str(i), answer="a"), tuple(group)) for i, group in enumerate(groups))
    ids, numbers = torch.tensor([i for i, _, _ in rows]), torch.tensor([k for _, k, _ in rows])
    return Rollouts(made, ids, numbers, mask, Nothing())


def scores_of(rollouts: Rollouts, weight: float = 1.0, **others: Sequence[float]) -> Scores:
    """The reward `environment` of the episodes with this weight, and others of weight 1 by name."""
    stated = [
        [one.observation.reward for one in sample.turns if one.observation is not None and one.observation.reward is not None]
        for _, sample in rollouts.samples()
    ]
    columns = [torch.tensor([sum(one) for one in stated], dtype=torch.float64)]
    columns += [torch.tensor(values, dtype=torch.float64) for values in others.values()]
    values = torch.stack(columns, dim=1)
    weights = torch.tensor([weight] + [1.0] * len(others), dtype=torch.float64)
    status = torch.where(values.isnan(), int(Status.FAILED), int(Status.OK))
    return Scores(("environment", *others), values, status, weights)


def per_turn(values: torch.Tensor, rollouts: Rollouts) -> list[list[float]]:
    """The one value that all actions of each turn have, by row."""
    found: list[list[float]] = []
    for row, (_, sample) in zip(values, rollouts.samples(), strict=True):
        own: list[float] = []
        for turn in sample.turns:
            mine = {float(x) for x in row[slice(*turn.span)]}
            assert len(mine) == 1, "the actions of a turn differ"
            own += mine
        found.append(own)
    return found
