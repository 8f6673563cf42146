"""Made-up inputs for all that reads foreign text; benchmarks/fuzz.py looks for the same failures with a search."""

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmrl.answers.block import keeps_format
from mmrl.answers.boxes.box import Box, giou
from mmrl.answers.boxes.parsing import parse_boxes, parse_points, says_nothing
from mmrl.answers.choices import parse_choices
from mmrl.answers.numbers import parse_number
from mmrl.answers.spans.interval import Interval
from mmrl.answers.spans.parsing import parse_intervals, parse_times
from mmrl.app.toml.tables import Table
from mmrl.core.samples import Group, Prompt, Sample
from mmrl.serving import wire
from tests.fuzz import properties
from tests.support.refused import refused
from tests.support.styles import box_in, span_in

few = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
TABLES = [tomllib.loads(file.read_text()) for file in sorted((Path(__file__).parents[2] / "configs" / "tiny").glob("*.toml"))]

NUMBERS = ("1", "-3", ".5", "1e308", "31e308", "1e-320", "9" * 400, "0", "12.5", "1,000", "nan", "inf", "\u0663")
MARKS = ("[", "]", "(", ")", "{", "}", "<", ">", ",", ";", ":", "=", "%", "-", ".", '"', "'", "\\", "/", "|", "\n", "```")
MARKS += ("<answer>", "</answer>", "<think>", "</think>")
BOX = ("bbox_2d", '"label":', "<box>", "</box>", "<|box_start|>", "<|box_end|>", "<ref>", "</ref>", "x1=", "ymax:")
TIME = (" to ", "between ", " and ", "frame ", "s", " minutes", "1:", "00:03.2", "01:02:03", "start", "end", "ms", "from ")
ANSWER = ("A", "(B)", "C.", " or ", "answer is ", "\\frac{", "}{", "\\boxed", "total =", "percent", "three", "e9")

CALL = ("<tool_call>", "</tool_call>", '{"name": "zoom"', ', "arguments": {', '"x":', '{"actions": [', '"zoom"', '"\\ud800"')
CALL += ("NaN", "<code>", "</code>", "```python\n", "\\u", "null", "true")


def texts(*words: str) -> st.SearchStrategy[str]:
    """Pieces of what models write, in any order, and anything else."""
    pieces = st.sampled_from([*NUMBERS, *MARKS, *words, " "])
    return st.lists(pieces | st.text(max_size=4), max_size=30).map("".join)


@pytest.mark.parametrize(
    ("words", "hold"),
    [(BOX, properties.boxes), (TIME, properties.spans), (ANSWER, properties.answers), (CALL, properties.calls)],
    ids=["boxes", "spans", "answers", "calls"],
)
@few
@given(data=st.data())
def test_what_is_read_of_any_text_is_finite_or_refused_and_rewards_of_it_are_in_range(words: Any, hold: Any, data: st.DataObject):
    hold(data.draw(texts(*words)))


def corners() -> st.SearchStrategy[float]:
    return st.floats(-1e12, 1e12, allow_nan=False) | st.floats(-2, 2)


@few
@given(*[corners()] * 4, st.sampled_from(["json", "list", "tags", "corners"]), st.text(max_size=8))
def test_a_box_that_is_written_is_read_again(a: float, b: float, c: float, d: float, style: Any, label: str):
    """Rounding aside: what is read is written the same way again, label included where the style can quote it."""
    try:
        box = Box(a, b, c, d, "pixel", label if style == "json" else None)
    except ValueError:
        return
    text = box_in(style, box)
    [read] = parse_boxes(f"<answer>{text}</answer>", "pixel")
    assert box_in(style, read) == text and read.label == box.label


@few
@given(st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from(["text", "list", "json", "clock"]), st.integers(0, 3))
def test_a_span_that_is_written_is_read_again(start: float, end: float, style: Any, digits: int):
    if not start < end:
        return
    text = span_in(style, Interval(start, end), digits)
    [read] = parse_intervals(f"<answer>{text}</answer>")
    assert span_in(style, read, digits) == text


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["none", "auto", "iou"])
VALUES = st.deferred(lambda: SCALARS | st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=6), VALUES, max_size=3))


@few
@given(st.data())
def test_a_config_is_a_run_or_is_refused_with_a_sentence(data: st.DataObject):
    table = copy.deepcopy(data.draw(st.sampled_from(TABLES)))
    for _ in range(data.draw(st.integers(1, 3))):
        holder: dict[str, Any] = table
        key = data.draw(st.sampled_from(sorted(holder)) | st.text(max_size=6))
        while isinstance(holder.get(key), dict) and holder[key] and data.draw(st.booleans()):
            holder = holder[key]
            key = data.draw(st.sampled_from(sorted(holder)) | st.text(max_size=6))
        holder[key] = data.draw(VALUES)
    properties.config(table, data.draw(st.lists(st.text(max_size=12).map(lambda text: f"policy.{text}=1"), max_size=1)))


@few
@given(st.text(max_size=80) | st.lists(st.sampled_from(["[", "]", "policy", ".", "=", "'x'", "\n", "{", "}", "1"])).map("".join))
def test_a_file_is_a_run_or_is_refused_with_a_sentence(text: str):
    properties.config_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "a." * 5000 + "b = 1",
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "[" * 200 + "]" * 200,
        "[data]\nuse = 'x'\n" + "a." * 90 + "b = 1",
    ],
)
def test_deep_tables_are_refused_with_a_sentence(text: str, tmp_path: Path):
    file = tmp_path / "a.toml"
    file.write_text(text)
    refused(r"a\.toml(: tables and lists are nested deeper than 50 levels| is not TOML)", Table.read, file)
    table = Table.of({}, "a.toml")
    refused("nested deeper", table.override, "a." * 5000 + "b=1")
    assert table.values == {}
    table.override("a=" + "[" * 5000 + "]" * 5000)
    assert isinstance(table.values["a"], str)


TYPES = st.sampled_from(["Group", "Prompt", "Sample", "Video", "Box", "Interval", "MediaSize", "Popen"])
KEYS = st.sampled_from(["$type", "$tuple", "$dict", "$float", "$image", "$array", "$file", "suffix", "id", "prompt", "samples"])
NAMES = st.sampled_from(["a", "values", "status", "parts", "fingerprint", "raised", "media", "source", "sizes", "probes"])
WIRED = st.deferred(
    lambda: LEAVES | TYPES | st.lists(WIRED, max_size=3) | st.dictionaries(KEYS | NAMES, WIRED | TYPES, max_size=4)
)
LEAVES = st.none() | st.integers() | st.text(max_size=5)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F32", "BF16", "I64", "?"]),
        "shape": st.lists(st.integers(-1, 8), max_size=4),
        "data_offsets": st.lists(st.integers(-1, 16), min_size=1, max_size=2),
    }
)


@settings(few, max_examples=120)
@given(WIRED, st.dictionaries(NAMES, ENTRY, max_size=2), st.integers(0, 32))
def test_a_message_is_a_group_or_reply_or_is_refused(value: Any, arrays: dict[str, Any], size: int):
    envelope = json.dumps({"protocol": wire.PROTOCOL, "value": value})
    header = json.dumps({"__metadata__": {"mmrl": envelope}, **arrays}).encode()
    properties.message(properties.frame(header, b"\1" * size))


@pytest.mark.parametrize(
    "text", ["(31e308,3)", "[1e308, -1e308]", "[1, 2, 3e300, 4]", "[0, 0, 1e-200, 1e-200]", "[0,0,1e12,2e12]"]
)
def test_numbers_that_overflow_make_neither_boxes_nor_points_that_score(text: str):
    """Found by the fuzzer: infinite points, and a GIoU of infinity by infinity."""
    properties.boxes(text)


@pytest.mark.parametrize(
    "text", ["0/1e308 to hos", "[3&21e3087.0]", "from %.31e308. ", "0 to 1e308 seconds", "frame 1e308", "1e300 to 1e301"]
)
def test_times_that_overflow_are_none(text: str):
    """Found by the fuzzer: infinite times, and spans that did not overlap themselves."""
    properties.spans(text)
    assert parse_intervals(text) == [] and all(time < 1e3 for time in parse_times(text))


def test_boxes_beyond_any_picture_are_refused():
    refused(r"beyond 1e\+12", Box, 0, 0, 1, 1e13)
    refused("no area", Box, 0, 0, 1e-200, 1e-200)
    assert giou(Box(0, 0, 1, 1), Box(1e12 - 1, 1e12 - 1, 1e12, 1e12)) == pytest.approx(-1)


def group(**changes: Any) -> dict[str, Any]:
    """A group as a message says it."""
    prompt = {"$type": "Prompt", "id": "p", "media": {"$tuple": []}}
    sample = {"$type": "Sample", "text": "x"}
    return {"$type": "Group", "id": 0, "prompt": prompt, "samples": {"$tuple": [sample]}} | changes


def body(value: Any) -> bytes:
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    header = {"__metadata__": {"mmrl": json.dumps({"protocol": wire.PROTOCOL, "value": value})}, "a": entry}
    return properties.frame(json.dumps(header).encode(), b"\0" * 4)


def build_unchecked(cls: type, **values: Any) -> Any:
    """A dataclass as it is made where types are not checked while running."""
    made = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": (3,)},
        {"samples": 5},
        {"samples": []},
        {"prompt": "p"},
        {"probes": 7},
        {"probes": {"view": [1]}},
        {"prompt": build_unchecked(Prompt, id="p", media="/etc/passwd")},
    ],
)
def test_a_group_is_made_of_samples(changes: dict[str, Any]):
    """Found by the fuzzer: a group of numbers reached the server, which answered 500."""
    good: dict[str, Any] = {"id": 0, "prompt": Prompt("p"), "samples": (Sample("x"),), "probes": {}}
    wire.check_group(build_unchecked(Group, **good))
    refused("the message's group", wire.check_group, build_unchecked(Group, **(good | changes)), error=wire.WireError)


@pytest.mark.parametrize("kind", ["$array", "$file"])
def test_an_array_that_is_named_twice_does_not_unfold(kind: str, tmp_path: Path):
    twice = group(prompt={"$type": "Prompt", "id": "p", "media": {"$tuple": [{kind: "a"}, {kind: "a"}]}})
    refused("twice", wire.unpack_group, body(twice), tmp_path, error=wire.WireError)


HOSTILE = ["[", "(1,", "[1,2,3,", "{", '"label": "', "\\", "<answer>", "<think>", "```", "x1=1,", " ", "1", "1.", "1e", "-"]
HOSTILE += ["<box>", "A, ", "(A) and ", "answer is A ", "the answer is ", "\\frac{1}{", "1,000,", "1 / ", "1:", "frame ", "1 to "]
HOSTILE += ["1m and ", "1 m and ", "1m ", "1 ", "1 end ", "frame 1 - ", "[1,", '{"start": 1, ', "<answer>1"]


@pytest.mark.parametrize("piece", HOSTILE)
def test_long_texts_end_in_every_parser(piece: str):
    """20,000 characters of the worst kind, and ten times as many for spans: in quadratic time one of these would take minutes."""
    parse_intervals(piece * (200_000 // len(piece)))
    for text in (piece * (20_000 // len(piece)), piece.replace(" ", " " * 10_000) * 2, "1" * 20_000 + piece):
        for read in (parse_points, says_nothing, parse_intervals, parse_times, parse_number, parse_choices):
            read(text)
        parse_boxes(text, "pixel")
        assert not any(keeps_format(text, template) for template in ("direct", "think"))
