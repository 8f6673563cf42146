"""Where a report says the time went, against numbers added by hand."""

import re
from itertools import pairwise

from mmrl.app.report.timing import Phase, phases, time_band
from tests.app.report.test_page import page_of
from tests.support.runs import write_run

LINES = [
    {"step": 1, "time/step_s": 8.0, "time/rollout_share": 0.5, "time/update_share": 0.25, "time/rollout_s": 9.0},
    {"step": 2, "time/step_s": 24.0, "time/rollout_share": 0.125, "time/update_share": 0.875},
]


def test_parts_of_all_steps_and_of_the_last():
    # rollout 4 + 3 of 32 s, update 2 + 21, the rest 2 + 0; shares of all processes count before seconds of one
    assert phases(LINES) == [
        Phase("rollout", "p0", 3.5, 0.21875, 0.125),
        Phase("update", "p3", 11.5, 0.71875, 0.875),
        Phase("everything else", "p4", 1.0, 0.0625, 0.0),
    ]


def test_older_runs_have_seconds_alone():
    found = phases([{"step": 1, "time/step_s": 4.0, "time/rollout_s": 1.0, "time/read_s": 2.0}, {"step": 2, "time/step_s": None}])
    assert [(phase.name, phase.share) for phase in found] == [
        ("rollout", 0.25),
        ("reading old and reference weights", 0.5),
        ("everything else", 0.25),
    ]
    assert phases([{"step": 1, "loss": 1.0}]) == [] and time_band(LINES[:1]) == ""


def test_bands_are_stacked_to_the_top():
    band = time_band(LINES)
    heights = [[float(y) for y in re.findall(r",([\d.]+)", points)] for points in re.findall(r'points="([^"]+)"', band)]
    assert len(heights) == 3
    for lower, upper in pairwise(heights):
        # a band's upper edge left to right is the next one's lower edge right to left
        assert lower[:2] == upper[:1:-1]
    assert heights[-1][:2] == [10.0, 10.0] and heights[0][:1:-1] == [184.0, 184.0]


def test_long_runs_are_thinned():
    lines = [{"step": step, "time/step_s": 1.0, "time/update_share": 1.0} for step in range(1, 1001)]
    assert max(len(points.split()) for points in re.findall(r'points="([^"]+)"', time_band(lines))) <= 300


def test_the_page_shows_them(tmp_path):
    page = page_of(write_run(tmp_path / "run"))
    assert "Where the time went" in page and '<polygon class="band p0"' in page and "last step</th>" in page
