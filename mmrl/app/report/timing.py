"""Where the time of a run went: the parts of its steps on the whole, and step by step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mmrl.app.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    axes,
    canvas,
    range_with_width,
    ticks,
)
from mmrl.app.report.rows import mean
from mmrl.app.run.folder import Line

PHASES = (("rollout", "rollout"), ("reward", "reward"), ("reading old and reference weights", "read"), ("update", "update"))
"""Names of the phases on the page, and in the metrics."""
REST = "everything else"
MOST_POINTS = 150
"""A longer band is drawn as means of neighbouring steps."""


@dataclass(frozen=True)
class Phase:
    """A part of a step."""

    name: str
    style: str
    seconds: float
    """Mean over the steps."""
    share: float
    """Part of the time of all steps."""
    last: float
    """Part of the last step's time."""


@dataclass(frozen=True)
class Moment:
    """One step's seconds, and the parts of it: a share for each of PHASES, then the rest."""

    step: float
    seconds: float
    shares: tuple[float, ...]


def moments(train: Sequence[Line]) -> list[Moment]:
    """The steps whose time is known."""
    found: list[Moment] = []
    for line in train:
        seconds = value(line, "time/step_s")
        if 0 < seconds < math.inf:
            seconds_shares = [share_of(line, metric, seconds) for _, metric in PHASES]
            shares = [share if math.isfinite(share) else 0.0 for share in seconds_shares]
            found.append(Moment(float(line["step"]), seconds, (*shares, max(0.0, 1.0 - sum(shares)))))
    return found


def share_of(line: Line, phase: str, seconds: float) -> float:
    """The share that was measured, over all processes; in runs that did not, that of the main process."""
    measured = value(line, f"time/{phase}_share")
    return measured if math.isfinite(measured) else value(line, f"time/{phase}_s") / seconds


def value(line: Line, name: str) -> float:
    found = line.get(name)
    return float(found) if isinstance(found, int | float) else math.nan


def phases(train: Sequence[Line]) -> list[Phase]:
    """Every phase that any step has timed, and the rest."""
    found = moments(train)
    if not found:
        return []
    whole = sum(moment.seconds for moment in found)
    rows: list[Phase] = []
    for i, name in enumerate([*(name for name, _ in PHASES), REST]):
        spent = sum(moment.seconds * moment.shares[i] for moment in found)
        if spent > 0 or name == REST:
            rows.append(Phase(name, f"p{i}", spent / len(found), spent / whole, found[-1].shares[i]))
    return rows


def beside_sentence(train: Sequence[Line]) -> str:
    """A sentence on who waited for whom in a run that sampled ahead of its training; empty for others."""
    waits = {who: [x for line in train if math.isfinite(x := value(line, f"time/idle/{who}"))] for who in ("trainer", "sampler")}
    if not all(waits.values()):
        return ""
    trainer, sampler = (mean(shares) for shares in waits.values())
    lag = max(value(line, "rollout/staleness") for line in train)
    return (
        f"samples were drawn beside training, by weights of {lag:.0f} step(s) before: training waited for samples "
        f"{trainer:.0%} of its time, and sampling waited {sampler:.0%} of its own for weights"
    )


def time_band(train: Sequence[Line]) -> Markup:
    """The shares of every step, stacked: SVG, empty for fewer than two steps."""
    found = moments(train)
    if len(found) < 2:
        return Markup("")
    size = -(-len(found) // MOST_POINTS)
    chunks = [found[start : start + size] for start in range(0, len(found), size)]
    steps = [mean(moment.step for moment in chunk) for chunk in chunks]
    x = Scale(*range_with_width(min(steps), max(steps)), LEFT, WIDTH - RIGHT)
    y = Scale(0.0, 100.0, HEIGHT - BOTTOM, TOP)
    below = [0.0] * len(chunks)
    bands: list[Markup] = []
    for i, name in enumerate([*(name for name, _ in PHASES), REST]):
        above = [low + 100 * mean(moment.shares[i] for moment in chunk) for low, chunk in zip(below, chunks, strict=True)]
        if max(high - low for high, low in zip(above, below, strict=True)) > 0:
            corners = [*zip(steps, above, strict=True), *reversed([*zip(steps, below, strict=True)])]
            points = " ".join(f"{x(step):.1f},{y(share):.1f}" for step, share in corners)
            bands.append(Markup('<polygon class="band p{}" points="{}"><title>{}</title></polygon>').format(i, points, name))
        below = above
    x_ticks = [t for t in ticks(min(steps), max(steps), 6) if t.is_integer() and min(steps) <= t <= max(steps)]
    return canvas(
        [*bands, axes(x, y, x_ticks, ticks(0.0, 100.0, 5), unit=" %", x_name="step")], "Shares of every step's time, stacked"
    )
