"""Charades-STA: sentences and when they happen, `AO8RW 0.0 6.9##a person is putting a book on a shelf.`

Spans are in seconds. A span that ends up to a second after its clip is cut there; one further out, or inverted, is a bad row.
Licence: that of Charades and Charades-STA; nothing is shipped.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.answers.spans.interval import Interval
from mmrl.data.readers import Row, read_text
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoRow, number_of, read_videos
from mmrl.runtime.ranges import LargeOrNone

_LABELLED = re.compile(r"(\S+)\s+(\S+)\s+(\S+?)\s*##(.*)")
_UNLABELLED = re.compile(r"(\S+?)(?:\s+\S+\s+\S+?)?\s*##(.*)")


def load(
    path: str | Path,
    videos: str | Path | None = None,
    template: str | None = None,
    max_bad: LargeOrNone = 0,
    labelled: bool = True,
) -> Sequence[Prompt]:
    """One prompt per line; the answer is an Interval in seconds, or None where nothing is labelled.

    Columns: problem_type, duration, fps.

    Args:
        path: charades_sta_train.txt or its like.
        videos: the folder that holds AO8RW.mp4 and so on, in it or below; the file's folder by default.
        template: the prompt's text, with {question} in it for the sentence.
        max_bad: up to this many bad rows are skipped with a warning; one more is an error.
        labelled: False passes over the times, which may be missing, so that nothing can train on them.

    Raises:
        ValueError: listing the first bad rows with file and line.
    """
    return read_videos(path, videos, lambda file, report: _rows(file, report, labelled), _asked, template, max_bad)


def _rows(path: Path, report: Report, labelled: bool = True) -> Iterator[Row]:
    """Rows from lines such as `AO8RW 0.0 6.9##a person is putting a book on a shelf.`; unlabelled, the times are passed over."""
    pattern, keys = (_LABELLED, ("video", "start", "end", "sentence")) if labelled else (_UNLABELLED, ("video", "sentence"))
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        match = pattern.fullmatch(line.strip())
        if match:
            yield Row(dict(zip(keys, match.groups(), strict=True)), path.name, number)
        elif line.strip():
            said = f"{line.strip()[:60]!r} is not like 'AO8RW 0.0 6.9##a person sits down'"
            report.add(f"{path.name}:{number}", said, counts=True)


def _asked(row: Row) -> Iterator[VideoRow]:
    values = row.values
    span = Interval(number_of(values["start"], "start"), number_of(values["end"], "end")) if "start" in values else None
    yield VideoRow(f"{values['video']}-{row.number}", values["video"], values["sentence"], "temporal grounding", span)
