"""The committed pages of the reference are what the code says, and a metric is found by its name."""

from pathlib import Path
from types import ModuleType

import pytest

from docs.pages.lines import cell, code
from mmrl.training.metric_names import metric_of


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    from docs import generate

    return generate


def test_the_reference_is_what_the_code_says(generate: ModuleType):
    assert generate.stale() == [], "run python docs/generate.py"


def test_a_page_that_is_no_longer_written_is_stale(generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "gone.md").write_text("# gone")
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    monkeypatch.setattr(generate, "COMMITTED", {})
    assert generate.stale() == ["reference/gone.md"]


def test_code_in_tables_is_not_escaped():
    assert cell("a <b> | `<split>`") == "a &lt;b> \\| `<split>`" and code("runs/<name> | x") == "`runs/<name> \\| x`"


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("reward/total", "reward"),
        ("reward/iou/std", "reward"),
        ("time/reward/iou/p95_s", "seconds"),
        ("eval/plain/iou/hit", "reward"),
    ],
)
def test_a_metric_is_found_by_its_name(name: str, unit: str):
    found = metric_of(name)
    assert found is not None and found.unit == unit


def test_a_metric_nobody_documented_is_not_found():
    assert metric_of("policy/new_thing") is None
