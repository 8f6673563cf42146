"""`mmrl train --task grounding --model M --data boxes.jsonl --reward iou`: a run without a config file."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

from mmrl.algorithms.kinds import KINDS
from mmrl.app.config.run import Resolved, resolve
from mmrl.app.plugins.resolve import listing, locate
from mmrl.app.toml.tables import COMMAND_LINE, KeyPath, Table, Values
from mmrl.data.layouts.base import QUESTIONS
from mmrl.data.layouts.files import SPLITS, splits_of
from mmrl.data.layouts.source import guess
from mmrl.data.readers import TRAIN
from mmrl.policies.text.prompt.templates import tags_of
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.near import did_you_mean, near

TEXT: Values = {"kind": "text", "answer_format": "direct"}
DRAWN: Values = {"kind": "flow", "height": 512, "width": 512}
CLIPS: Values = {"kind": "flow", "height": 256, "width": 448, "frames": 33}
"""A size and a length that every family of clips draws."""
SOUNDS: Values = {"kind": "flow", "seconds": 10.0}
SCORING = ("scores", "picture_scores", "ratings")
"""The tasks that make reward models."""


def generator(preset: str, policy: Values, data: str, held_out: int) -> Values:
    """The start of every run of a generator."""
    return {"algorithm": {"preset": preset}, "policy": policy, "data": {"use": data}, "evaluation": {"num_prompts": held_out}}


TASKS: dict[str, Values] = {
    "grounding": {
        "algorithm": {"preset": "grpo"},
        "policy": TEXT | {"answer_format": "box", "sampling": {"max_new_tokens": 128}},
        "data": {"use": "grounding_jsonl"},
    },
    "video": {
        "algorithm": {"preset": "tw_grpo"},
        "policy": TEXT | {"sampling": {"max_new_tokens": 128}, "video": {"fps": 2.0, "max_frames": 64}},
        "data": {"use": "video_r1"},
    },
    "qa": {
        "algorithm": {"preset": "grpo"},
        "policy": TEXT | {"answer_format": "think", "sampling": {"max_new_tokens": 512}},
        "data": {"use": "qa_jsonl"},
    },
    "sft": {"algorithm": {"preset": "sft"}, "policy": TEXT | {"answer_format": "none"}, "data": {"use": "qa_jsonl"}},
    **{
        kind: {
            "algorithm": {"preset": kind},
            "policy": TEXT | {"answer_format": "none", "scores": ["overall"]},
            "data": {"use": "qa_jsonl"},
            "evaluation": {"seen": 0},
        }
        for kind in SCORING
    },
    "t2i": generator("flow_grpo_fast", DRAWN, "prompts", 64),
    "t2v": generator("flow_grpo_fast", CLIPS, "prompts", 32),
    "i2v": generator("flow_grpo_fast", CLIPS, "edits", 32),
    "t2a": {
        # steps even in log-SNR are too noisy to train in their first half
        "algorithm": {
            "preset": "flow_grpo",
            "schedule": {"kind": "RandomSubset", "num_steps": 16, "candidates": [9, 10, 11, 12, 13], "count": 2},
        },
        "policy": SOUNDS,
        "data": {"use": "prompts"},
        "evaluation": {"num_prompts": 32},
    },
    "edit": generator("flow_grpo", DRAWN, "edits", 64),
}
"""Task -> what its runs start from; everything else is a default, fits the model and the card, or is said on the command line."""
OF_CLIPS = ("video_r1", "charades_sta", "activitynet_captions", "clevrer", "next_gqa")
"""The data sets whose files `--task video` tells apart by their rows."""
EVERY = 10
"""How often a run is saved and evaluated."""
HELD_OUT_DATA = ("evaluation", "data")
HELD_OUT = SPLITS[1:]
"""Names of a file or split beside `train` that nothing trains on."""
SPLITTING = ("grounding_jsonl", "qa_jsonl", "edits", "prompts")
"""The data sets that read a split of a folder."""
EXAMPLE = "mmrl train --task {task} --model {model} --data {data} --reward {reward}"
SEES, DRAWS, EDITS, MOVES, GOES_ON, RINGS = (
    *("Qwen/Qwen2.5-VL-3B-Instruct", "stabilityai/stable-diffusion-3.5-medium", "black-forest-labs/FLUX.1-Kontext-dev"),
    *("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "Wan-AI/Wan2.2-TI2V-5B-Diffusers", "stabilityai/stable-audio-3-medium-base"),
)
EXAMPLES = {
    "grounding": EXAMPLE.format(task="grounding", model=SEES, data="boxes.jsonl", reward="iou --reward format=0.1"),
    "video": EXAMPLE.format(task="video", model=SEES, data="clips.jsonl", reward="by_type --reward format=0.1"),
    "qa": EXAMPLE.format(task="qa", model=SEES, data="questions.jsonl", reward="by_type --reward format=0.1"),
    "sft": EXAMPLE.format(task="sft", model=SEES, data="llava.json", reward="").removesuffix(" --reward "),
    **{kind: f"mmrl reward train --task {kind} --model {SEES} --data pairs.jsonl" for kind in SCORING},
    "t2i": EXAMPLE.format(task="t2i", model=DRAWS, data="prompts.txt", reward="pick_score --reward clip_score=0"),
    "t2v": EXAMPLE.format(task="t2v", model=MOVES, data="prompts.txt", reward="video_judge --reward smooth_motion=0.5"),
    "i2v": EXAMPLE.format(task="i2v", model=GOES_ON, data="starts.jsonl", reward="video_judge --reward first_frame=0.5"),
    "t2a": EXAMPLE.format(task="t2a", model=RINGS, data="prompts.jsonl", reward="band_energy --reward onset_iou=0.5"),
    "edit": EXAMPLE.format(task="edit", model=EDITS, data="edits.jsonl", reward="vlm_judge --reward keeps_rest=0.5"),
}


def one_line(
    task: str,
    model: str | None,
    data: str | None,
    rewards: Sequence[str],
    overrides: Sequence[str],
    held_out: str | None = None,
    image_root: Path | None = None,
) -> Resolved:
    """The run that a command line such as `--task grounding --model M --data boxes.jsonl --reward iou` describes, not yet fitted.

    Args:
        data: a file or folder for the task's own data set, or the name of another one.
        rewards: NAME or NAME=WEIGHT each.
        held_out: the like of `data`, with prompts that nothing trains on; None: what lies beside it under such a name.
        image_root: the folder in which paths of pictures and clips start; None: that of the file.

    Raises ValueError for an unknown task or something missing, FileNotFoundError where data are neither a file nor a data set.
    """
    if task not in TASKS:
        raise ValueError(f"--task is {task!r}: {did_you_mean(task, TASKS)}")
    scored = TASKS[task]["algorithm"]["preset"] not in KINDS
    for option, given in (("--model", model), ("--data", data), *([("--reward", rewards)] if scored else [])):
        if not given:
            raise ValueError(f"--task {task} needs {option}, for example {EXAMPLES[task]}")
    by = f"task {task}"
    table = Table.of(deepcopy(TASKS[task]), by)
    table.set(("policy", "model"), model, COMMAND_LINE)
    put_source(table, ("data",), str(data), task, image_root)
    if held_out is not None:
        put_source(table, HELD_OUT_DATA, held_out, task, image_root, "--held-out")
    elif rewards and not any(word.startswith("evaluation.data") for word in overrides):
        put_held_out_beside(table, str(data), task, image_root)
    table.set(("reward",), [parse_reward(text) for text in rewards], COMMAND_LINE)
    resolved = resolve(table, overrides, task)
    policy = resolved.config.policy
    asked = tags_of(policy.answer_format) if isinstance(policy, TextPolicyConfig) else None
    for i, reward in enumerate(table.values["reward"]):
        if asked is not None and reward.get("use") == "format" and "template" not in reward:
            table.set(("reward", str(i), "template"), asked, by)
    # the best checkpoint is known only at steps that are evaluated as well
    keys = ("evaluate_every", *(["save_every"] if resolved.config.checkpoint.keep_best else []))
    for key in keys if resolved.config.evaluation.data is not None else ():
        if table.origin((key,)) is None:
            table.set((key,), max(1, resolved.config.steps // EVERY), by)
    return resolve(table, (), task)


def put_held_out_beside(table: Table, data: str, task: str, image_root: Path | None) -> None:
    """Write [evaluation.data] where held-out prompts lie next to those to train on, and then the split that trains."""
    folder = Path(data).expanduser()
    splits = splits_of(folder) if table.values["data"]["use"] in SPLITTING and folder.is_dir() else []
    if TRAIN in splits:
        table.set(("data", "split"), TRAIN, f"task {task}")
        split = next((name for name in HELD_OUT if name in splits), None)
        if split is not None:
            put_source(table, HELD_OUT_DATA, data, task, image_root)
            table.set((*HELD_OUT_DATA, "split"), split, f"task {task}")
    elif "train" in folder.stem and folder.is_file():
        # parts/test.jsonl of parts/train.jsonl
        named = (folder.with_name(folder.name.replace("train", name)) for name in HELD_OUT)
        if beside := next((file for file in named if file.is_file()), None):
            put_source(table, HELD_OUT_DATA, str(beside), task, image_root)


def put_source(table: Table, path: KeyPath, data: str, task: str, image_root: Path | None, option: str = "--data") -> None:
    """Write the data set, its file and its folder of pictures into one of the tables of data."""
    name, file = data_source(data, task, option)
    table.set(path, {}, f"task {task}")
    table.set((*path, "use"), name, COMMAND_LINE if file is None else f"task {task}")
    if file is not None:
        table.set((*path, "path"), file, COMMAND_LINE)
    if file is not None and image_root is not None:
        table.set((*path, root_key(name)), str(image_root), COMMAND_LINE)


def data_source(data: str, task: str, option: str = "--data") -> tuple[str, str | None]:
    """The data set to use, and the path it reads, if it is given one; FileNotFoundError for neither a file nor a data set."""
    place = data.partition(":")[0]
    if place.endswith(".py"):
        return data, None
    file = Path(data).expanduser()
    if file.exists():
        usual = str(TASKS[task]["data"]["use"])
        return clips_layout(file, task) if usual in OF_CLIPS else usual, data
    known = [listed.name for listed in listing("datasets")]
    if data in known:
        return data, None
    raise FileNotFoundError(f"{option} {data} is no file{near(data)}, and of the data sets {did_you_mean(data, known)}")


def clips_layout(file: Path, task: str) -> str:
    """The data set that reads a file's clips, by its rows, else the task's own; ValueError for rows that another task is for."""
    usual = str(TASKS[task]["data"]["use"])
    try:
        found = guess(file)
    except (ValueError, OSError):
        return usual
    if found.data_set in (*OF_CLIPS, QUESTIONS):
        return found.data_set
    fits = next((f" (--task {name})" for name, own in TASKS.items() if own["data"]["use"] == found.data_set), "")
    raise ValueError(
        f"{file} is read as {found.layout} ({found.summary}): that is data for {found.data_set}{fits}, and --task {task} takes "
        "questions about clips"
    )


def root_key(data_set: str) -> str:
    """The key by which a data set takes the folder of its pictures or clips."""
    return "videos" if data_set in OF_CLIPS else "image_root"


def parse_reward(text: str) -> Values:
    """`iou`, `iou=0.5` or `./mine.py:short=0.2` as a [[reward]] table; ValueError for an unknown reward or no number."""
    use, equals, weight = text.partition("=")
    if not set(use) & set(":/."):
        # a slip in a shipped name is reported before data and model are looked at
        locate(use, "rewards")
    if not equals:
        return {"use": use}
    try:
        return {"use": use, "weight": float(weight)}
    except ValueError:
        raise ValueError(f"--reward {text}: the weight {weight!r} is no number; write NAME or NAME=WEIGHT") from None
