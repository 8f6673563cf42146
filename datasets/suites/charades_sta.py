"""Charades-STA: the span of time in which a sentence happens in a clip.

Prompt, reading of answers and scores: those of lmms-eval. An answer without a span has no overlap; of several spans the first
counts. Size: that of lmms-lab/charades_sta on the hub.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmrl.answers.boxes.box import Space
from mmrl.core.samples import Prompt, Sample, Scored, Video
from mmrl.data.readers import Row, read_text
from mmrl.data.suites.suite import Suite, SuiteFile, answer_text
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoFolder, number_of

ASKED = (
    "Please find the visual event described by a sentence in the video, determining its starting and ending times. The format "
    "should be: 'The event happens in the start time - end time'. For example, The event 'person turn a light on' happens in the "
    "24.3 - 30.4 seonds. Now I will give you the textual sentence: {}. Please return its start time and end time."
)
FILE, CLIPS = "charades_sta_test.txt", "Charades_v1_480/"
_LINE = re.compile(r"(\S+)\s+(\S+)\s+(\S+?)\s*##(.*)")
_SHOWN = "a specific example is : 20.8 - 30.0 seconds"
_NUMBER, _CLOCK, _DASH = r"(\d+(?:\.\d+)?)", r"(\d{1,2}:\d{2}(?::\d{2})?)", r"\s*[–-]\s*"  # noqa: RUF001 - a dash of answers
_RANGES = [
    re.compile(pattern)
    for pattern in (rf"\b{_CLOCK}{_DASH}{_CLOCK}\b", _NUMBER + _DASH + _NUMBER, rf"{_NUMBER}\s*s?{_DASH}{_NUMBER}\s*s?")
]
_CLOCKS, _FIRST = re.compile(rf"\b{_CLOCK}\b"), re.compile(rf"\b{_NUMBER}\b")


def rows(suite: Suite, folder: Path, report: Report) -> Iterator[Row]:
    """Lines such as `AO8RW 0.0 6.9##a person sits down.`"""
    lines = read_text(folder / FILE).splitlines()
    return (Row({"line": line}, FILE, number) for number, line in enumerate(lines, start=1) if line.strip())


def prompt_of(row: Row, clips: VideoFolder) -> Prompt:
    found = _LINE.fullmatch(row.values["line"].strip())
    if found is None:
        raise ValueError(f"{row.values['line'][:60]!r} is not like 'AO8RW 0.0 6.9##a person sits down'")
    name, start, end, sentence = found.groups()
    span = [number_of(start, "start"), number_of(end, "end")]
    columns = {"split": "test", "question": sentence, "span": span}
    return Prompt(f"{name}-{row.number}", ASKED.format(sentence), (Video(str(clips.find(name))),), str(span), columns)


def score(prompt: Prompt, sample: Sample, space: Space) -> Scored:
    """Overlap of the span in seconds."""
    found, true = span_of(answer_text(sample)), prompt.columns["span"]
    overlap = 0.0 if found is None else overlap_of(found, true)
    parts = {f"r{share}": float(overlap >= share / 10) for share in (3, 5, 7)}
    return Scored(overlap, {**parts, "unparsed": float(found is None)})


def overlap_of(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over the hull of both; 0 where that has no length."""
    hull = max(a[1], b[1]) - min(a[0], b[0])
    return max(min(a[1], b[1]) - max(a[0], b[0]), 0.0) / hull if hull > 0 else 0.0


def span_of(text: str) -> tuple[float, float] | None:
    """The first span in a text, in seconds: a range of clock times, of numbers, then two times, then two numbers."""
    text = text.lower().replace(_SHOWN, "").replace("to", "-")
    sentences = re.split(r"[!?\n]", text)
    sentences = [one for one in sentences if re.search("start|end|happen", one)] or sentences
    clocks = [time for one in sentences for time in _CLOCKS.findall(one)]
    firsts = [found[1] for one in sentences if (found := _FIRST.search(one))]
    clock, plain, loose = (next(filter(None, map(pattern.search, sentences)), None) for pattern in _RANGES)
    ranges = [found and found.groups() for found in (clock, plain)]
    pairs = [tuple(times[:2]) if len(times) > 1 else None for times in (clocks, firsts)]
    ends = next(filter(None, [*ranges, *pairs, loose and loose.groups()]), None)
    if ends is None:
        return None
    first, last = map(seconds_of, ends)
    return (first, last) if last > first else (last, first)


def seconds_of(time: str) -> float:
    """Seconds of `75.5`, `1:15` or `0:01:15`."""
    seconds = 0.0
    for part in time.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


SUITE = Suite(
    name="charades_sta",
    measures="when a sentence happens in a clip",
    paper="1705.02101",
    files=(
        SuiteFile(FILE, "https://github.com/jiyanggao/TALL", "no licence is stated"),
        SuiteFile(CLIPS, "https://prior.allenai.org/projects/charades", "Charades, non-commercial"),
    ),
    rows=rows,
    prompt=prompt_of,
    sizes={"test": 3720},
    figures={"mIoU": "suite", "R1@0.3": "suite/r3", "R1@0.5": "suite/r5", "R1@0.7": "suite/r7"},
    by=("split",),
    exact="reading and overlaps equal lmms-eval's",
    score=score,
    max_new_tokens=50,
)
