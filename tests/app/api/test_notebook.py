"""Progress in a notebook's cell: replaced in place, seldom enough, and without what a model wrote becoming HTML."""

import sys
import types

import pytest
import torch

from mmrl.app.api.notebook import Html, NotebookProgress, in_notebook
from mmrl.core.types import Scores
from mmrl.training.callbacks import Examples

NOTHING = Examples([], Scores((), torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.long), torch.zeros(0)))


class Cell:
    """A cell's output."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def __call__(self, page: Html) -> "Cell":
        self.pages.append(page._repr_html_())
        return self

    def update(self, shown: object) -> None:
        assert isinstance(shown, Html)
        self.pages.append(shown._repr_html_())


def test_a_cell_is_replaced_now_and_then_and_at_the_end():
    now, cell = [0.0], Cell()
    progress = NotebookProgress(10, cell, every_s=5.0, clock=lambda: now[0])
    progress.after_evaluation(0, {"eval/total": 0.25, "eval/<b>": 0.5, "eval/a/part": 1.0}, NOTHING)
    for step in range(1, 11):
        now[0] += 2.0
        progress.after_step(step, {"reward/total": 0.1 * step}, None)
    progress.close()
    # the beginning, the evaluation, steps 3, 6, 9 and 10, the end
    assert len(cell.pages) == 7
    assert 'max="10" value="0"' in cell.pages[0] and "<svg" not in cell.pages[0]
    assert "step 0, held out: total 0.250, &lt;b&gt; 0.500" in cell.pages[1]
    assert "step 3/10, 14 s left" in cell.pages[2] and "<svg" in cell.pages[2]
    assert 'value="10"' in cell.pages[-1]


@pytest.mark.parametrize(("shell", "expected"), [("ZMQInteractiveShell", True), ("TerminalInteractiveShell", False)])
def test_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch, shell: str, expected: bool):
    ipython = types.ModuleType("IPython")
    vars(ipython)["get_ipython"] = lambda: type(shell, (), {})()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert in_notebook() is expected


def test_a_script_is_no_notebook(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
