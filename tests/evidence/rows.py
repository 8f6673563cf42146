"""All rows: a file of rows is added here."""

from tests.evidence import flow_rows, planner_rows, sampler_rows, state_rows, text_rows, video_rows

ROWS = [*text_rows.ROWS, *state_rows.ROWS, *planner_rows.ROWS, *video_rows.ROWS, *flow_rows.ROWS, *sampler_rows.ROWS]
ELSEWHERE = {**text_rows.ELSEWHERE, **video_rows.ELSEWHERE, **flow_rows.ELSEWHERE, **sampler_rows.ELSEWHERE}
