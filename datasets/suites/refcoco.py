"""RefCOCO: the box of what a sentence names; `refcoco+` and `refcocog` are the same with other sentences.

Prompt: the sentence that LLaVA and InternVL evaluate with. Scores: those of lmms-eval, of the first box that the answer names.
Lists `[x1, y1, x2, y2]` are read as lmms-eval does, in the space that the model writes, and pairs `(x1,y1),(x2,y2)`, which it
does not read; an answer without either has no overlap. lmms-eval's prompt also asks for shares of the picture: left out here.
Sizes: the totals of README.md of JierunChen/Ref-L4 on the hub, 21,586, 21,373 and 14,498; RefCOCO's splits are FlagEval's.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mmrl.answers.boxes.box import Box, Space, extent
from mmrl.core.samples import Prompt, Sample, Scored
from mmrl.data.layouts.refer import refer_rows
from mmrl.data.readers import Row
from mmrl.data.suites.suite import READS_BOXES, Suite, SuiteFile, answer_text
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoFolder

Corners = tuple[float, float, float, float]
ASKED = "Please provide the bounding box coordinate of the region this sentence describes: {}"
SIZES = {"val": 10834, "testA": 5657, "testB": 5095}
REFER, COCO = "https://github.com/lichengunc/refer", "https://cocodataset.org"
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_BOX = re.compile(
    rf"\[\s*{_NUMBER},\s*{_NUMBER},\s*{_NUMBER},\s*{_NUMBER}\s*\]"
    rf"|\(\s*{_NUMBER},\s*{_NUMBER}\s*\),\s*\(\s*{_NUMBER},\s*{_NUMBER}\s*\)"
)


def rows(suite: Suite, folder: Path, report: Report) -> Iterator[Row]:
    """The sentences of the evaluated splits."""
    return (row for row in refer_rows(folder / suite.files[0].name, report) if row.values["split"] in suite.sizes)


def prompt_of(row: Row, media: VideoFolder) -> Prompt:
    values = row.values
    columns = {"split": values["split"], "question": values["question"]}
    picture = str(media.root / values["image"])
    return Prompt(str(values["id"]), ASKED.format(values["question"]), (picture,), Box(*values["box"]), columns)


def score(prompt: Prompt, sample: Sample, space: Space) -> Scored:
    """Overlap of the first box with the true one; boxes become shares of the picture first."""
    size, truth = sample.media_sizes[0], prompt.answer
    found = _BOX.search(answer_text(sample))
    overlap = 0.0
    if found is not None:
        width, height = extent(space, size)
        numbers = [float(number) for number in found.groups() if number is not None]
        box = tuple(x / side for x, side in zip(numbers, (width, height, width, height), strict=True))
        overlap = overlap_of(truth.to("norm1", size).corners, (box[0], box[1], box[2], box[3]))
    parts = {f"acc{share}": float(overlap >= share / 100) for share in (50, 70, 90)}
    return Scored(parts["acc50"], {**parts, "iou": overlap, "unparsed": float(found is None)})


def overlap_of(a: Corners, b: Corners) -> float:
    """Intersection over union as lmms-eval counts it, corners in the wrong order included; 0 without a union."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    inside = max(0.0, width) * max(0.0, height)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inside
    return inside / union if union else 0.0


SUITE = Suite(
    name="refcoco",
    measures="boxes of what a sentence names (RefCOCO)",
    paper="1608.00272",
    files=(
        SuiteFile("refs(unc).p", REFER, "Apache-2.0"),
        SuiteFile("instances.json", REFER, "CC BY 4.0"),
        SuiteFile("train2014/", COCO, "terms of Flickr"),
    ),
    rows=rows,
    prompt=prompt_of,
    sizes=SIZES,
    figures={"Acc@0.5": "suite/acc50", "IoU": "suite/iou", "Acc@0.7": "suite/acc70", "Acc@0.9": "suite/acc90"},
    by=("split",),
    macro=("split",),
    exact="overlaps and accuracies equal lmms-eval's for lists in shares of the picture; other ways to write are read too",
    score=score,
    reward=READS_BOXES,
    max_new_tokens=128,
)
