"""One of the two that `mmrl compare` puts side by side: a run, or an evaluation that `mmrl eval` wrote."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmrl.app.report.data import RunData, load, read_rows
from mmrl.app.report.rows import Row, Task, by_task
from mmrl.app.run.evaluation_folder import EvaluationDir, prediction_lines
from mmrl.app.run.folder import Line, also_split
from mmrl.app.toml.tables import Values
from mmrl.data.suites.suite import Suite
from mmrl.data.suites.table import SUITES


@dataclass(frozen=True)
class Side:
    """One of the two."""

    path: Path
    config: Values
    last: Mapping[Task, list[Row]]
    """The answers that are compared: of a run those of its last evaluation."""
    also: Mapping[str, Mapping[Task, list[Row]]] = field(default_factory=dict[str, Mapping[Task, list[Row]]])
    """The same of every further way to answer (`[[evaluation.also]]`), by its name."""
    notices: Sequence[str] = ()
    run: RunData | None = None
    """None: an evaluation, which has no curves."""
    train: Sequence[Line] = field(default_factory=list[Line])

    @property
    def suite(self) -> Suite | None:
        """The published test set that was answered; None: other prompts, or a run's own."""
        data = self.config.get("data", {})
        name = str(data.get("suite")) if self.run is None and isinstance(data, Mapping) else ""
        return SUITES.get(name)


def read_side(path: Path) -> Side:
    """A run's folder, an evaluation's folder, or its predictions.jsonl.

    Raises FileNotFoundError for something else, ValueError where a file is damaged or predictions.jsonl is empty.
    """
    place = EvaluationDir(path.parent if path.is_file() else path)
    file = path if path.is_file() else place.predictions
    if not file.is_file():
        data = load(path)
        also = {name: last_of_way(data, name) for name in data.run.also_names()}
        return Side(path, data.config, by_task(data.after or data.before), also, data.notices, data, data.train)
    ways: dict[str, list[Row]] = {}
    for line in prediction_lines(file):
        ways.setdefault(line.get("way") or "", []).append(Row(line, line.get("box_space")))
    rows = ways.pop("", [])
    if not rows:
        raise ValueError(f"{file} has no samples yet: let `mmrl eval` go on, by the same words as before")
    config = tomllib.loads(place.config_file.read_text(encoding="utf-8")) if place.config_file.is_file() else {}
    unfinished = [] if place.is_finished or path.is_file() else ["The evaluation is not finished: the same words go on with it."]
    also = {name: by_task(own) for name, own in ways.items()}
    return Side(place.path if not path.is_file() or place.is_begun else path, config, by_task(rows), also, unfinished)


def last_of_way(data: RunData, name: str) -> dict[Task, list[Row]]:
    """The answers of a run's last evaluation in one of its further ways."""
    split = also_split(name)
    return by_task(read_rows(data.run, split, data.run.sample_steps(split)[-1:], data.box_space))
