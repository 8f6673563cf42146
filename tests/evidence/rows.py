"""All rows: a file of rows is added here."""

from tests.evidence import (
    code_rows,
    flow_rows,
    pixel_rows,
    planner_rows,
    reference_rows,
    sampler_rows,
    sounds,
    stage_rows,
    state_rows,
    text_rows,
    thinking_rows,
    turn_rows,
    video_rows,
)

FILES = (
    *(text_rows, state_rows, planner_rows, video_rows, flow_rows, sampler_rows, reference_rows, turn_rows),
    *(pixel_rows, stage_rows, code_rows, thinking_rows, sounds),
)
ROWS = [row for file in FILES for row in file.ROWS]
ELSEWHERE = {**text_rows.ELSEWHERE, **video_rows.ELSEWHERE, **flow_rows.ELSEWHERE}
