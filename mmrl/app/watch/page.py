"""The page of a run that trains, in parts of which a browser fetches those that changed."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from urllib.parse import quote

from mmrl.app.report.charts import Chart
from mmrl.app.report.curves import health, others, reward_charts
from mmrl.app.report.data import RunData
from mmrl.app.report.page import Example, description, environment
from mmrl.app.report.timing import phases, time_band
from mmrl.app.run.folder import RunDir
from mmrl.app.watch.feed import Feed, RunProgress

MOST_CHARTS = 40
"""Curves beside those of rewards and health."""
MOST_WARNINGS = 100
Parts = Mapping[str, "PagePart"]


@dataclass(frozen=True)
class PagePart:
    """A part of the page."""

    html: str
    mark: str
    """Other when the part is."""


class Page:
    """A run's page; every look follows the run first. Threads may share it."""

    def __init__(self, run: RunDir) -> None:
        self.feed = Feed(run)
        self._templates = environment()
        self._lock = Lock()
        self._parts: dict[str, tuple[object, PagePart]] = {}
        """The newest of every part, with what it was made of."""

    def parts(self) -> dict[str, PagePart]:
        """Every part by its name; one whose facts are the same is not made again."""
        with self._lock:
            feed = self.feed
            feed.follow()
            data = feed.data()
            state, newest = feed.state(data), feed.newest_samples()
            newest_at = [(str(file), stamp(file)) for _, _, file in newest]
            return {
                "state": self._part("state", (feed.seen, repr(state), tuple(data.notices)), lambda: self._state(data, state)),
                "curves": self._part("curves", feed.seen[:2], lambda: self._curves(data)),
                "samples": self._part("samples", newest_at, lambda: self._samples(data, newest)),
                "warnings": self._part("warnings", feed.seen[2], lambda: {"warnings": data.warnings[-MOST_WARNINGS:][::-1]}),
                "timing": self._part("timing", feed.seen[0], lambda: self._timing(data)),
            }

    def html(self) -> str:
        """The whole page."""
        parts, run = self.parts(), self.feed.run
        return self._templates.get_template("watch.html.j2").render(parts=parts, name=run.path.resolve().name)

    def _part(self, name: str, facts: object, look: Callable[[], Mapping[str, object]]) -> PagePart:
        before = self._parts.get(name)
        if before is not None and before[0] == facts:
            return before[1]
        html = self._templates.get_template(f"watch_{name}.html.j2").render(**look())
        part = PagePart(html, hashlib.sha256(html.encode(errors="replace")).hexdigest()[:12])
        self._parts[name] = facts, part
        return part

    def _state(self, data: RunData, state: RunProgress) -> Mapping[str, object]:
        return {"data": data, "state": state, "sentence": description(data.config)}

    def _curves(self, data: RunData) -> Mapping[str, object]:
        def there(charts: Sequence[Chart | None]) -> list[Chart]:
            return [chart for chart in charts if chart is not None]

        more = {"health": health(data), "others": others(data)[:MOST_CHARTS]}
        return {"width": self.feed.width, "curves": there(reward_charts(data)), **more}

    def _samples(self, data: RunData, newest: Sequence[tuple[str, int, Path]]) -> Mapping[str, object]:
        groups: list[tuple[str, int, list[Example], str]] = []
        for split, step, file in newest:
            try:
                rows = self.feed.rows(file, data.box_space)
                groups.append((split, step, [Example(data.run, row, address) for row in rows], ""))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                groups.append((split, step, [], f"{file.name} is damaged ({type(error).__name__}), and is not shown."))
        shown = [item.row for _, _, items, _ in groups for item in items]
        return {"groups": groups, "boxes": any(row.truth for row in shown), "spans": any(row.spans for row in shown)}

    def _timing(self, data: RunData) -> Mapping[str, object]:
        recent = self.feed.recent
        return {"phases": phases(recent), "count": len(recent), "band": time_band(data.train)}


def address(file: Path) -> str:
    """Where the page finds a file of a run's media: below the page's own address."""
    return f"media/{quote(file.name)}" if file.is_file() else ""


def stamp(file: Path) -> tuple[int, int]:
    """Other where a file was written again."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
