"""ActivityNet Captions: sentences and when they happen, in one JSON object by video.

    {"v_abc": {"duration": 82.7, "timestamps": [[0.8, 19.9], ..], "sentences": ["A woman ..", ..]}, ..}

Spans are in seconds. A span that ends up to a second after its clip is cut there; one further out, or inverted, is a bad row.
Licence: that of ActivityNet and its videos; nothing is shipped.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.data.layouts.base import note_unused
from mmrl.data.readers import Row
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoRow, object_of, read_videos, span_of
from mmrl.runtime.ranges import LargeOrNone


def load(
    path: str | Path,
    videos: str | Path | None = None,
    template: str | None = None,
    max_bad: LargeOrNone = 0,
    labelled: bool = True,
) -> Sequence[Prompt]:
    """One prompt per sentence; the answer is an Interval in seconds, or None where nothing is labelled.

    Columns: problem_type, duration, fps.

    Args:
        path: train.json, val_1.json or their like.
        videos: the folder that holds v_abc.mp4 (or .mkv, .webm) and so on, in it or below; the file's folder by default.
        template: the prompt's text, with {question} in it for the sentence.
        max_bad: up to this many bad rows are skipped with a warning; one more is an error.
        labelled: False passes over the times, which may be missing, so that nothing can train on them.

    Raises:
        ValueError: listing the first bad rows with file, video and number of the sentence.
    """
    return read_videos(path, videos, lambda file, report: _rows(file, report, labelled), _asked, template, max_bad)


def _rows(path: Path, report: Report, labelled: bool = True) -> Iterator[Row]:
    """Rows from `{"v_abc": {"timestamps": [[0.8, 19.9], ..], "sentences": ["A woman ..", ..]}, ..}`, one row per sentence.

    Unlabelled, the timestamps are passed over.
    """
    for video, entry in object_of(path).items():
        place = f"{path.name}:{video}"
        times, sentences = (entry.get(key) if isinstance(entry, dict) else None for key in ("timestamps", "sentences"))
        note_unused(report, {"video": entry}, {"video": ("duration", "timestamps", "sentences")})
        if not labelled and isinstance(sentences, list):
            yield from (Row({"video": video, "sentence": one}, place, number) for number, one in enumerate(sentences, start=1))
            continue
        if not isinstance(times, list) or not isinstance(sentences, list) or len(times) != len(sentences):
            report.add(place, "a video needs the lists timestamps and sentences, both of one length", counts=True)
            continue
        for number, (pair, sentence) in enumerate(zip(times, sentences, strict=True), start=1):
            yield Row({"video": video, "pair": pair, "sentence": sentence}, place, number)


def _asked(row: Row) -> Iterator[VideoRow]:
    video, span = row.values["video"], span_of(row.values["pair"]) if "pair" in row.values else None
    yield VideoRow(f"{video}-{row.number}", video, str(row.values["sentence"]), "temporal grounding", span)
