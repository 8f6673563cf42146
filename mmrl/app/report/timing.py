"""Where the time of a run went: the parts of its steps on the whole, step by step, and in the last one."""

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
    decimals,
    range_with_width,
    tick_text,
    ticks,
)
from mmrl.app.report.rows import mean
from mmrl.app.run.folder import Line

PHASES = (("rollout", "rollout"), ("reward", "reward"), ("reading old and reference weights", "read"), ("update", "update"))
"""What the page calls a phase, and what metrics call it."""
REST = "everything else"
SHORT = {"reading old and reference weights": "reading", REST: "the rest"}
"""Phases whose names are too long for a lane."""
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
            told = [share_of(line, metric, seconds) for _, metric in PHASES]
            shares = [share if math.isfinite(share) else 0.0 for share in told]
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


LANE = 26.0
"""Height of a phase in a time line."""
NAMES_WIDTH = 96.0
"""Room for the names of the phases."""


def step_line(train: Sequence[Line]) -> Markup:
    """One step from its beginning to its end, a lane per phase in the order in which they come: SVG, empty without times.

    Means over all steps; what no phase timed stands at the end.
    """
    found = phases(train)
    if not found:
        return Markup("")
    whole = sum(phase.seconds for phase in found)
    marks = [t for t in ticks(0.0, whole, 6) if t <= whole * 1.0001]
    x = Scale(0.0, whole, NAMES_WIDTH, WIDTH - RIGHT)
    height = LANE * len(found) + BOTTOM
    digits = decimals(marks)
    body = [
        Markup(
            '<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1:.1f}"/>'
            '<text class="tick" x="{0:.1f}" y="{2:.1f}" text-anchor="middle">{3}</text>'
        ).format(x(t), height - BOTTOM, height - 8, f"{tick_text(t, digits)} s")
        for t in marks
    ]
    start = 0.0
    for i, phase in enumerate(found):
        left, right, top = x(start), x(start + phase.seconds), LANE * i + 4
        body.append(
            Markup(
                '<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>'
                '<rect class="band {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="3"><title>{}</title></rect>'
            ).format(
                NAMES_WIDTH - 8,
                top + 13,
                SHORT.get(phase.name, phase.name),
                phase.style,
                left,
                top,
                max(1.0, right - left),
                LANE - 8,
                f"{phase.name}: {phase.seconds:.3g} s from {start:.3g} s on",
            )
        )
        start += phase.seconds
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, "Time line of a step", Markup("").join(body)
    )
