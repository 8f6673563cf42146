"""MVBench: twenty kinds of multiple choice about clips.

Prompt and rule are those of its notebook: the first word of the answer's first line must be the right letter. Two things differ.
The notebook lets models go on from "Best option:(", which most cannot; and it counts an empty answer or a lone bracket as right.
How many frames are seen is the model's setting; the notebook shows 16.
"""

from pathlib import Path

from mmrl.answers.boxes.box import Space
from mmrl.answers.choices import LETTERS
from mmrl.core.samples import Prompt, Sample, Scored, Video
from mmrl.data.readers import Row
from mmrl.data.suites.suite import Suite, SuiteFile, answer_text
from mmrl.data.video_rows import VideoFolder, number_of, text_of

ASKED = (
    "Carefully watch the video and pay attention to the cause and sequence of events, the detail and movement of objects, and "
    "the action and pose of persons. Based on your observations, select the best option that accurately addresses the question.\n"
    "Question: {}\nOptions:\n{}\nOnly give the best option."
)
FRAMES_PER_S = 3
_CLIPS = {
    "star/Charades_v1_480": "action_sequence action_prediction object_interaction",
    "ssv2_video": "action_antonym",
    "Moments_in_Time_Raw/videos": "fine_grained_action",
    "FunQA_test/test": "unexpected_action",
    "clevrer/video_validation": "object_existence moving_direction moving_count moving_attribute counterfactual_inference",
    "perception/videos": "object_shuffle action_count state_change character_order",
    "sta/sta_video": "action_localization",
    "scene_qa/video": "scene_transition",
    "nturgbd": "fine_grained_pose",
    "vlnqa": "egocentric_navigation",
    "tvqa/frames_fps3_hq": "episodic_reasoning",
}
FOLDERS = {task: folder for folder, tasks in _CLIPS.items() for task in tasks.split()}
"""Task -> the folder of its clips."""
CUT = ("action_sequence", "action_prediction", "object_interaction", "action_localization", "episodic_reasoning")
"""Tasks about a part of a clip, from `start` to `end`."""
SOURCE = "https://huggingface.co/datasets/OpenGVLab/MVBench"


def prompt_of(row: Row, media: VideoFolder) -> Prompt:
    task, options, answer = Path(row.source).stem, row.values.get("candidates"), row.values.get("answer")
    if not isinstance(options, list) or answer not in options:
        raise ValueError(f"the answer {answer!r} is not among the candidates {options!r}")
    start, end = (number_of(row.values.get(name), name) if task in CUT else None for name in ("start", "end"))
    clip = clip_of(media.root / FOLDERS[task] / text_of(row, "video"), start, end)
    # equal options: the last one is right, as in the notebook
    right = max(i for i, option in enumerate(options) if option == answer)
    listed = "\n".join(f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=False))
    text = ASKED.format(text_of(row, "question"), listed)
    return Prompt(f"{task}-{row.number}", text, (clip,), LETTERS[right], {"task": task, "options": options})


def clip_of(file: Path, start: float | None, end: float | None) -> Video:
    """A part of a clip, or of a folder of frames whose numbers count from 1."""
    if not file.is_dir() or start is None or end is None:
        return Video(str(file), start, end)
    last = min(round(end * FRAMES_PER_S), len(list(file.iterdir())))
    frames = range(max(1, round(start * FRAMES_PER_S)), last + 1)
    return Video(tuple(str(file / f"{number:05d}.jpg") for number in frames), fps=float(FRAMES_PER_S))


def score(prompt: Prompt, sample: Sample, space: Space) -> Scored:
    """1 if the first word is the right letter, in brackets or not."""
    word, marked = answer_text(sample).split("\n")[0].lower().split(" ")[0], f"({prompt.answer.lower()})"
    is_read = any(letter.isalpha() for letter in word)
    return Scored(float(is_read and (word.replace(".", "") in marked or marked in word)), {"unparsed": float(not is_read)})


SUITE = Suite(
    name="mvbench",
    measures="multiple choice about clips, twenty tasks",
    paper="2311.17005",
    files=(
        *(SuiteFile(f"json/{task}.json", SOURCE, "MIT") for task in FOLDERS),
        SuiteFile("video/", SOURCE, "those of its sources"),
    ),
    prompt=prompt_of,
    sizes=dict.fromkeys(FOLDERS, 200),
    figures={"Accuracy": "suite"},
    by=("task",),
    exact="equals its notebook's, but an answer without a letter is wrong; nothing is put in front of the answer",
    score=score,
    max_new_tokens=100,
    hub="OpenGVLab/MVBench",
)
