"""CLEVRER: questions about colliding objects, some with several right options.

    [{"video_filename": "video_0.mp4", "questions": [
        {"question_type": "counterfactual", "question": "What ..?", "choices": [{"choice": "..", "answer": "correct"}, ..]},
        {"question_type": "descriptive", "question": "How many ..?", "answer": "2"}]}, ..]

Of these two answers are "A" and "2". Licence: that of CLEVRER; nothing is shipped.
"""

from collections.abc import Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.core.ranges import CountOrNone, Share
from mmrl.data.inversion import with_inversion
from mmrl.data.validate import Report
from mmrl.data.video_layouts import Clevrer, clevrer_rows
from mmrl.data.video_rows import read_videos


def load(
    path: str | Path,
    videos: str | Path | None = None,
    kinds: Sequence[str] = (),
    template: str | None = None,
    max_bad: CountOrNone = 0,
    invert: Share = 0.0,
) -> Sequence[Prompt]:
    """One prompt per question; the answer is letters such as "A,C", a number or a word.

    Columns: problem_type, question_kind, options, duration, fps.

    Args:
        path: train.json, validation.json or their like.
        videos: the folder that holds the videos, in it or below; the file's folder by default.
        kinds: keep only these of descriptive, explanatory, predictive, counterfactual; () = all.
        template: the prompt's text, with {question} in it; options follow the question.
        max_bad: so many bad rows are left out with a warning; one more is an error.
        invert: this share of the questions with one right option asks for all wrong ones instead (TW-GRPO), where the question
            can be negated; the column `inverted` marks them.

    Raises:
        ValueError: a share outside 0 to 1; or listing the first bad rows with file, video and number of the question.
    """
    file = Path(path)
    report = Report(str(path))
    folder = file.parent if videos is None else Path(videos)
    return read_videos(clevrer_rows(file), with_inversion(Clevrer(tuple(kinds)), invert), folder, report, template, max_bad)
