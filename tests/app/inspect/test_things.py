"""`mmrl show NAME` of rewards, data sets, parts, samplers, generators and families; `--all`; `mmrl ls` within 80 columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from mmrl.app.config import run as configs
from mmrl.app.config.algorithm import presets
from mmrl.app.inspect.ls import MORE, listing
from mmrl.app.inspect.settings import Setting, settings_of, unset_fields, unset_rows
from mmrl.app.inspect.show import description
from mmrl.app.inspect.things import CLASSES, PLUG_INS, classes, classes_called, names_of, plug_in, things_called
from mmrl.app.plugins.catalog import catalog
from mmrl.runtime.ranges import Count, Share
from tests.support.each import for_each


@dataclass(frozen=True)
class Inner:
    """Something inside."""


@dataclass(frozen=True)
class Example:
    """A part."""

    model: str
    """A folder."""
    share: Share = 0.5
    """How much
    of it."""
    kind: Literal["a", "b"] = "a"
    most: Count | None = None
    names: tuple[str, ...] = ("x", "y")
    inner: Inner = Inner()
    flag: bool = False


def load(path: str | Path, size: int = 3, columns: Sequence[str] | None = None) -> None:
    """Rows.

    Args:
        path: the file,
            or a folder.
        size: how many.

    Raises:
        ValueError: never.
    """


def test_fields_have_type_range_default_and_meaning():
    assert settings_of(Example) == [
        Setting("model", "text", "", "required", "A folder."),
        Setting("share", "number", "0 to 1", "0.5", "How much of it."),
        Setting("kind_", '"a" or "b"', "", '"a"', ""),
        Setting("most", "integer or none", "1 to 1048576", "none", ""),
        Setting("names", "list of text", "", '["x", "y"]', ""),
        Setting("inner", "table Inner", "", "Inner", ""),
        Setting("flag", "true or false", "", "false", ""),
    ]


def test_arguments_have_the_words_of_their_docstring():
    assert settings_of(load) == [
        Setting("path", "text or path", "", "required", "the file, or a folder."),
        Setting("size", "integer", "", "3", "how many."),
        Setting("columns", "list of text or none", "", "none", ""),
    ]
    assert [one.name for one in settings_of(load, 1)] == ["size", "columns"]


@pytest.mark.parametrize("kind", [*PLUG_INS, *CLASSES])
def test_everything_that_is_listed_can_be_shown(kind: str):
    is_plug_in = kind in PLUG_INS
    for name in names_of(kind) if is_plug_in else [one.name for one in classes(kind)]:
        thing = plug_in(name, kind) if is_plug_in else next(classes_called(name))
        lines = list(thing.lines())
        assert lines[0].endswith(thing.kind) and ".py:" in lines[1], name
        own = [line for one in thing.settings for line in one.lines()]
        assert all(len(line) <= 80 or " " not in line.strip() for line in own), name


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("iou", ["iou: a reward", '  template: "direct" or "think" or "json" or none; default none']),
        ("datasets/shapes", ["shapes: a data set", '  split: text; default "train"']),
        ("DynamicSampling", ["DynamicSampling: a part of planner", '[algorithm.planner] kind = "DynamicSampling" takes']),
        ("Streamed", ["Streamed: a sampler", '[sampler] kind = "Streamed" takes']),
        ("FlowSDE", ["FlowSDE: a part inside a schedule"]),
        ("qwen3_vl", ["qwen3_vl: a family of models", '  box_space: text or none; default "norm1000"']),
        ("FluxPipeline", ["FluxPipeline: a family of models", "  usual_guidance: number; default 3.5"]),
        ("text.LocalGenerator", ["text.LocalGenerator: a generator of text policies", "  no settings"]),
    ],
)  # fmt: skip
def test_what_is_shown(name: str, lines: list[str]):
    shown = description(name).splitlines()
    assert [line for line in lines if line not in shown] == []


def test_one_name_of_two_kinds_shows_both():
    assert [thing.kind for thing in things_called("shapes")] == ["a reward", "a data set"]


def test_a_file_of_ones_own(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text('"""Mine."""\n\n\ndef short(group, most: int = 3):\n    """Brief."""\n    return [0.0]\n')
    shown = description(f"{file}:short")
    assert "a plug-in of your own" in shown and "  most: integer; default 3" in shown and "group" not in shown


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (("iuo",), FileNotFoundError, "nothing is called 'iuo', and it is no file: did you mean 'iou'"),
        (("tiny/imgae",), FileNotFoundError, "did you mean 'tiny/image'"),
        (("gone.toml",), FileNotFoundError, "no config 'gone.toml'"),
        (("iou", ["threshold=1"]), ValueError, "'threshold=1' has no meaning here: iou is a reward"),
        (("dapo", [], True), ValueError, "--all goes with a config: dapo is none"),
    ],
)
def test_what_cannot_be_shown(words: tuple[str, list[str], bool], kind: type[Exception], message: str):
    with pytest.raises(kind, match=message):
        description(*words)


def test_all_shows_what_a_config_does_not_set():
    found = {key: (value, meaning) for key, value, meaning in unset_rows(configs.load("t2i/flux_dev_mixgrpo"))}
    assert found["algorithm.schedule.high"] == ("not set", "all but the last step")
    assert found["algorithm.ema_decay"][0] == "not set"
    assert found["evaluation.guidance"] == ("not set", "policy.guidance")
    assert found["reward.0.scale"] == ("1.0", "default of pick_score")
    assert "data.path" not in found, "it is set"
    preset = {".".join(path) for path, _ in unset_fields(presets()["temp_flow_grpo"], ("algorithm",))}
    assert "algorithm.schedule.at_steps" in preset


@for_each("name", [listed.name for listed in catalog("configs")])
def test_all_and_the_rest_are_different_keys(name: str):
    resolved = configs.load(name)
    said = {key for key, _, _ in resolved.rows()}
    unset = [key for key, _, _ in unset_rows(resolved)]
    assert len(set(unset)) == len(unset) and not said & set(unset)


@pytest.mark.parametrize("kind", [None, "rewards", "algorithms", "configs", *MORE])
def test_no_line_of_a_list_is_wider_than_a_terminal(kind: str | None):
    lines = list(listing(kind))
    assert [line for line in lines if len(line) > 80] == [] and len(lines) > 1
