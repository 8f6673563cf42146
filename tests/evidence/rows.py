"""All rows: a file of rows is added here."""

from tests.evidence import (
    chains,
    codes,
    pixels,
    planner_rows,
    points,
    sounds,
    text_tasks,
    thinking_rows,
    turn_tasks,
    video_rows,
)

FILES = (text_tasks, planner_rows, video_rows, points, turn_tasks, pixels, chains, codes, thinking_rows, sounds)
ROWS = [row for file in FILES for row in file.ROWS]
ELSEWHERE = {**text_tasks.ELSEWHERE, **video_rows.ELSEWHERE, **points.ELSEWHERE}
