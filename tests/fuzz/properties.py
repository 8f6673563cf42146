"""Properties that hold for every input, however strange: shared by the property tests here and by benchmarks/fuzz.py."""

import json
import struct
import tempfile
import tomllib
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from mmrl.answers.block import keeps_format
from mmrl.answers.boxes.attempts import read_boxes
from mmrl.answers.boxes.box import SPACES, Box, giou, iou
from mmrl.answers.boxes.parsing import parse_boxes, parse_points, says_nothing
from mmrl.answers.calls import CallError, parse_call
from mmrl.answers.choices import LETTERS, parse_choices
from mmrl.answers.numbers import is_close, parse_number, regression_score, relative_accuracy
from mmrl.answers.spans.attempts import read_spans
from mmrl.answers.spans.interval import UNITS, Interval, temporal_iou
from mmrl.answers.spans.parsing import parse_intervals, parse_times
from mmrl.app.config.run import resolve
from mmrl.app.toml.tables import Table
from mmrl.core.samples import Group, MediaSize, Prompt, Sample
from mmrl.serving import wire

TRUTH = Box(10, 20, 60, 80, "pixel", "cat")
SIZE = MediaSize(100, 120, 112, 140)
SPAN = Interval(2.0, 5.0)
OPTIONS = ("a dog", "two cats", "none of these")
ALLOWED = (ValueError, FileNotFoundError)
"""The errors that a config may be refused with."""


def boxes(text: str) -> None:
    """Reading raises nothing, and gives boxes with finite sides in the space asked for; rewards see numbers in range."""
    for space in SPACES:
        for box in parse_boxes(text, space):
            assert box.space == space and all(isfinite(x) for x in (*box.corners, box.area)) and box.area > 0
            other = Box(*TRUTH.corners, space)
            assert 0 <= iou(box, other) <= 1 and -1 <= giou(box, other) <= 1
            assert iou(box, box) == 1
    for point in parse_points(text):
        assert all(map(isfinite, point))
    says_nothing(text)
    for sizes in ((SIZE,), ()):
        for space in SPACES if sizes else ("pixel",):
            attempt = read_boxes(Prompt("p", answer=TRUTH), Sample(text, media_sizes=sizes), space)
            assert not (attempt.outside and attempt.predicted)
            assert 0 <= attempt.best(iou) <= 1 and all(0 <= x <= 1 for x in attempt.parts().values())


def spans(text: str) -> None:
    """Reading raises nothing; spans are spans, times are finite, and overlaps are shares."""
    for unit in UNITS:
        for span in parse_intervals(text, unit):
            assert 0 <= span.start < span.end and isfinite(span.end)
            assert temporal_iou(span, span) == 1
        for wanted in UNITS:
            assert all(isfinite(time) and time >= 0 for time in parse_times(text, unit, wanted))
    for columns in ({"duration": 10.0, "fps": 4.0}, {}):
        prompt = Prompt("p", answer=SPAN, columns=columns)
        for unit in UNITS if columns else ("seconds",):
            attempt = read_spans(prompt, Sample(text), unit)
            assert 0 <= attempt.iou <= 1 and all(isfinite(time) for time in attempt.times)
            assert all(span.unit == "seconds" and isfinite(span.end) for span in attempt.predicted)
            assert not columns or all(span.end <= 10 for span in attempt.predicted)


def answers(text: str) -> None:
    """Letters are letters, numbers are finite, and what is scored by them is a share."""
    assert parse_choices(text) <= set(LETTERS)
    assert parse_choices(text, OPTIONS) <= set("ABC")
    number = parse_number(text)
    if number is not None:
        assert isfinite(number.value)
        for truth in (number, number._replace(value=3.5), number._replace(value=0.0, percent=not number.percent)):
            assert 0 <= regression_score(number, truth) <= 1 and 0 <= relative_accuracy(number, truth) <= 1
        assert is_close(number, number)
    for template in ("direct", "think", "json"):
        keeps_format(text, template)


def calls(text: str) -> None:
    """A turn calls nothing, or a tool by a word with arguments that can be written down, or is refused with a short sentence."""
    for form in ("tags", "json", "code"):
        for plain in (None, ("zoom", "bbox_2d")):
            try:
                call = parse_call(text, form, plain)
            except CallError as error:
                assert 0 < len(str(error)) < 200 and str(error).isprintable()
                continue
            if call is not None:
                assert call.name.isascii() and call.name.isprintable()
                assert json.dumps(call.arguments, allow_nan=False, ensure_ascii=False).encode()


def config_text(text: str) -> None:
    """A file that is TOML is a run, or is refused with a sentence."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    config(values)


def config(values: dict[str, Any], overrides: Sequence[str] = ()) -> None:
    """Whatever stands in a table, it is a run or is refused with a sentence that is not empty."""
    try:
        resolved = resolve(Table.of(values, "a.toml"), overrides)
    except ALLOWED as error:
        assert str(error).strip()
        return
    assert list(resolved.rows())


def message(body: bytes) -> None:
    """A message is a group, a reply, or refused; nothing is written outside the folder that was given."""
    with tempfile.TemporaryDirectory() as folder:
        inner = Path(folder) / "inner"
        inner.mkdir()
        for read in (wire.array_shapes, lambda body: wire.unpack_group(body, inner), wire.unpack_reply):
            try:
                found = read(body)
            except wire.WireError as error:
                assert str(error).strip()
                continue
            if isinstance(found, wire.ServedScores):
                assert len(found.values) == len(found.status) == len(found.parts)
                assert all(isinstance(x, float) for own in found.parts for x in own.values())
                assert isinstance(found.fingerprint, str) and isinstance(found.raised, str | None)
            if isinstance(found, Group):
                assert isinstance(found.prompt, Prompt) and all(isinstance(sample, Sample) for sample in found.samples)
        assert [path.name for path in Path(folder).iterdir()] == ["inner"]
        assert all(path.is_file() and path.parent == inner for path in inner.rglob("*"))


def frame(header: bytes, data: bytes = b"") -> bytes:
    """A body with this header: fuzzers do not guess its length."""
    return struct.pack("<Q", len(header)) + header + data
