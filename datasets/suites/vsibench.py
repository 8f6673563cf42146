"""VSI-Bench: counts, sizes, distances and directions in clips of rooms.

Prompts, rules and the mean over eight tasks are those of its own code: letters by the first word, numbers by mean relative
accuracy; the three levels of relative direction are averaged first. Blanks around an answer are left out.
Sizes: those that TsT, the code of VSI-Bench-Debiased, lists for the original, 5,130 in all.
"""

import numpy as np

from mmrl.answers.boxes.box import Space
from mmrl.core.samples import Prompt, Sample, Scored, Video
from mmrl.data.readers import Row
from mmrl.data.suites.suite import Suite, SuiteFile, answer_text
from mmrl.data.video_rows import VideoFolder, text_of

FILE, SOURCE = "test-00000-of-00001.parquet", "https://huggingface.co/datasets/nyu-visionx/VSI-Bench"
CHOICES = {"object_rel_direction": 968, "object_rel_distance": 710, "route_planning": 194, "obj_appearance_order": 618}
NUMBERS = {"object_abs_distance": 834, "object_counting": 565, "object_size_estimation": 953, "room_size_estimation": 288}
LEVELS = ("_easy", "_medium", "_hard")
SHARES = np.linspace(0.5, 0.95, 10)


def prompt_of(row: Row, media: VideoFolder) -> Prompt:
    kind, question = text_of(row, "question_type"), text_of(row, "question")
    task = next((kind.removesuffix(level) for level in LEVELS if kind.endswith(level)), kind)
    lines = ["These are frames of a video.", question]
    if task in NUMBERS:
        lines.append("Please answer the question using a single word or phrase.")
    elif task in CHOICES and isinstance(options := row.values.get("options"), list):
        lines += ["Options:", *map(str, options), "Answer with the option's letter from the given choices directly."]
    else:
        raise ValueError(f"column question_type is {kind!r}, or its options are missing")
    clip = Video(str(media.root / text_of(row, "dataset") / f"{text_of(row, 'scene_name')}.mp4"))
    columns = {"task": task, "question_type": kind}
    return Prompt(text_of(row, "id"), "\n".join(lines), (clip,), text_of(row, "ground_truth"), columns)


def score(prompt: Prompt, sample: Sample, space: Space) -> Scored:
    """1 or 0 for a letter; for a number x the share of t = .5, .55, .. .95 with |x - y| / y <= 1 - t."""
    word = answer_text(sample).split(" ")[0].rstrip(".").strip()
    if prompt.columns["task"] in CHOICES:
        return Scored(float(word.lower() == prompt.answer.lower()), {"unparsed": float(not word)})
    try:
        found, truth = float(word), float(prompt.answer)
    except ValueError:
        return Scored(0.0, {"unparsed": 1.0})
    return Scored(float((abs(found - truth) / truth <= 1 - SHARES).mean()), {"unparsed": 0.0})


SUITE = Suite(
    name="vsibench",
    measures="space and size in clips of rooms",
    paper="2412.14171",
    files=(
        SuiteFile(FILE, SOURCE, "Apache-2.0"),
        *(SuiteFile(f"{name}/", SOURCE, "that of its source") for name in ("arkitscenes", "scannet", "scannetpp")),
    ),
    prompt=prompt_of,
    sizes=CHOICES | NUMBERS,
    figures={"Score": "suite"},
    by=("task", "question_type"),
    macro=("task", "question_type"),
    exact="equals its own code's",
    score=score,
    max_new_tokens=16,
    hub="nyu-visionx/VSI-Bench",
)
