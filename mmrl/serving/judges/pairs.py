"""Comparisons of a group's samples two at a time, each pair in both orders. Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from math import nan

from PIL import Image

from mmrl.core.samples import Scored
from mmrl.serving.judges.judge import Endpoint, JudgeError, Question, Reply, ask, reply_of
from mmrl.serving.judges.verdicts import preference

Pair = tuple[int, int]
"""Numbers of the samples in the order they are shown."""


def schedule(count: int, opponents: int = 0) -> list[Pair]:
    """Ordered pairs: everyone against everyone (opponents = 0), or against the next n in a ring; always both orders.

    Raises ValueError for fewer than two samples, or opponents below 0.
    """
    if count < 2 or opponents < 0:
        raise ValueError(f"{count} samples with {opponents} opponents each cannot be compared: needs two samples, opponents >= 0")
    steps = range(1, count) if opponents == 0 else range(1, min(opponents, count - 1) + 1)
    pairs = {tuple(sorted((i, (i + step) % count))) for i in range(count) for step in steps}
    return [pair for a, b in sorted(pairs) for pair in ((a, b), (b, a))]


def ask_pairs(
    server: Endpoint, text: str, pictures: Sequence[Image.Image], opponents: int = 0, read: Callable[[Reply], float] = preference
) -> list[Scored]:
    """Win rates of pictures by a judge, of whose answers `read` reads the share of the first; JudgeError if it judged no pair."""
    pairs, shares, errors = schedule(len(pictures), opponents), dict[Pair, float](), list[JudgeError]()
    replies = ask(server, [Question(text, [pictures[a], pictures[b]]) for a, b in pairs])
    for pair, reply in zip(pairs, replies, strict=True):
        try:
            shares[pair] = read(reply_of(reply))
        except JudgeError as error:
            errors.append(error)
    if not shares:
        raise JudgeError(f"the judge said of no pair which one is better: {errors[0]}")
    return win_rates(len(pictures), pairs, shares)


def win_rates(count: int, pairs: Sequence[Pair], outcomes: Mapping[Pair, float | None]) -> list[Scored]:
    """Mean share each sample won, over the pairs judged in both orders, so that a liking for the first one cancels.

    `outcomes` are the share of the first of a pair, None where the judgement failed.
    """
    won: list[list[float]] = [[] for _ in range(count)]
    left_out = [0] * count
    biases: list[float] = []
    for a, b in (pair for pair in pairs if pair[0] < pair[1]):
        there, back = outcomes.get((a, b)), outcomes.get((b, a))
        if there is None or back is None:
            left_out[a] += 1
            left_out[b] += 1
            continue
        share = (there + 1 - back) / 2
        won[a].append(share)
        won[b].append(1 - share)
        biases.append((there + back) / 2)
    first = sum(biases) / len(biases) if biases else nan
    return [
        Scored(
            sum(shares) / len(shares) if shares else nan,
            {"comparisons": float(len(shares)), "left_out": float(out), "first_wins": first},
        )
        for shares, out in zip(won, left_out, strict=True)
    ]
