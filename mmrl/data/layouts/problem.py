"""`problem` and `solution`, as VLM-R1, Open-R1 and Geometry3K write them.

{"image": "train2014/1.jpg", "problem": "Where is the left cat?", "solution": [1, 2, 30, 40], "normal_caption": "left cat"}
{"images": ["a.png"], "problem": "<image>Find x.", "answer": "2\\\\sqrt{3}"}
"""

from collections.abc import Iterator

from mmrl.data.layouts.answers import say_answer
from mmrl.data.layouts.base import ANSWERS, CLIPS, PICTURES, Look, RowLayout, one_of, row_like
from mmrl.data.readers import Row


def is_one(look: Look) -> bool:
    # Video-R1's rows have a path, and the data set video_r1 reads them
    return look.has("problem") and look.has_one(*ANSWERS) and not look.has_one("path", "question")


def one(row: Row) -> Iterator[Row]:
    text = row.values.get("problem")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"column problem must be a text that is not empty, not {str(text)[:80]!r}")
    pictures, clips = one_of(row, *PICTURES), one_of(row, *CLIPS)
    said = {"question": text.strip(), "image": pictures or None, "video": clips or None}
    solution = row.values.get("answer") if row.values.get("answer") is not None else one_of(row, *ANSWERS)
    used = ("problem", *PICTURES, *CLIPS, *ANSWERS)
    yield row_like(row, used, {**said, **say_answer(solution, bool(pictures))})


PROBLEM = RowLayout(
    "problem",
    "problem and solution, as VLM-R1 writes RefCOCO",
    ("problem", *PICTURES, *CLIPS, *ANSWERS, "id", "split"),
    is_one,
    one,
)
