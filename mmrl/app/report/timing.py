"""Where the time of a run went: on the whole, step by step, and inside a typical step and the slowest one."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any

from markupsafe import Markup

from mmrl.app.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Scale,
    axes,
    canvas,
    decimals,
    inside,
    range_with_width,
    tick_text,
    ticks,
)
from mmrl.app.report.rows import mean, number_of
from mmrl.app.run.folder import Line, read_lines

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
        seconds = number_of(line.get("time/step_s"))
        if 0 < seconds < math.inf:
            seconds_shares = [share_of(line, metric, seconds) for _, metric in PHASES]
            shares = [share if math.isfinite(share) else 0.0 for share in seconds_shares]
            found.append(Moment(float(line["step"]), seconds, (*shares, max(0.0, 1.0 - sum(shares)))))
    return found


def share_of(line: Line, phase: str, seconds: float) -> float:
    """The share that was measured, over all processes; in runs that did not, that of the main process."""
    measured = number_of(line.get(f"time/{phase}_share"))
    return measured if math.isfinite(measured) else number_of(line.get(f"time/{phase}_s")) / seconds


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
    trainer, sampler = (mean(number_of(line.get(f"time/idle/{who}")) for line in train) for who in ("trainer", "sampler"))
    if math.isnan(trainer) or math.isnan(sampler):
        return ""
    lag = max(number_of(line.get("rollout/staleness")) for line in train)
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


LANES = (*(metric for _, metric in PHASES), REST)
"""Names of the phases in spans, and the name of the time outside of them."""
SHORT = {"read": "reading", REST: "the rest"}
LANE = 26.0
"""Height of a phase in a time line."""
NAMES_WIDTH = 96.0
"""Room for the names of the phases."""
LEAST_SHARE = 0.002
"""Share of a step; shorter gaps are not drawn."""
TITLES = "Thin lines are what ran inside a phase; point at a bar for its name and seconds."
MUCH_SLOWER = 1.2
"""Times a typical step, from which on it is said what a slow one waited for."""


@dataclass(frozen=True)
class StepSpan:
    """A stretch of a step in seconds from its beginning: `StepSpan("generate", 0.01, 0.29)`."""

    name: str
    start: float
    length: float

    @property
    def end(self) -> float:
        return self.start + self.length

    def holds(self, other: "StepSpan") -> bool:
        """Does the other lie in it? Ends are rounded apart."""
        return self.start <= other.start and other.end <= self.end + 1e-3


@dataclass(frozen=True)
class RecordedStep:
    """A step whose spans are known."""

    number: int
    seconds: float
    is_first: bool
    """True for the first one of a process, which warms libraries up."""
    spans: tuple[StepSpan, ...]
    beside: Mapping[str, tuple[StepSpan, ...]] = field(default_factory=dict[str, tuple[StepSpan, ...]])
    """Thread -> what it sampled meanwhile."""

    @property
    def phases(self) -> list[StepSpan]:
        return [span for span in self.spans if span.name in LANES]

    @property
    def inner(self) -> list[StepSpan]:
        return [span for span in self.spans if span.name not in LANES]

    @property
    def gaps(self) -> list[StepSpan]:
        """The time that lies in no phase."""
        found, at = list[StepSpan](), 0.0
        for span in [*sorted(self.phases, key=lambda one: one.start), StepSpan("", self.seconds, 0.0)]:
            if span.start - at > LEAST_SHARE * self.seconds:
                found.append(StepSpan(REST, at, span.start - at))
            at = max(at, span.end)
        return found

    def total(self, name: str) -> float:
        return sum((span.length for span in (*self.phases, *self.gaps, *self.inner) if span.name == name), 0.0)


def read_steps(file: Path) -> list[RecordedStep]:
    """The steps of spans.jsonl; ValueError naming the line that says none."""
    found = list[RecordedStep]()
    for number, line in enumerate(read_lines(file).lines, start=1):
        try:
            beside = {str(name).removeprefix("mmrl-"): spans_of(listed) for name, listed in line.get("beside", {}).items()}
            numbers = int(line["step"]), float(line["seconds"]), bool(line["is_first"])
            found.append(RecordedStep(*numbers, spans_of(line["spans"]), beside))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{file}, line {number} is no step with its spans: remove the line") from None
    return [step for step in found if step.seconds > 0]


def spans_of(listed: Iterable[Any]) -> tuple[StepSpan, ...]:
    return tuple(StepSpan(str(name), float(start), float(length)) for name, start, length in listed)


def step_lines(steps: Sequence[RecordedStep]) -> list[Chart]:
    """A typical step, whose length is the median, and the slowest one; without the first of a process, where there are others."""
    steps = [step for step in steps if not step.is_first] or steps
    if not steps:
        return []
    middle = median_low(step.seconds for step in steps)
    typical = min(steps, key=lambda step: abs(step.seconds - middle))
    slowest = max(steps, key=lambda step: step.seconds)
    found = [Chart(f"A typical step ({typical.number}): {seconds(typical.seconds)}", draw(typical), TITLES)]
    if slowest is not typical:
        title = f"The slowest step ({slowest.number}): {seconds(slowest.seconds)}"
        found.append(Chart(title, draw(slowest), waited_for(slowest, typical)))
    return found


def waited_for(slow: RecordedStep, typical: RecordedStep) -> str:
    """Where the slow step lost its time: the phase that grew most, and what is known inside of it."""
    if slow.seconds < MUCH_SLOWER * typical.seconds:
        return "Hardly longer than a typical one."
    phase = max(LANES, key=lambda name: slow.total(name) - typical.total(name))
    more = slow.total(phase) - typical.total(phase)
    words = f"{seconds(more)} more than a typical one in {SHORT.get(phase, phase)}"
    bounds = [span for span in (*slow.phases, *slow.gaps) if span.name == phase]
    inside = {one.name for one in slow.inner for span in bounds if span.holds(one)}
    if not inside:
        return f"{words}."
    name = max(sorted(inside), key=lambda one: slow.total(one) - typical.total(one))
    part = slow.total(name) - typical.total(name)
    return f"{words}, of it {seconds(max(0.0, part))} in {name}."


def seconds(value: float) -> str:
    return f"{value:.3g} s"


def draw(step: RecordedStep) -> Markup:
    """A lane per phase, with everything at the time at which it happened; what ran inside a phase is a darker line in its bar.

    Below these is a lane per thread that sampled beside training.
    """
    marks = [t for t in ticks(0.0, step.seconds, 6) if t <= step.seconds * 1.0001]
    x, digits = Scale(0.0, step.seconds, NAMES_WIDTH, WIDTH - RIGHT), decimals(marks)
    bars = {name: [one for one in (*step.phases, *step.gaps) if one.name == name] for name in LANES}
    shown = [name for name in LANES if bars[name]]
    height = LANE * (len(shown) + len(step.beside)) + BOTTOM
    body = [
        Markup(
            '<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1:.1f}"/>'
            '<text class="tick" x="{4:.1f}" y="{2:.1f}" text-anchor="{5}">{3}</text>'
        ).format(x(t), height - BOTTOM, height - 8, text, *inside(x(t), text))
        for t in marks
        for text in [f"{tick_text(t, digits)} s"]
    ]
    for row, name in enumerate([*shown, *step.beside]):
        top = LANE * row + 4
        body.append(
            Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>').format(
                NAMES_WIDTH - 8, top + 13, SHORT.get(name, name)
            )
        )
        if row >= len(shown):
            # what is no phase has the colour of sampling
            colours = [(one, LANES.index(one.name) if one.name in LANES else 0) for one in step.beside[name]]
            body += [bar(x, one, top, LANE - 8, f"band p{colour}") for one, colour in colours]
            continue
        body += [bar(x, one, top, LANE - 8, f"band p{LANES.index(name)}") for one in bars[name]]
        held = [one for one in step.inner if any(phase.holds(one) for phase in bars[name])]
        body += [bar(x, one, top + LANE - 12, 4.0, "inner") for one in held]
    return canvas(body, f"Time line of step {step.number}", height)


def bar(x: Scale, span: StepSpan, top: float, height: float, style: str) -> Markup:
    title = f"{SHORT.get(span.name, span.name)}: {seconds(span.length)} from {seconds(span.start)} on"
    width = max(1.0, x(span.end) - x(span.start))
    return Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"><title>{}</title></rect>').format(
        style, x(span.start), top, width, height, title
    )
