"""`mmrl show NAME` of rewards, data sets, parts, samplers, generators and families; `--all`; `mmrl ls` within 80 columns."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Literal, get_args, get_type_hints

import pytest

from mmrl.algorithms.advantages.group import GroupNorm, MedianNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.views import Privileged
from mmrl.app.config import run as configs
from mmrl.app.config.algorithm import Assembly, presets
from mmrl.app.config.run import Resolved, RunConfig
from mmrl.app.config.tasks import one_line
from mmrl.app.inspect.ls import MORE, listing
from mmrl.app.inspect.settings import COMMON, Setting, settings_of, unset_fields, unset_rows
from mmrl.app.inspect.show import description
from mmrl.app.inspect.things import (
    CLASSES,
    HEAD,
    MARKS,
    PLUG_INS,
    WIDTHS,
    Thing,
    classes,
    classes_called,
    families,
    keys_inside,
    names_of,
    plug_in,
    public_weights,
    table,
    things_called,
)
from mmrl.app.plugins.catalog import catalog
from mmrl.app.toml.tables import dotted_key, leaves
from mmrl.lab.tiny.text import janus, vlms
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.published import NOTES, Published
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.ranges import Count, Share
from mmrl.training.optim import OptimizerSettings
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
    eps: float = 0.1


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
        Setting("eps", "number", "", "0.1", ""),
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


def cells(line: str) -> list[str]:
    """A line of the table, cut at its columns."""
    starts = [sum(width + 2 for width in WIDTHS[:i]) for i in range(len(WIDTHS))]
    return [line[start : start + width].rstrip() for start, width in zip(starts, WIDTHS, strict=True)]


def rows() -> dict[str, list[str]]:
    """Family -> the cells of its row, each in one piece."""
    lines, found = [cells(line) for line in list(table())[2:]], dict[str, list[str]]()
    for line in lines[: lines.index([""] * len(WIDTHS))]:
        name = line[0] or list(found)[-1]
        before = found.get(name, [""] * len(WIDTHS))
        found[name] = [f"{old} {new}".strip() for old, new in zip(before, line, strict=True)]
    return found


def test_every_family_has_a_row_with_all_its_facts():
    assert cells(next(table())) == list(HEAD)
    found = rows()
    assert found.keys() == families().keys() == public_weights().keys()
    assert [row for row in found.values() if not all(row)] == []
    assert found["FluxPipeline"][1:3] == ["text to image", "dev: FLUX.1 dev Non-Commercial; schnell: Apache-2.0"]
    assert found["text_only"][1] == "text to text" and "clips to text" in found["qwen3_vl"][1]


def test_letters_stand_for_what_was_tested():
    lines = list(table())
    told = {line.split()[0]: line for line in lines[lines.index("tested on tiny models of the real classes") + 1 :]}
    for name, row in rows().items():
        assert public_weights()[name].tested.startswith(told[row[3]].strip()[3:].strip()), name


def test_a_licence_that_was_not_read_says_so():
    facts = Published(("text to text",), "MIT", "nowhere", "nothing")
    assert facts.licence_and_note == "MIT (not checked)"
    found = rows()
    assert {one.read for one in public_weights().values()} == set(NOTES)
    for name, one in public_weights().items():
        assert found[name][2] == f"{one.licence}{MARKS[one.read]}" and one.licence_and_note.startswith(one.licence)
    assert [f"  {MARKS[read].strip():<2} {note}" in list(table()) for read, note in NOTES.items() if note] == [True, True]


def test_a_row_promises_tests_only_where_a_tiny_model_is():
    """A family is tested on a model of its own class, or says whose it shares."""
    for name, one in public_weights().items():
        if not name.endswith("Pipeline") and name not in ("generic", "hearing", "text_only"):
            assert (name in {*vlms.FAMILIES, *janus.FAMILIES}) != one.tested.startswith("nothing of its own"), name


FLOW = """steps = 3
[algorithm]
preset = "flow_grpo"
group_size = 4
[algorithm.schedule]
kind = "Window"
num_steps = 6
spacing = { kind = "LinearShift" }
[algorithm.objective.0]
low = 1e-2
[policy]
kind = "flow"
model = "m"
[data]
use = "shapes"
[[reward]]
use = "jpeg_size"
scale = 0.1
"""


def origins(resolved: Resolved) -> dict[str, str]:
    return {key: origin for key, _, origin in resolved.rows()}


@pytest.fixture
def flow(tmp_path: Path) -> Resolved:
    file = tmp_path / "a.toml"
    file.write_text(FLOW)
    return configs.load(str(file), ["optimizer.lr=1e-3", "algorithm.schedule.size=2", "evaluation.num_steps=9"])


def test_each_value_says_who_said_it(flow: Resolved, tmp_path: Path):
    found, file = origins(flow), str(tmp_path / "a.toml")
    assert found["steps"] == found["reward.0.scale"] == found["algorithm.group_size"] == file
    assert found["algorithm.schedule.kind"] == found["algorithm.objective.0.low"] == file
    assert found["optimizer.lr"] == found["algorithm.schedule.size"] == found["evaluation.num_steps"] == "command line"
    assert found["algorithm.objective.0.high"] == found["algorithm.objective.1.coef"] == "preset flow_grpo"
    assert found["algorithm.advantage.scale"] == found["algorithm.epochs"] == "preset flow_grpo"
    assert found["prompts_per_step"] == found["policy.dtype"] == found["reward.0.weight"] == "default"

    assert found["algorithm.schedule.level"] == "default of Window", "a part in the preset's place has its own"
    assert found["algorithm.schedule.spacing.shift"] == "default of LinearShift"


def test_defaults_of_the_kind_of_policy(flow: Resolved):
    assert origins(flow)["ratio_bound"] == origins(flow)["mean_ratio_bound"] == "default"
    assert flow.origin(("evaluation", "guidance")) == "default for flow"
    text = configs.load("tiny/image", ["evaluation.sampling.top_p=0.5"])
    found = origins(text)
    assert found["evaluation.sampling.temperature"] == "default for text"
    assert found["ratio_bound"] == "default"
    assert found["evaluation.sampling.max_new_tokens"] == f"as policy.sampling ({text.table.origin(('steps',))})"
    assert found["evaluation.sampling.top_k"] == "as policy.sampling (default)"
    assert found["evaluation.sampling.top_p"] == "command line"
    assert origins(configs.load("tiny/image", ["ratio_bound=1.0"]))["ratio_bound"] == "command line"


def test_a_task_is_an_origin(tmp_path: Path):
    (tmp_path / "boxes.jsonl").write_text("")
    found = origins(one_line("grounding", "m", str(tmp_path / "boxes.jsonl"), ["iou"], ["steps=2"]))
    assert found["algorithm.preset"] == found["data.use"] == "task grounding"
    assert found["policy.model"] == found["reward.0.use"] == found["steps"] == "command line"


@pytest.mark.parametrize("name", ["tiny/image", "tiny/t2i_text", "video/qwen25vl_7b_clevrer_twgrpo"])
def test_every_value_of_the_file_is_shown_with_the_file(name: str):
    resolved = configs.load(name)
    rows = {line.split()[0]: line for line in description(name).splitlines() if line.strip()}
    file = resolved.table.origin(("steps",))
    assert file is not None
    for path, value in leaves(resolved.table.values):
        assert rows[dotted_key(path)].rstrip().endswith(file), dotted_key(path)
        assert isinstance(value, list | dict | float) or str(value) in rows[dotted_key(path)]


def test_an_algorithm_shows_the_preset_and_the_command_line():
    text = description("flow_grpo", ["algorithm.schedule.kind=Window", "algorithm.group_size=6"])
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("algorithm.")}
    assert rows["algorithm.group_size"].endswith("command line")
    assert rows["algorithm.schedule.level"].endswith("default of Window")
    assert rows["algorithm.objective.0.low"].endswith("preset flow_grpo")
    assert "mmrl/flow/schedules/" in text


@pytest.mark.parametrize(("name", "words"), [("reward/iou/std", "Deviation of this reward"), ("metrics", "policy/grad_norm")])
def test_a_metric_is_shown_with_its_meaning(name: str, words: str):
    assert words in description(name)


TABLES_OF_A_RUN = {"policy", "data", "reward", "algorithm", "sampler", "evaluation", "checkpoint", "trackers", "cluster"}
INNER = {"optimizer", "health", "alarm", "args", "sampling", "lora", "video", "also", "call", "transform"}
NUMBER = re.compile(r'(?<!")\b(number|integer)\b(?!")')
TABLE = re.compile(r"\btable ([A-Z]\w*)")


def tables_below(hint: object, seen: set[object]) -> Iterator[type]:
    """Every class of settings in a type, and those that its fields hold."""
    inner = list(get_args(hint))
    if isinstance(hint, type) and is_dataclass(hint) and hint not in seen and hint is not Assembly:
        seen.add(hint)
        yield hint
        inner += get_type_hints(hint, include_extras=True).values()
    for one in inner:
        yield from tables_below(one, seen)


CONFIG = [*tables_below(RunConfig | TextPolicyConfig | FlowPolicyConfig, set()), Privileged]


def silent(settings: Sequence[Setting]) -> list[str]:
    return [one.name for one in settings if not one.meaning]


@for_each("cls", [*CONFIG, Algorithm], ids=lambda cls: cls.__name__)
def test_every_key_of_a_config_has_a_meaning(cls: type):
    lacking = [name for name in silent(settings_of(cls)) if not (cls is RunConfig and name in TABLES_OF_A_RUN - {"cluster"})]
    assert lacking == [], f"{cls.__module__}.{cls.__name__} says nothing about {lacking}: write a sentence below each field"


def test_every_key_of_a_config_stands_on_its_page():
    assert {OptimizerSettings, TextPolicyConfig, FlowPolicyConfig} < set(CONFIG) and len(CONFIG) > 15
    page = (Path(__file__).parents[3] / "docs" / "reference" / "config.md").read_text(encoding="utf-8")
    keys = [(cls.__name__, one) for cls in CONFIG for one in keys_inside(cls) if one.name not in INNER | TABLES_OF_A_RUN]
    lacking = [f"{cls}.{one.name}" for cls, one in keys if f"| `{one.name}` | {one.type.replace('|', chr(92) + '|')}" not in page]
    assert lacking == [], "give their class a chapter in docs/pages/config.py"


@pytest.fixture(scope="module")
def things() -> list[Thing]:
    """All that `mmrl ls` lists and `mmrl show` prints."""
    plug_ins = [plug_in(name, kind) for kind in PLUG_INS for name in names_of(kind)]
    return [*plug_ins, *(thing for kind in CLASSES for listed in classes(kind) for thing in classes_called(listed.name))]


def test_every_setting_that_show_prints_has_a_meaning_and_every_number_a_range(things: list[Thing]):
    lacking = [f"{thing.kind} {thing.name}: {', '.join(names)}" for thing in things if (names := silent(thing.settings))]
    assert lacking == [], "write a sentence below each field, or a line under Args:\n" + "\n".join(lacking)
    described = "a family of models"  # no config sets what a family says of itself
    numbers = [(thing, one) for thing in things for one in thing.settings if NUMBER.search(one.type) and thing.kind != described]
    assert len(numbers) > 200
    assert [f"{thing.name}.{one.name}" for thing, one in numbers if not one.range] == []


def test_every_table_inside_another_is_shown_too(things: list[Thing]):
    known = {*(cls.__name__ for cls in CONFIG), *(thing.name for thing in things)}
    named = {(thing.name, word) for thing in things for one in thing.settings for word in TABLE.findall(one.type)}
    assert {(name, word) for name, word in named if word not in known} == set()


def test_shared_words_stand_where_a_class_says_nothing_and_nowhere_else():
    """They do not reach classes of another package."""
    assert silent(settings_of(Example)) == ["kind_", "most", "names", "inner", "flag", "eps"]
    shared = COMMON["mmrl.algorithms.advantages"]["eps"]
    found = {cls: next(one.meaning for one in settings_of(cls) if one.name == "eps") for cls in (GroupNorm, MedianNorm)}
    assert found[GroupNorm] == shared and found[MedianNorm] not in ("", shared)
