"""A run trained from Python: its folder, its metrics, and how a notebook shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mmrl.app.report.data import PairedChange, changes, load
from mmrl.app.run.folder import RunDir
from mmrl.core.protocols import Policy


@dataclass(frozen=True)
class Run:
    """The result of `mmrl.fit`. `mmrl report`, `compare`, `export` and `sample` take its folder."""

    folder: Path
    policy: Policy
    """The policy with the trained weights."""
    is_finished: bool
    """False: it was stopped and saved, and `resume=True` continues it."""

    @property
    def metrics(self) -> Sequence[Mapping[str, int | float]]:
        """The metrics of every step and evaluation, in order; `step` is among them."""
        return RunDir(self.folder).read_metrics().lines

    @property
    def changes(self) -> Sequence[PairedChange]:
        """Held-out figures before and after, with their uncertainty; empty without two evaluations."""
        return changes(load(self.folder))

    @property
    def report(self) -> Path:
        """The run's page; it exists where the extra `report` is installed."""
        return RunDir(self.folder).report_file

    def _repr_html_(self) -> str:
        """Curves and figures, for notebooks."""
        from mmrl.app.api.notebook import figures_html

        state = "finished" if self.is_finished else "stopped and saved; go on with resume=True"
        return f"<p><code>{escape(str(self.folder))}</code>: {state}</p>{figures_html(self.folder)}"
