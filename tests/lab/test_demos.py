"""What a demo says while it runs: trainings behind one another are parts, and a short one promises nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmrl.app.commands import train
from mmrl.lab import demos, models


def test_parts_are_counted_apart_and_a_short_demo_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def teach(kind: str, name: str, seed: int, note: Any, short: bool) -> Path:
        for steps in (2, 3):
            for step in range(1, steps + 1):
                note(step, steps, 0.5)
        return tmp_path

    monkeypatch.setattr(models, "teach_once", teach)
    monkeypatch.setattr(train, "run_training", lambda resolved: SimpleNamespace(path=tmp_path))
    demos.run("grounding", tmp_path / "run", short=True)
    said = " ".join("".join(capsys.readouterr()).split())
    assert "part 1, step 2/2 loss 0.50" in said and "part 2, step 3/3 loss 0.50" in said
    assert "each part ran for a few steps, which teach nothing" in said
    demos.run("grounding", tmp_path / "run")
    assert "teach nothing" not in "".join(capsys.readouterr())
