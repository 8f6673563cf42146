"""`mmrl train --task grounding --model M --data boxes.jsonl --reward iou`: a run without a config file."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

from mmrl.app.config.run import Resolved, resolve
from mmrl.app.plugins.resolve import listing
from mmrl.app.toml.did_you_mean import did_you_mean
from mmrl.app.toml.tables import COMMAND_LINE, Table, Values

TASKS: dict[str, Values] = {
    "grounding": {
        "algorithm": {"preset": "grpo"},
        "policy": {"kind": "text", "answer_format": "box", "sampling": {"max_new_tokens": 128}},
        "data": {"use": "grounding_jsonl"},
    },
    "video": {
        "algorithm": {"preset": "tw_grpo"},
        "policy": {
            "kind": "text",
            "answer_format": "direct",
            "sampling": {"max_new_tokens": 128},
            "video": {"fps": 2.0, "max_frames": 64},
        },
        "data": {"use": "video_r1"},
    },
    "edit": {
        "algorithm": {"preset": "flow_grpo"},
        "policy": {"kind": "flow", "height": 512, "width": 512, "dtype": "bfloat16", "equal_forwards": True, "lora": {}},
        "data": {"use": "edits"},
    },
}
"""Task -> what its runs start from; everything else is a default or said on the command line."""


def one_line(task: str, model: str | None, data: str | None, rewards: Sequence[str], overrides: Sequence[str]) -> Resolved:
    """The run that a command line describes.

    Args:
        data: a file or folder for the task's own data set, or the name of another one.
        rewards: NAME or NAME=WEIGHT each.

    Raises:
        ValueError: an unknown task, or something a run needs is missing.
        FileNotFoundError: `data` is neither a file nor a data set.
    """
    if task not in TASKS:
        raise ValueError(f"--task is {task!r}: {did_you_mean(task, TASKS)}")
    for option, given in (("--model", model), ("--data", data), ("--reward", rewards)):
        if not given:
            raise ValueError(f"--task {task} needs {option}, for example {EXAMPLES[task]}")
    assert data is not None
    table = Table.of(deepcopy(TASKS[task]), f"task {task}")
    table.set(("policy", "model"), model, COMMAND_LINE)
    name, path = data_source(data, table.values["data"]["use"])
    table.set(("data", "use"), name, COMMAND_LINE if path is None else f"task {task}")
    if path is not None:
        table.set(("data", "path"), path, COMMAND_LINE)
    table.set(("reward",), [parse_reward(text) for text in rewards], COMMAND_LINE)
    return resolve(table, overrides, task)


EXAMPLE = "mmrl train --task {task} --model Qwen/Qwen2.5-VL-3B-Instruct --data {data} --reward {reward} --reward format=0.1"
EXAMPLES = {
    "grounding": EXAMPLE.format(task="grounding", data="boxes.jsonl", reward="iou"),
    "video": EXAMPLE.format(task="video", data="clips.jsonl", reward="by_type"),
    "edit": "mmrl train --task edit --model black-forest-labs/FLUX.1-Kontext-dev --data edits.jsonl --reward vlm_judge "
    "--reward keeps_rest=0.5",
}


def data_source(data: str, usual: str) -> tuple[str, str | None]:
    """Which data set to use, and the path it reads, if it is given one."""
    place = data.partition(":")[0]
    if place.endswith(".py"):
        return data, None
    if Path(data).expanduser().exists():
        return usual, data
    known = [listed.name for listed in listing("datasets")]
    if data in known:
        return data, None
    raise FileNotFoundError(f"--data {data} is no file, and of the data sets {did_you_mean(data, known)}")


def parse_reward(text: str) -> Values:
    """`iou`, `iou=0.5` or `./mine.py:short=0.2` as a [[reward]] table.

    Raises:
        ValueError: the weight is no number.
    """
    use, equals, weight = text.partition("=")
    if not equals:
        return {"use": use}
    try:
        return {"use": use, "weight": float(weight)}
    except ValueError:
        raise ValueError(f"--reward {text}: the weight {weight!r} is no number; write NAME or NAME=WEIGHT") from None
