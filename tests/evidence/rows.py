"""All rows: a file of rows is added here."""

from tests.evidence import flow_rows, planner_rows, sampler_rows, text_rows, video_rows

FILES = (text_rows, video_rows, flow_rows, planner_rows, sampler_rows)
ROWS = [row for file in FILES for row in file.ROWS]
ELSEWHERE = {name: reason for file in FILES for name, reason in file.ELSEWHERE.items()}
