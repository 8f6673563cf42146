"""The best mixture of data sets, from runs of a few: a quadratic surface through their scores (MoDoMoDo, arXiv:2505.24871).

From summaries: score = a + b'w + w'Cw by least squares over the runs, and its largest value on a grid of shares. As shares add up
to 1, this is the same as w'Cw alone, which has one solution.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmrl.app.config import run as configs
from mmrl.app.config.data import MixedData
from mmrl.app.run.folder import RunDir

Array = NDArray[np.float64]
FIGURE = "eval/total"


@dataclass(frozen=True)
class Surface:
    """The score that a mixture is expected to reach."""

    names: tuple[str, ...]
    """Of the data sets."""
    coefficients: Array

    def __call__(self, shares: Sequence[Sequence[float]] | Array) -> Array:
        return products(np.asarray(shares, dtype=np.float64)) @ self.coefficients

    def best(self, steps: int = 10) -> tuple[dict[str, float], float]:
        """The mixture of shares of 1 / steps with the largest expected score, and this score."""
        grid = np.array(list(shares_of(len(self.names), steps)), dtype=np.float64) / steps
        expected = self(grid)
        at = int(expected.argmax())
        return dict(zip(self.names, map(float, grid[at]), strict=True)), float(expected[at])


def products(shares: Array) -> Array:
    """w_i w_j for i <= j, of every mixture."""
    pairs = combinations_with_replacement(range(shares.shape[1]), 2)
    return np.stack([shares[:, i] * shares[:, j] for i, j in pairs], 1)


def fit(mixtures: Sequence[Mapping[str, float]], scores: Sequence[float]) -> Surface:
    """The surface of these runs; ValueError for other names, or for too few runs or mixtures too alike to tell it."""
    names = tuple(mixtures[0]) if mixtures else ()
    if odd := next((one for one in mixtures if set(one) != set(names)), None):
        raise ValueError(f"one run mixes {', '.join(names)}, and another one {', '.join(odd)}: take runs of the same data sets")
    unknowns = len(names) + len(names) * (len(names) - 1) // 2
    shares = np.array([[one[name] for name in names] for one in mixtures], dtype=np.float64).reshape(len(mixtures), len(names))
    rows = products(shares) if names else shares
    if not names or len(mixtures) < unknowns or np.linalg.matrix_rank(rows) < unknowns:
        raise ValueError(
            f"{len(mixtures)} runs do not tell a surface of {unknowns} numbers for {len(names)} data sets: make {unknowns} runs "
            "or more, of mixtures that differ in more than one direction"
        )
    return Surface(names, np.linalg.lstsq(rows, np.asarray(scores, dtype=np.float64), rcond=None)[0].astype(np.float64))


def shares_of(count: int, steps: int) -> Iterator[tuple[int, ...]]:
    """All ways to divide so many steps among so many."""
    if count == 1:
        yield (steps,)
        return
    for own in range(steps + 1):
        yield from ((own, *others) for others in shares_of(count - 1, steps - own))


def of_run(folder: Path) -> tuple[dict[str, float], float]:
    """A run's mixture and the last score of its held-out prompts; ValueError without either."""
    run = RunDir(folder)
    data = configs.load(str(run.config_file)).config.data
    weights = data.weights if isinstance(data, MixedData) else None
    if weights is None:
        raise ValueError(f"{folder} is no run of [[data]] tables with weights: give runs of one mixture each")
    found = [line[FIGURE] for line in run.read_metrics().lines if FIGURE in line]
    if not found:
        raise ValueError(f"{folder} has no {FIGURE}: give it [evaluation.data], and evaluate_every")
    if not np.isfinite(found[-1]):
        raise ValueError(f"{folder} has {FIGURE} = {found[-1]} at last: leave the run out, or go on with it")
    return weights, float(found[-1])


def best_mixture(folders: Sequence[Path]) -> str:
    """Sentences about the best mixture by these runs."""
    known = [of_run(folder) for folder in folders]
    surface = fit([weights for weights, _ in known], [score for _, score in known])
    weights, expected = surface.best()
    tried, score = max(known, key=lambda pair: pair[1])
    told = [", ".join(f"{name} {share:.2g}" for name, share in one.items()) for one in (weights, tried)]
    return (
        f"expected best: {told[0]}, {FIGURE} {expected:.3f}; best of the {len(known)} runs: {told[1]}, {score:.3f}. The surface "
        "is a guess between runs: train the mixture before you believe it."
    )
