"""ActivityNet Captions: sentences and when they happen, in one JSON object by video.

    {"v_abc": {"duration": 82.7, "timestamps": [[0.8, 19.9], ..], "sentences": ["A woman ..", ..]}, ..}

Spans are in seconds. A span that ends up to a second after its clip is cut there; one further out, or inverted, is a bad row.
Licence: that of ActivityNet and its videos; nothing is shipped.
"""

from collections.abc import Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.core.ranges import CountOrNone
from mmrl.data.validate import Report
from mmrl.data.video_layouts import activitynet, activitynet_rows
from mmrl.data.video_rows import read_videos


def load(
    path: str | Path,
    videos: str | Path | None = None,
    template: str | None = None,
    max_bad: CountOrNone = 0,
    labelled: bool = True,
) -> Sequence[Prompt]:
    """One prompt per sentence; the answer is an Interval in seconds, or None where nothing is labelled.

    Columns: problem_type, duration, fps.

    Args:
        path: train.json, val_1.json or their like.
        videos: the folder that holds v_abc.mp4 (or .mkv, .webm) and so on, in it or below; the file's folder by default.
        template: the prompt's text, with {question} in it for the sentence.
        max_bad: so many bad rows are left out with a warning; one more is an error.
        labelled: False passes over the times, which may be missing, so that nothing can train on them.

    Raises:
        ValueError: listing the first bad rows with file, video and number of the sentence.
    """
    file = Path(path)
    report = Report(str(path))
    folder = file.parent if videos is None else Path(videos)
    return read_videos(activitynet_rows(file, report, labelled), activitynet, folder, report, template, max_bad)
