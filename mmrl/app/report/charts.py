"""Charts as inline SVG, coloured by the page's style sheet so that they follow its light and dark scheme."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape

WIDTH, HEIGHT = 380.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 12.0, 10.0, 26.0
LETTER = 7.0
"""About the width of a letter of a label."""
MAX_POINTS = 300
"""A longer curve is drawn as means of neighbouring steps."""
LARGEST, SMALLEST = 1e300, 1e-300
"""Beyond them differences overflow or vanish: such values are no points of a curve, or 0."""
MOST_BARS = 12
"""Intervals of so many steps have a bar each; those of more are an area alone, which bars would stripe."""
LEAST_SPAN = 0.1
"""An axis spans at least this part of its largest value, so that rounding does not look like movement."""
SMOOTH_FROM = 20
"""A curve with at least this many points gets a moving average."""


@dataclass(frozen=True)
class Series:
    """One curve; `style` names its colour in the style sheet: train, eval, a or b."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    style: str
    dots: bool = False
    """Few, exact points (evaluations) rather than a noisy curve."""
    bounds: Sequence[tuple[float, float]] = ()
    """The ends of an interval at every step, drawn as a band; NaN where there is none. Empty: no band."""


class Span(NamedTuple):
    """The steps of a stage, both ends included."""

    first: float
    last: float
    name: str

    @property
    def steps(self) -> str:
        return f"step {self.first:.0f}" if self.first == self.last else f"steps {self.first:.0f} to {self.last:.0f}"


@dataclass(frozen=True)
class Chart:
    """A picture of curves with its title."""

    title: str
    svg: Markup
    note: str = ""


@dataclass(frozen=True)
class Scale:
    """Data to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        if self.high == self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def line_chart(series: Sequence[Series], label: str, x_name: str = "step", stages: Sequence[Span] = ()) -> Markup:
    """Curves over steps, or over what `x_name` says; gaps where a value is not finite. Nothing to draw gives a sentence.

    Behind them lie the bands of `stages`, every second one darker.
    """
    drawn = [coarse_series(replace(one, values=[drawable(v) for v in one.values])) for one in series]
    points = [(s, v) for one in drawn for s, v in zip(one.steps, one.values, strict=True) if math.isfinite(v)]
    if not points:
        return Markup('<p class="empty">No finite value was recorded.</p>')
    steps, values = [s for s, _ in points], [v for _, v in points]
    values += [end for one in drawn for ends in one.bounds for end in ends if math.isfinite(end)]
    y_ticks = ticks(*with_span(min(values), max(values)), 5)
    x_ticks = [t for t in ticks(min(steps), max(steps), 6) if float(t).is_integer() and min(steps) <= t <= max(steps)]
    x = Scale(*range_with_width(min(steps), max(steps)), LEFT, WIDTH - RIGHT)
    y = Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    bands = [band(one, x, y) for one in drawn]
    bands = [stage_band(one, x, dark=k % 2 == 1) for k, one in enumerate(stages)] + bands
    body = [axes(x, y, x_ticks, y_ticks, x_name=x_name), *bands, *(curve(one, x, y) for one in drawn)]
    return Markup('{}<div class="legend">{}</div>').format(canvas(body, label), Markup("").join(map(legend, drawn)))


def histogram(groups: Sequence[tuple[str, Sequence[float], str]], label: str, bins: int = 16) -> Markup:
    """Shares of samples per bin for each (name, values, style), drawn side by side over the same bins."""
    kept = [(name, [v for v in map(drawable, values) if math.isfinite(v)], style) for name, values, style in groups]
    everything = [v for _, values, _ in kept for v in values]
    if not everything:
        return Markup('<p class="empty">No reward was recorded.</p>')
    x_ticks = ticks(*with_span(min(everything), max(everything)), 6)
    edges = np.linspace(x_ticks[0], x_ticks[-1], bins + 1)
    shares = [np.histogram(values, edges)[0] / max(1, len(values)) * 100 for _, values, _ in kept]
    y_ticks = ticks(0.0, max(float(share.max()) for share in shares), 4)
    x = Scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    y = Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    slot = (x(edges[1]) - x(edges[0]) - 2) / len(kept)
    bars: list[Markup] = []
    for place, ((name, _, style), share) in enumerate(zip(kept, shares, strict=True)):
        for i, part in enumerate(share):
            if part > 0:
                left, top = x(edges[i]) + 1 + place * slot, y(float(part))
                title = f"{name}: {part:.0f} % between {edges[i]:.3g} and {edges[i + 1]:.3g}"
                bars.append(
                    Markup(
                        '<rect class="bar {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
                    ).format(style, left, top, slot, y(0.0) - top, title)
                )
    keys = [
        Markup('<span class="key"><i class="swatch {}"></i>{} <small>({} samples)</small></span>').format(
            style, name, len(values)
        )
        for name, values, style in kept
    ]
    picture = canvas([axes(x, y, x_ticks, y_ticks, unit=" %"), *bars], label)
    return Markup('{}<div class="legend">{}</div>').format(picture, Markup("").join(keys))


def canvas(body: Sequence[Markup], label: str, height: float = HEIGHT) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, label, Markup("").join(body)
    )


def axes(x: Scale, y: Scale, x_ticks: Sequence[float], y_ticks: Sequence[float], unit: str = "", x_name: str = "") -> Markup:
    parts: list[str] = []
    digits = decimals(y_ticks)
    for tick in y_ticks:
        text = f"{tick_text(tick, digits)}{unit}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{text}</text>')
    digits = decimals(x_ticks)
    room = LEFT - 6
    for tick in x_ticks:
        text = tick_text(tick, digits)
        at, anchor = inside(x(tick), text)
        room = min(room, at - LETTER * len(text) / 2 - 3)
        parts.append(f'<text class="tick" x="{at:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{text}</text>')
    if x_name:
        parts.append(f'<text class="tick" x="{room:.1f}" y="{HEIGHT - 8}" text-anchor="end">{x_name}</text>')
    return Markup("".join(parts))


def inside(at: float, text: str) -> tuple[float, str]:
    """Place and anchor of a label below `at`, moved left where it would leave the picture."""
    return (at, "middle") if at + LETTER * len(text) / 2 <= WIDTH else (WIDTH, "end")


def band(one: Series, x: Scale, y: Scale) -> Markup:
    """The intervals of a curve, as an area where neighbouring steps have one and as a bar at each step."""
    known = [
        (x(step), y(low), y(high))
        for step, (low, high) in zip(one.steps, one.bounds, strict=False)
        if math.isfinite(low) and math.isfinite(high)
    ]
    if not known:
        return Markup("")
    bars = "".join(f'<line class="ci {one.style}" x1="{at:.1f}" x2="{at:.1f}" y1="{a:.1f}" y2="{b:.1f}"/>' for at, a, b in known)
    bars = bars if len(known) <= MOST_BARS else ""
    edge = [(at, low) for at, low, _ in known] + [(at, high) for at, _, high in reversed(known)]
    corners = " ".join(f"{at:.1f},{level:.1f}" for at, level in edge)
    area = f'<polygon class="ci {one.style}" points="{corners}"/>' if len(known) > 1 else ""
    return Markup(f"{area}{bars}")


def stage_band(one: Span, x: Scale, dark: bool) -> Markup:
    """The part of a chart that a stage's steps take, as far as it is in the picture; it says the stage's name."""
    ends = [min(max(x(step), LEFT), WIDTH - RIGHT) for step in (one.first - 0.5, one.last + 0.5)]
    box = f'x="{ends[0]:.1f}" y="{TOP}" width="{max(0.0, ends[1] - ends[0]):.1f}" height="{HEIGHT - BOTTOM - TOP}"'
    return Markup(f'<rect class="stage{" dark" if dark else ""}" {box}><title>{escape(one.name)}</title></rect>')


def curve(one: Series, x: Scale, y: Scale) -> Markup:
    """The line, its moving average when it is long, and its points when they are few; each point says its value."""
    values = list(one.values)
    window = smoothing(one)
    faint = " faint" if window > 1 else ""
    parts = [f'<polyline class="line {one.style}{faint}" points="{piece}"/>' for piece in pieces(one.steps, values, x, y)]
    if window > 1:
        smooth = moving_average(values, window)
        parts += [f'<polyline class="line {one.style}" points="{piece}"/>' for piece in pieces(one.steps, smooth, x, y)]
    few = one.dots or sum(map(math.isfinite, values)) <= 12
    around = [math.nan, *values, math.nan]
    for before, step, value, after in zip(around, one.steps, values, around[2:], strict=False):
        if math.isfinite(value):
            alone = not math.isfinite(before) and not math.isfinite(after)
            look = f'class="dot {one.style}" r="3"' if few or alone else 'class="hit" r="4"'
            title = f"<title>{escape(one.name)}, step {step:g}: {value:.4g}</title>"
            parts.append(f'<circle {look} cx="{x(step):.1f}" cy="{y(value):.1f}">{title}</circle>')
    return Markup("".join(parts))


def legend(one: Series) -> Markup:
    window = smoothing(one)
    note = Markup(" <small>(thick: mean of {} points)</small>").format(window) if window > 1 else ""
    if any(math.isfinite(low) for low, _ in one.bounds):
        note += Markup(" <small>(band: 95 % interval)</small>")
    return Markup('<span class="key"><i class="swatch {}{}"></i>{}{}</span>').format(
        one.style, " round" if one.dots else "", one.name, note
    )


def smoothing(one: Series) -> int:
    """Odd window of the moving average; 1 = none."""
    count = len(one.values)
    return 1 if one.dots or count < SMOOTH_FROM else max(3, count // 12 | 1)


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """Centred mean of the finite values within the window; NaN where there are none."""
    half = window // 2
    means: list[float] = []
    for i in range(len(values)):
        near = [v for v in values[max(0, i - half) : i + half + 1] if math.isfinite(v)]
        means.append(sum(near) / len(near) if near else math.nan)
    return means


def pieces(steps: Sequence[float], values: Sequence[float], x: Scale, y: Scale) -> list[str]:
    """Point lists of the unbroken parts of a curve."""
    found: list[list[str]] = [[]]
    for step, value in zip(steps, values, strict=True):
        if math.isfinite(value):
            found[-1].append(f"{x(step):.1f},{y(value):.1f}")
        elif found[-1]:
            found.append([])
    return [" ".join(points) for points in found if points]


def coarse_series(one: Series) -> Series:
    """At most MAX_POINTS points, each the mean of neighbouring steps; the name says of how many."""
    size = -(-len(one.values) // MAX_POINTS)
    if size <= 1:
        return one
    starts = range(0, len(one.values), size)
    means = [moving_average(one.values[i : i + size], 2 * size + 1)[0] for i in starts]
    return Series(f"{one.name}, mean of {size} steps", [one.steps[i] for i in starts], means, one.style, one.dots)


def drawable(value: float) -> float:
    """The value; 0 for one too small to divide by, NaN for one too large to subtract from."""
    return math.nan if not abs(value) <= LARGEST else 0.0 if abs(value) < SMALLEST else value


def with_span(low: float, high: float) -> tuple[float, float]:
    """The range, widened around its middle to LEAST_SPAN of its largest value; one that holds a single value in full."""
    lacking = LEAST_SPAN * max(abs(low), abs(high)) - (high - low)
    return (low, high) if high == low or lacking <= 0 else (low - lacking / 2, high + lacking / 2)


def range_with_width(low: float, high: float) -> tuple[float, float]:
    """A range with some width: enough for ticks that differ; of zeros alone from 0 up and of ones from below, as shares are."""
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    if low == high == 0:
        return 0.0, 1.0
    margin = max(abs(low), abs(high)) * 0.1 or 1.0
    return low - margin, high + (margin if high != 1 else 0.0)


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten apart) that enclose [low, high]."""
    low, high = range_with_width(low, high)
    rough = (high - low) / max(1, wanted - 1)
    exponent = math.floor(math.log10(rough))
    power = 10.0**exponent
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 2 - exponent) for i in range(first, last + 1)]


def decimals(values: Sequence[float]) -> int:
    """Digits after the point that evenly spaced ticks need."""
    gap = values[1] - values[0] if len(values) > 1 else 1.0
    return next((digits for digits in range(10) if abs(round(gap, digits) - gap) < abs(gap) * 1e-6), 10)


def tick_text(value: float, digits: int) -> str:
    if value == 0 and digits > 4:
        return "0"
    if value != 0 and (abs(value) >= 1e5 or digits > 4):
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}".replace("-", "\N{MINUS SIGN}")
    return f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")
