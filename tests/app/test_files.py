import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mmrl.app.files import json_text


@dataclass
class Point:
    x: float
    name: object


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        ([math.inf, -math.inf, 1.5], [None, None, 1.5]),
        (np.float32(0.5), 0.5),
        (np.float32("nan"), None),
        (np.int64(3), 3),
        (True, True),
        (Path("a/b"), "a/b"),
        ({1: (2, 3)}, {"1": [2, 3]}),
        (Point(math.nan, Point(1.0, {"a"})), {"x": None, "name": {"x": 1.0, "name": ["a"]}}),
        (np.zeros(2), "[0. 0.]"),
    ],
    ids=str,
)
def test_everything_is_json(value: object, expected: object):
    assert json.loads(json_text(value), parse_constant=pytest.fail) == expected


def test_no_character_reaches_a_terminal_as_it_is():
    """The terminal writes control characters out as Python does, which JSON does not read."""
    text = json_text("\x1b]0;owned\x07\x9b\u202e\ud800ä")
    assert text.isascii() and text.isprintable() and json.loads(text) == "\x1b]0;owned\x07\x9b\u202e\ud800ä"
