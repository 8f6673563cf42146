"""Rewards against the code of VLM-R1, GUI-G1, Veason-R1, MM-UPT, Pref-GRPO and the unlikeliness reward.

Where ours differs on purpose the check says how: it holds us to their number wherever theirs is sound, and to ours elsewhere.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.shaping.combine import Unlikeliness
from mmrl.answers.block import answer_block
from mmrl.answers.boxes.box import Box, iou, is_inside
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.answers.choices import choice_score, parse_choices
from mmrl.app.plugins.resolve import load
from mmrl.core.readings import OLD_LOGPROBS
from mmrl.core.types import Group, MediaSize, Prompt, Sample, Scored
from mmrl.serving.judges.judge import JudgeError, Reply
from mmrl.serving.judges.verdicts import preference, win_rates
from tests.numerics.registry import Vector, check, close, tensor
from tests.support.rows import rollouts, scores

ROOT = Path(__file__).resolve().parents[2]
INTEGER_LIST = re.compile(r"\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")


def shipped(name: str, **fields: Any) -> Any:
    return load(str(ROOT / "rewards" / f"{name}.py"), "rewards")(**fields)


def scored(reward: Any, answer: Any, *texts: str, size: tuple[int, int, int, int] | None = None) -> list[Scored]:
    """What the reward says of texts; size: width and height in the file and as seen."""
    sizes = () if size is None else (MediaSize(*size),)
    samples = tuple(Sample(text, tuple(range(len(text))), media_sizes=sizes) for text in texts)
    return [x if isinstance(x, Scored) else Scored(x) for x in reward(Group(0, Prompt("p", answer=answer), samples))]


@check("prefgrpo.win_rate")
def pref_grpo_win_rate(vector: Vector) -> None:
    """The code judges one order and counts an unreadable answer as a tie; we leave it out: give it the half."""
    outcomes: dict[tuple[int, int], float | None] = {}
    for (a, b), answer in zip(vector.inputs["pairs"], vector.inputs["answers"], strict=True):
        try:
            share = preference(Reply(answer or ""))
        except JudgeError:
            share = vector.params["tie_score"]
        outcomes[a, b], outcomes[b, a] = share, 1 - share
    rates = win_rates(vector.params["group"], list(outcomes), outcomes)
    rounded = [round(rate.value or 0.0, vector.params["rounding"]) for rate in rates]
    close(rounded, vector.outputs["win_rate"])


@check("gui_g1_rewards")
def gui_g1_rewards(vector: Vector) -> None:
    """A bare object without list or fence is 0 there and read here."""
    p, texts = vector.params, vector.inputs["completions"]
    reward = shipped("point_in_box", space="pixel", iou_coef=p["alpha"], size_coef=p["beta"])
    found = scored(reward, Box(*vector.inputs["gt"]), *texts, size=(*p["image_wh"], *p["image_wh"]))
    for i, (text, one) in enumerate(zip(texts, found, strict=True)):
        if text.lstrip().startswith("{"):
            continue
        expected = [vector.outputs[name][i] for name in ("hit", "iou", "box")]
        close([one.parts["hit"], p["alpha"] * one.parts["iou"], p["beta"] * one.parts["corners"]], expected, what=text)
        close(one.value, sum(expected), what=text)


@check("veason_r1")
def veason_r1(vector: Vector) -> None:
    """Boxes count their last pixel there: give them the pixel. Its format reward is `format` plus `json_schema`."""
    ours, theirs = ([Box(x1, y1, x2 + 1, y2 + 1) for x1, y1, x2, y2 in vector.inputs[name]] for name in ("boxes1", "boxes2"))
    close([[iou(a, b) for b in theirs] for a in ours], vector.outputs["batch_iou"])
    number, box = {"type": "number"}, {"type": "array", "minItems": 4, "maxItems": 4}
    schema = {
        "type": "object",
        "required": ["keyframe_id", "bbox_2d_list"],
        "properties": {"keyframe_id": {"type": "integer"}, "bbox_2d_list": {"type": "array", "items": {**box, "items": number}}},
    }
    texts = vector.inputs["completions"]
    template = scored(shipped("format", template="think"), None, *texts)
    form = scored(shipped("json_schema", schema=schema, items_of="bbox_2d_list"), None, *texts)
    close([(a.value or 0.0) + (b.value or 0.0) for a, b in zip(template, form, strict=True)], vector.outputs["format"])


@check("mm_upt_majority")
def mm_upt_majority(vector: Vector) -> None:
    """ "None" stands for nothing found, which may win there and has no vote here."""
    for case in vector.outputs["cases"]:
        texts = ["nothing" if answer == "None" else f"\\boxed{{{answer}}}" for answer in case["answers"]]
        texts = ["<answer></answer>" if text == "nothing" else text for text in texts]
        found = [one.value for one in scored(shipped("majority_vote"), None, *texts)]
        if case["pseudo_label"] != "None":
            close(found, case["exact_match_reward"], what=str(case["answers"]))
            continue
        voting = [answer for answer in case["answers"] if answer != "None"]
        winner = max(voting, key=voting.count, default=None)
        close(found, [float(answer == winner) for answer in case["answers"]], what=str(case["answers"]))


@check("unlikeliness_reward")
def unlikeliness_reward(vector: Vector) -> None:
    rewards, logprobs = (tensor(vector.inputs[name])[:, None] for name in ("rewards", "mean_old_logp"))
    rows = rollouts(torch.ones(len(rewards), 1), vector.inputs["index"])
    shaped = Unlikeliness(vector.params["rank_penalty"])(scores(rewards), rows, {OLD_LOGPROBS: logprobs})
    close(shaped.values[:, 0], vector.outputs["shaped_rewards"])
    advantage = GroupNorm(eps=vector.params["eps"])
    close(advantage(shaped, rows).values[:, 0], vector.outputs["advantages"], 1e-6)


@check("vlm_r1_qwen_iou_reward")
def vlm_r1_qwen_iou_reward(vector: Vector) -> None:
    """Theirs reads only the first answer tag and only a list of whole numbers, and wants an overlap of more than a pixel."""
    patch, reward = vector.params["patch"], shipped("iou", space="resized")
    cases: Any = vector.inputs
    for case, theirs in zip(cases, vector.outputs["iou"], strict=True):
        text, (x1, y1, x2, y2) = case["completion"], case["gt"]
        if x1 >= x2 or y1 >= y2:
            continue
        truth = Box(x1, y1, x2, y2)
        (width, height), (_, rows, columns) = case["image_size_wh"], case["image_grid_thw"]
        [one] = scored(reward, truth, text, size=(width, height, columns * patch, rows * patch))
        assert one.value is not None and one.value >= theirs - 1e-9, text
        if theirs and len(INTEGER_LIST.findall(text)) == 1:
            close(one.value, theirs, what=text)
        boxes, size = parse_boxes(text, "resized"), MediaSize(width, height, columns * patch, rows * patch)
        # what lies outside the picture is no box
        boxes = boxes if all(is_inside(box, size) for box in boxes) else []
        expected = max((iou(box.to("pixel", size), truth) for box in boxes), default=0.0) / max(len(set(boxes)), 1)
        close(one.value, expected, what=text)


@check("vlm_r1_detection_rewards")
def vlm_r1_detection_rewards(vector: Vector) -> None:
    """Equal on exact answers, misses and empty pictures; a box nobody asked for is free in theirs and costs in ours."""
    kinds = {"od": {"kind": "map"}, "odLength": {"kind": "map", "count_penalty": 1.0}}
    for case in vector.outputs["cases"]:
        text, truth = case["completion"], parse_boxes(case["solution"], "pixel")
        for name, fields in kinds.items():
            [one] = scored(shipped("multi_box", space="pixel", labels=True, **fields), tuple(truth), text)
            assert one.value is not None
            predicted = parse_boxes(text, "pixel")
            extra = [box for box in predicted if box.label not in {true.label for true in truth}]
            more = len(predicted) > len(truth)
            if not extra and not more and name == "od":
                close(one.value, case[name], 1e-6, f"{name}: {text}")
            assert one.value <= case["od"] + 1e-6, f"{name}: {text} is worth no more than there"
            assert (one.value >= 1 - 1e-9) == (case["odLength"] >= 1 - 1e-9), f"{name}: {text}"


@check("vlm_r1_text_rewards")
def vlm_r1_text_rewards(vector: Vector) -> None:
    """Theirs finds letters, yes and no inside words, takes the first number for the answer and pays for shared letters."""
    for case in vector.outputs["cases"]:
        text, theirs, what = case["completion"], case["reward"], json.dumps(case)
        if case["fn"] == "format_reward":
            [one] = scored(shipped("format", template="think"), None, text)
            # blanks at the ends may be; a second answer may not
            sound = text == text.strip() and text.count("<answer>") == 1
            close(one.value, theirs if sound else float(text.count("<answer>") == 1), what=what)
        elif case["fn"] == "mcq_reward":
            truth = answer_block(case["solution"]) or case["solution"]
            [one] = scored(shipped("choice"), truth[:1], text)
            clear = re.fullmatch(r"(<answer>)?([A-Z]|The answer is [A-Z]\.)(</answer>)?", text)
            assert one.value is not None and (one.value == theirs if clear else one.value <= theirs), what
        elif case["fn"] == "default_accuracy_reward":
            answer, truth = answer_block(text), answer_block(case["solution"])
            if re.fullmatch(r"-?\d+(\.\d+)?( cm)?", answer) and re.fullmatch(r"-?\d+(\.\d+)?", truth):
                [one] = scored(shipped("number"), float(truth), text)
                close(one.value, theirs, what=what)
        else:
            said, truth = (parse_choices(x, ("yes", "no")) for x in (text, case["solution"]))
            if said and truth:
                close(choice_score(said, truth, soft=False), theirs, what=what)
            assert bool(said) == (answer_block(text).casefold() in ("yes", "no")), what
