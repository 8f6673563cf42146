"""Progress and figures inside a notebook's cell."""

import sys
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, runtime_checkable

from mmrl.app.report.data import changes, load, pairs
from mmrl.app.report.rows import SampleLine
from mmrl.app.report.words import cells_of
from mmrl.app.run.trackers import duration, figures
from mmrl.training.callbacks import Callback, Examples

STYLE = """<style>
.mmrl { --sans: system-ui, sans-serif; --soft: #7a7771; --line: #8885; --train: #4a80dc; --eval: #d98a1f; max-width: 820px; }
.mmrl .charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 16px; }
.mmrl .chart { display: block; width: 100%; height: auto; }
.mmrl .tick { font: 11px var(--sans); fill: var(--soft); }
.mmrl .grid { stroke: var(--line); } .mmrl .line { fill: none; stroke-width: 2; } .mmrl .line.faint { opacity: .38; }
.mmrl .line.train { stroke: var(--train); } .mmrl .line.eval { stroke: var(--eval); }
.mmrl .dot.train { fill: var(--train); } .mmrl .dot.eval { fill: var(--eval); } .mmrl .hit { fill: none; }
.mmrl .legend, .mmrl small { color: var(--soft); font-size: .82rem; } .mmrl .key { margin-right: 12px; }
.mmrl .swatch { display: inline-block; width: 14px; height: 4px; margin-right: 4px; }
.mmrl .swatch.train { background: var(--train); } .mmrl .swatch.eval { background: var(--eval); }
.mmrl progress { width: 100%; } .mmrl .drawing { height: 96px; margin: 2px; }
.mmrl rect { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; }
.mmrl .truth { stroke: #12a5e8; } .mmrl .predicted { stroke: #ff6a13; }
.mmrl td { padding: 2px 12px 2px 0; } .mmrl thead { font-weight: bold; }
</style>"""
MOST_PICTURES = 4
"""Held-out prompts whose pictures are shown before and after."""


@runtime_checkable
class Display(Protocol):
    """A cell's output that can be replaced, as IPython makes it."""

    def update(self, shown: object) -> None: ...


class Html:
    """HTML as notebooks show it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_html_(self) -> str:
        return self.text


def in_notebook() -> bool:
    """Does the program run in a kernel that shows HTML?"""
    shell = sys.modules.get("IPython")
    found = None if shell is None else shell.get_ipython()
    return type(found).__name__ == "ZMQInteractiveShell"


class NotebookProgress(Callback):
    """A bar with the step's key figures and a curve of the rewards, replaced in place; evaluations below it."""

    def __init__(
        self,
        num_steps: int,
        show: Callable[[Html], Display] | None = None,
        every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        denoises: bool = False,
    ) -> None:
        """`show` puts the first state into the cell; None: as IPython does."""
        self.num_steps, self.every_s, self.clock, self.denoises = num_steps, every_s, clock, denoises
        self.text, self.step = "", 0
        self.began = self.last = clock()
        self.curves: dict[str, list[tuple[int, float]]] = {"train": [], "eval": []}
        self.evaluations: list[str] = []
        self.display = (show or show_in_cell)(self.page())

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        """Replace what is shown, at most once in `every_s` seconds."""
        self.step, self.text = step, figures(metrics, 0, self.denoises)
        self.curves["train"].append((step, metrics["reward/total"]))
        if step == self.num_steps or self.clock() - self.last >= self.every_s:
            self.update()

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        shown = [f"{name.removeprefix('eval/')} {value:.3f}" for name, value in metrics.items() if name.count("/") == 1]
        self.curves["eval"].append((step, metrics["eval/total"]))
        self.evaluations.append(f"step {step}, held out: {', '.join(shown)}")
        self.update()

    def close(self) -> None:
        self.update()

    def update(self) -> None:
        self.last = self.clock()
        self.display.update(self.page())

    def page(self) -> Html:
        """The bar, the curve and the evaluations."""
        seconds = self.clock() - self.began
        left = f", {duration(seconds / self.step * (self.num_steps - self.step))} left" if self.step else ""
        bar = f'<progress max="{max(1, self.num_steps)}" value="{self.step}"></progress>'
        lines = [f"step {self.step}/{self.num_steps}{left}  {self.text}", *self.evaluations]
        text = "".join(f"<div>{escape(line)}</div>" for line in lines)
        return Html(f'{STYLE}<div class="mmrl">{bar}{text}{reward_chart(self.curves)}</div>')


def show_in_cell(page: Html) -> Display:
    """Put it under the running cell."""
    from IPython.display import display  # pyright: ignore[reportMissingImports] - a notebook has it

    return display(page, display_id=True)


def reward_chart(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Total reward over steps; empty before there is any, or without the extra `report`."""
    if not any(curves.values()) or find_spec("markupsafe") is None:
        return ""
    from mmrl.app.report.charts import Series, line_chart

    names = {"train": "training", "eval": "held out"}
    series = [
        Series(names[split], [float(step) for step, _ in points], [value for _, value in points], split, split == "eval")
        for split, points in curves.items()
        if points
    ]
    return f'<div class="charts"><div>{line_chart(series, "Reward over training steps")}</div></div>'


def figures_html(folder: Path) -> str:
    """Held-out figures before and after, curves, and the first pictures that were drawn; curves need the extra `report`."""
    data = load(folder)
    rows = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells_of(changes(data))]
    table = f"<table><thead>{rows[0]}</thead>{''.join(rows[1:])}</table>" if rows[1:] else ""
    charts = ""
    if find_spec("jinja2") is not None:
        from mmrl.app.report.curves import curves

        charts = "".join(f"<div><b>{escape(chart.title)}</b>{chart.svg}</div>" for chart in curves(data))
    shown = [
        f"<div><small>{escape(before.prompt)}: before, after</small><br>{drawing(folder, before)} {drawing(folder, after)}</div>"
        for before, after in pairs(data)[:MOST_PICTURES]
        if picture_of(before)
    ]
    return f'{STYLE}<div class="mmrl">{table}<div class="charts">{charts}</div>{"".join(shown)}</div>'


def picture_of(row: SampleLine) -> Mapping[str, object]:
    """The stored picture that a sample drew, or that it answers about; empty where there is none."""
    stored = row.line["image"] or next(iter(row.line["media"]), None)
    return stored if stored and stored["file"] and stored["kind"] == "picture" else {}


def drawing(folder: Path, row: SampleLine) -> str:
    """The picture inside the page, with the true boxes and those that the sample wrote."""
    stored = picture_of(row)
    file = folder / "samples" / str(stored["file"])
    if not file.is_file():
        return ""
    kind = "png" if file.suffix == ".png" else "jpeg"
    boxes = [("truth", box) for box in row.truth] + [("predicted", box) for box in row.predicted]
    marks = "".join(
        f'<rect class="{name}" x="{b.x1:.2f}" y="{b.y1:.2f}" width="{b.x2 - b.x1:.2f}" height="{b.y2 - b.y1:.2f}"/>'
        for name, b in boxes
    )
    source = f"data:image/{kind};base64,{b64encode(file.read_bytes()).decode()}"
    size = f'viewBox="0 0 {stored["width"]} {stored["height"]}"'
    return f'<svg class="drawing" {size}><image width="100%" height="100%" href="{source}"/>{marks}</svg>'
