"""DPG-Bench: do pictures show everything that a long prompt describes?

Every prompt has yes-or-no questions, some of which depend on others. A question counts where it and all that it depends on are
answered yes; a picture's score is the share of its questions that count, a prompt's the mean of its four pictures. Figures of
kinds of questions leave dependence aside. Against its own code (ELLA 3c228f1, dpg_bench/compute_dpg_bench.py): that one takes
the figures of kinds from the last of the four pictures, and passes over the first question of the file, by which the first
prompt has fewer questions, or none of its pictures a score where others depend on that question.
The published judge, mPLUG, answers in one word; for others the question ends in a request for yes or no.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from mmrl.core.samples import Prompt, Scored
from mmrl.data.readers import Row, read_rows
from mmrl.data.suites.suite import Judge, Suite, SuiteFile, shares
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoFolder, text_of

FILE, SOURCE = "dpg_bench.csv", "https://github.com/TencentQQGYLab/ELLA/tree/main/dpg_bench"
JUDGE = "https://www.modelscope.cn/models/damo/mplug_visual-question-answering_coco_large_en"
_YES = re.compile(r"\W*yes\W*", re.IGNORECASE)
ASKED = "{}\nAnswer with yes or no."
KINDS = ("global", "entity", "attribute", "relation", "other")
SOURCES = {"numbered": 623, "COCOval": 100, "localized": 22}
SOURCES |= dict.fromkeys(("countbench", "diffusiondb", "drawtext", "midjourney", "posescript", "stanford", "vrd", "whoops"), 40)
"""Beginnings of the names in dpg_bench/prompts of that repository; arXiv:2403.05135 has their total, 1,065."""


def items(suite: Suite, folder: Path, report: Report) -> Iterator[Row]:
    """A row per item, whose questions follow each other."""
    rows = groupby(read_rows(folder / FILE, report), key=lambda row: row.values.get("item_id"))
    return (Row({"rows": own}, own[0].source, own[0].number) for _, group in rows for own in [list(group)])


def prompt_of(item: Row, media: VideoFolder) -> Prompt:
    rows: Sequence[Row] = item.values["rows"]
    numbers = [text_of(row, "proposition_id") for row in rows]
    parents = [[name.strip() for name in text_of(row, "dependency").split(",")] for row in rows]
    if unknown := {name for own in parents for name in own} - {*numbers, "0"}:
        raise ValueError(f"column dependency names the question {min(unknown)}, which its prompt does not have")
    columns = {
        "source": text_of(rows[0], "item_id").rstrip("0123456789") or "numbered",
        "questions": [ASKED.format(text_of(row, "question_natural_language")) for row in rows],
        "points": [text_of(row, "tuple").split("(")[0].split("-")[0].strip() for row in rows],
        "parents": [[numbers.index(name) for name in own if name != "0"] for own in parents],
    }
    return Prompt(text_of(rows[0], "item_id"), text_of(rows[0], "text"), columns=columns)


def verdict(prompt: Prompt, answers: Sequence[str]) -> Scored:
    """The share of questions that are answered yes, as are all they depend on; what is not yes is no."""
    right = [float(_YES.fullmatch(answer) is not None) for answer in answers]
    counted = list(right)
    for i, parents in enumerate(prompt.columns["parents"]):
        if any(counted[parent] == 0 for parent in parents):
            counted[i] = 0.0
    return Scored(sum(counted) / len(counted), shares(prompt.columns["points"], right))


SUITE = Suite(
    name="dpg_bench",
    measures="everything that a long prompt describes, in drawn pictures",
    paper="2403.05135",
    files=(SuiteFile(FILE, SOURCE, "Apache-2.0"),),
    rows=items,
    prompt=prompt_of,
    sizes=SOURCES,
    figures={"DPG-Bench": "suite_judge", **{kind: (kind,) for kind in KINDS}},
    by=("source",),
    exact="scores of pictures and their mean equal its own code's; kinds are over all four pictures, there over the last",
    judge=Judge("mPLUG-large", JUDGE, verdict),
    reward={"use": "suite_judge", "server": {"max_side": 0}},
    kind="flow",
    num_samples=4,
)
