"""NExT-GQA: questions with five options (val.csv), and the spans that show the answer (gsub_val.json).

    video_id,frame_count,width,height,question,answer,qid,type,a0,a1,a2,a3,a4
    {"10001787725": {"duration": 34, "location": {"1": [[1.2, 5.8]]}, "fps": 29.97}, ..}

NExT-QA's files, where the answer is an option's number, are read too. Licence: that of NExT-GQA; nothing is shipped.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mmrl import Prompt
from mmrl.core.ranges import CountOrNone, Share
from mmrl.data.inversion import with_inversion
from mmrl.data.readers import csv_rows
from mmrl.data.validate import Report
from mmrl.data.video_layouts import NextGqa
from mmrl.data.video_rows import read_videos


def load(
    path: str | Path,
    videos: str | Path | None = None,
    spans: str | Path | None = None,
    ask: Literal["which", "when"] = "which",
    template: str | None = None,
    max_bad: CountOrNone = 0,
    invert: Share = 0.0,
) -> Sequence[Prompt]:
    """One prompt per row; the answer is a letter (which), or a tuple of Intervals in seconds (when).

    Columns: problem_type, question_kind (CW, TN, ..), duration, fps; for `which` also options, and spans if they are known.

    Args:
        path: the CSV file.
        videos: the folder that holds 10001787725.mp4 and so on, in it or below; the file's folder by default.
        spans: gsub_val.json or its like.
        ask: which option is right, or when the question and its right option are shown.
        template: the prompt's text, with {question} in it.
        max_bad: so many bad rows are left out with a warning; one more is an error.
        invert: this share of the questions `which` asks for all wrong options instead (TW-GRPO), where the question can be
            negated; the column `inverted` marks them.

    Raises:
        ValueError: a share outside 0 to 1, or one above 0 with ask = when; or listing the first bad rows with file and line.
    """
    file = Path(path)
    report = Report(str(path))
    folder = file.parent if videos is None else Path(videos)
    parse = with_inversion(NextGqa.of(None if spans is None else Path(spans), ask == "when"), invert)
    if invert and ask == "when":
        raise ValueError(
            f"invert is {invert}, but ask = 'when' asks for spans, which have no options: set invert = 0 or ask = 'which'"
        )
    return read_videos(csv_rows(file), parse, folder, report, template, max_bad)
