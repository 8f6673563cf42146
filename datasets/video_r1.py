"""Video-R1: questions of several types about videos and pictures, a JSON list or JSONL.

    {"problem_id": 2, "problem": "What ..?", "data_type": "video", "problem_type": "multiple choice",
     "options": ["A. a cat", "B. a dog"], "solution": "<answer>B</answer>", "path": "./clips/2.mp4"}

Types: multiple choice, numerical, regression, OCR, free-form. The reward `by_type` scores each by its own. Licence: that of
the many collections its videos are from; nothing is shipped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.core.ranges import CountOrNone, Share
from mmrl.data.inversion import with_inversion
from mmrl.data.readers import read_rows
from mmrl.data.validate import Report
from mmrl.data.video_layouts import VideoR1
from mmrl.data.video_rows import read_videos


def load(
    path: str | Path,
    videos: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    template: str | None = None,
    max_bad: CountOrNone = 0,
    invert: Share = 0.0,
) -> Sequence[Prompt]:
    """One prompt per row; the answer is the text inside the solution's tags.

    Columns: problem_type, options, for videos duration and fps, and all others of the file.

    Args:
        path: a .json, .jsonl or .parquet file.
        videos: the folder that paths start from and which none leaves; the file's folder by default, and then absolute paths
            may name any video.
        columns: our name -> the file's, for problem_id, problem, problem_type, options, solution, path and data_type.
        template: the prompt's text, with {question} in it; options follow the question.
        max_bad: so many bad rows are left out with a warning; one more is an error.
        invert: this share of the questions with one right option asks for all wrong ones instead (TW-GRPO), where the question
            can be negated; the column `inverted` marks them.

    Raises:
        ValueError: a share outside 0 to 1; or listing the first bad rows with file and line, among them those of an unknown type.
    """
    file = Path(path)
    report = Report(str(path))
    folder = file.parent if videos is None else Path(videos)
    rows = read_rows(file, report)
    return read_videos(
        rows, with_inversion(VideoR1(columns or {}), invert), folder, report, template, max_bad, anywhere=videos is None
    )
