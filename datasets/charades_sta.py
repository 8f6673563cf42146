"""Charades-STA: sentences and when they happen, `AO8RW 0.0 6.9##a person is putting a book on a shelf.`

Spans are in seconds. A span that ends up to a second after its clip is cut there; one further out, or inverted, is a bad row.
Licence: that of Charades and Charades-STA; nothing is shipped.
"""

from collections.abc import Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.core.ranges import CountOrNone
from mmrl.data.validate import Report
from mmrl.data.video_layouts import charades, charades_rows
from mmrl.data.video_rows import read_videos


def load(
    path: str | Path,
    videos: str | Path | None = None,
    template: str | None = None,
    max_bad: CountOrNone = 0,
    labelled: bool = True,
) -> Sequence[Prompt]:
    """One prompt per line; the answer is an Interval in seconds, or None where nothing is labelled.

    Columns: problem_type, duration, fps.

    Args:
        path: charades_sta_train.txt or its like.
        videos: the folder that holds AO8RW.mp4 and so on, in it or below; the file's folder by default.
        template: the prompt's text, with {question} in it for the sentence.
        max_bad: so many bad rows are left out with a warning; one more is an error.
        labelled: False passes over the times, which may be missing, so that nothing can train on them.

    Raises:
        ValueError: listing the first bad rows with file and line.
    """
    file = Path(path)
    report = Report(str(path))
    folder = file.parent if videos is None else Path(videos)
    return read_videos(charades_rows(file, report, labelled), charades, folder, report, template, max_bad)
