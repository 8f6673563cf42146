"""Rewards against the code of VLM-R1, GUI-G1, Veason-R1, MM-UPT, Pref-GRPO, R1-Router, JarvisArt, Video-R1 and others.

Where ours differs on purpose the check says how: it holds us to their number wherever theirs is sound, and to ours elsewhere.
"""

import json
import re
from pathlib import Path
from sys import modules
from typing import Any

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.shaping.combine import Unlikeliness
from mmrl.answers.block import answer_block, keeps_format
from mmrl.answers.boxes.box import Box, iou, is_inside
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.answers.choices import choice_score, parse_choices
from mmrl.answers.photos import THRESHOLDS, agreement, likeness, masks_agreement
from mmrl.answers.spans.interval import Interval, temporal_iou, union_iou
from mmrl.app.plugins.resolve import load
from mmrl.core.readings import OLD_LOGPROBS
from mmrl.core.types import Group, MediaSize, Prompt, Sample, Scored
from mmrl.serving.judges.judge import JudgeError, Reply
from mmrl.serving.judges.verdicts import preference, win_rates
from tests.numerics.registry import check, close, tensor
from tests.numerics.rows import alone, column
from tests.support.refused import refused

INTEGER_LIST = re.compile(r"\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")


def shipped(name: str, **fields: Any) -> Any:
    return load(str(REWARDS / f"{name}.py"), "rewards")(**fields)


def scored(reward: Any, answer: Any, *texts: str, size: tuple[int, int, int, int] | None = None, **columns: Any) -> list[Scored]:
    """What the reward says of texts; size: width and height in the file and as seen."""
    sizes = () if size is None else (MediaSize(*size),)
    samples = tuple(Sample(text, tuple(range(len(text))), media_sizes=sizes) for text in texts)
    found = reward(Group(0, Prompt("p", "?", answer=answer, columns=columns), samples))
    return [x if isinstance(x, Scored) else Scored(x) for x in found]


def value_of(name: str, answer: Any, text: str, columns: Any = None, **fields: Any) -> float | None:
    """What a shipped reward says of one text."""
    [one] = scored(shipped(name, **fields), answer, text, **(columns or {}))
    return one.value


@check("prefgrpo.win_rate")
def pref_grpo_win_rate(inputs: Any, params: Any, outputs: Any) -> None:
    """The code judges one order and counts an unreadable answer as a tie; we leave it out: give it the half."""
    outcomes: dict[tuple[int, int], float | None] = {}
    for (a, b), answer in zip(inputs["pairs"], inputs["answers"], strict=True):
        try:
            share = preference(Reply(answer or ""))
        except JudgeError:
            share = params["tie_score"]
        outcomes[a, b], outcomes[b, a] = share, 1 - share
    rates = win_rates(params["group"], list(outcomes), outcomes)
    rounded = [round(rate.value or 0.0, params["rounding"]) for rate in rates]
    close(rounded, outputs["win_rate"])


@check("gui_g1_rewards")
def gui_g1_rewards(inputs: Any, params: Any, outputs: Any) -> None:
    """A bare object without list or fence is 0 there and read here."""
    texts = inputs["completions"]
    reward = shipped("point_in_box", space="pixel", iou_coef=params["alpha"], size_coef=params["beta"])
    found = scored(reward, Box(*inputs["gt"]), *texts, size=(*params["image_wh"], *params["image_wh"]))
    for i, (text, one) in enumerate(zip(texts, found, strict=True)):
        if text.lstrip().startswith("{"):
            assert one.value == 1 + params["alpha"] + params["beta"]
            continue
        expected = [outputs[name][i] for name in ("hit", "iou", "box")]
        close([one.parts["hit"], params["alpha"] * one.parts["iou"], params["beta"] * one.parts["corners"]], expected, what=text)
        close(one.value, sum(expected), what=text)


@check("veason_r1")
def veason_r1(inputs: Any, outputs: Any) -> None:
    """Boxes count their last pixel there: give them the pixel. Its format reward is `format` plus `json_schema`."""
    ours, theirs = ([Box(x1, y1, x2 + 1, y2 + 1) for x1, y1, x2, y2 in inputs[name]] for name in ("boxes1", "boxes2"))
    close([[iou(a, b) for b in theirs] for a in ours], outputs["batch_iou"])
    number, box = {"type": "number"}, {"type": "array", "minItems": 4, "maxItems": 4}
    schema = {
        "type": "object",
        "required": ["keyframe_id", "bbox_2d_list"],
        "properties": {"keyframe_id": {"type": "integer"}, "bbox_2d_list": {"type": "array", "items": {**box, "items": number}}},
    }
    texts = inputs["completions"]
    template = scored(shipped("format", template="think"), None, *texts)
    form = scored(shipped("json_schema", schema=schema, items_of="bbox_2d_list"), None, *texts)
    close([(a.value or 0.0) + (b.value or 0.0) for a, b in zip(template, form, strict=True)], outputs["format"])


@check("mm_upt_majority")
def mm_upt_majority(outputs: Any) -> None:
    """ "None" stands for nothing found, which may win there and has no vote here."""
    for case in outputs["cases"]:
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
def unlikeliness_reward(inputs: Any, params: Any, outputs: Any) -> None:
    rows, logprobs = alone(inputs["index"]), tensor(inputs["mean_old_logp"])[:, None]
    shaped = Unlikeliness(params["rank_penalty"])(column(inputs["rewards"]), rows, {OLD_LOGPROBS: logprobs})
    close(shaped.values[:, 0], outputs["shaped_rewards"])
    advantage = GroupNorm(eps=params["eps"])
    close(advantage(shaped, rows).values[:, 0], outputs["advantages"], 1e-6)


@check("vlm_r1_qwen_iou_reward")
def vlm_r1_qwen_iou_reward(inputs: Any, params: Any, outputs: Any) -> None:
    """Theirs reads only the first answer tag and only a list of whole numbers, and wants an overlap of more than a pixel."""
    patch, reward = params["patch"], shipped("iou", space="resized")
    cases: Any = inputs
    for case, theirs in zip(cases, outputs["iou"], strict=True):
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
def vlm_r1_detection_rewards(outputs: Any) -> None:
    """Equal on exact answers, misses and empty pictures; a box nobody asked for is free in theirs and costs in ours."""
    kinds = {"od": {"kind": "map"}, "odLength": {"kind": "map", "count_penalty": 1.0}}
    for case in outputs["cases"]:
        text, truth = case["completion"], parse_boxes(case["solution"], "pixel")
        for name, fields in kinds.items():
            found = value_of("multi_box", tuple(truth), text, space="pixel", labels=True, **fields)
            assert found is not None
            predicted = parse_boxes(text, "pixel")
            extra = [box for box in predicted if box.label not in {true.label for true in truth}]
            more = len(predicted) > len(truth)
            if not extra and not more and name == "od":
                close(found, case[name], 1e-6, f"{name}: {text}")
            assert found <= case["od"] + 1e-6, f"{name}: {text} is worth no more than there"
            assert (found >= 1 - 1e-9) == (case["odLength"] >= 1 - 1e-9), f"{name}: {text}"


@check("vlm_r1_text_rewards")
def vlm_r1_text_rewards(outputs: Any) -> None:
    """Theirs finds letters, yes and no inside words, takes the first number for the answer and pays for shared letters."""
    for case in outputs["cases"]:
        text, theirs, what = case["completion"], case["reward"], json.dumps(case)
        if case["fn"] == "format_reward":
            # blanks at the ends may be; a second answer may not
            sound = text == text.strip() and text.count("<answer>") == 1
            close(
                value_of("format", None, text, template="think"),
                theirs if sound else float(text.count("<answer>") == 1),
                what=what,
            )
        elif case["fn"] == "mcq_reward":
            truth = answer_block(case["solution"]) or case["solution"]
            found = value_of("choice", truth[:1], text)
            clear = re.fullmatch(r"(<answer>)?([A-Z]|The answer is [A-Z]\.)(</answer>)?", text)
            assert found is not None and (found == theirs if clear else found <= theirs), what
        elif case["fn"] == "default_accuracy_reward":
            answer, truth = answer_block(text), answer_block(case["solution"])
            if re.fullmatch(r"-?\d+(\.\d+)?( cm)?", answer) and re.fullmatch(r"-?\d+(\.\d+)?", truth):
                close(value_of("number", float(truth), text), theirs, what=what)
        else:
            said, truth = (parse_choices(x, ("yes", "no")) for x in (text, case["solution"]))
            if said and truth:
                close(choice_score(said, truth, soft=False), theirs, what=what)
            assert bool(said) == (answer_block(text).casefold() in ("yes", "no")), what


REWARDS = Path(__file__).resolve().parents[2] / "rewards"


@check("r1_router.retrieval")
def retrieval(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    """The vectors of texts stand in the file; the model that makes them is tested in tests/plugins."""
    known = {text: tensor(values) for text, values in inputs["embeddings"].items()}
    reward: Any = load(str(REWARDS / "sub_question.py"), "rewards")
    assert reward().retrievers == tuple(params["retrievers"])
    rewards = modules[reward.__module__].step_rewards
    for case, expected in zip(inputs["cases"], outputs["rewards"], strict=True):
        found = rewards(
            [case["text"]],
            case["query"],
            case["retriever"],
            params["retrievers"],
            lambda query, others: [float(known[query] @ known[other]) for other in others],
        )
        close(found, [expected], tolerance, case["text"])


@check("r1_router.answer")
def recall(inputs: Any, outputs: Any, tolerance: float) -> None:
    for case, expected in zip(inputs["cases"], outputs["rewards"], strict=True):
        found = value_of("answer_recall", case["answers"], case["text"], template="think")
        close(found, expected, tolerance, case["text"])


@check("jarvisart.parameters")
def parameters(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    told = params["thresholds"]
    assert all(told[name] == value for name, value in THRESHOLDS.items())
    for i, case in enumerate(inputs["cases"]):
        found = agreement(case["predicted"], case["truth"], told)
        close(found["names"], outputs["names"][i], tolerance, f"names {i}")
        close(found["values"], outputs["values"][i], tolerance, f"values {i}")


@check("jarvisart.masks")
def masks(inputs: Any, outputs: Any, tolerance: float) -> None:
    found = [masks_agreement(case["predicted"], case["truth"]) for case in inputs["cases"]]
    close(found, outputs["rewards"], tolerance, "rewards")


@check("jarvisart.perception")
def perception(inputs: Any, params: Any, outputs: Any, tolerance: float) -> None:
    one, other = inputs["lab"]
    close(likeness(one, other, params["k"]), outputs["reward"], tolerance, "reward")


BETTER_THAN_VIDEO_R1 = {
    ("multiple choice", "B."): 1.0,  # there "B." is not B
    ("numerical", "3.0"): 1.0,  # there both numbers must have a point, or neither
    ("numerical", "1000"): 1.0,  # and the same for commas
    ("numerical", "3.001"): 0.0,  # there numbers are rounded to two digits; here a tolerance is asked for
    ("regression", "1,0"): 0.0,  # there commas vanish, so that 1,0 is ten
    ("regression", "10"): 1.0,  # there 1 - 1e-10
    ("multiple choice", "<answer>A</answer><answer>B</answer>"): 1.0,  # there the first answer counts
}


@check("video_r1_rewards")
def video_r1_rewards(outputs: Any) -> None:
    for case in outputs["cases"]:
        kind, truth = case["problem_type"], case.get("gt", case.get("solution"))
        text = case.get("completion", f"<answer>{case.get('answer')}</answer>")
        columns = {"problem_type": kind}
        if kind == "unknown":
            refused("'unknown', which no reward is for", value_of, "by_type", truth, text, columns)
            continue
        expected = BETTER_THAN_VIDEO_R1.get((kind, case.get("answer", text)), case["reward"])
        if (kind, truth) in (("regression", "0"), ("numerical", "3.0")) and case["reward"] != expected:
            assert value_of("number", truth, text, absolute=0.005) == case["reward"]
        close(value_of("by_type", truth, text, columns), expected, 2e-10, f"{case}")
    for case in outputs["format"]:
        # a newline after the answer and an opening tag written by the chat template are forgiven here
        forgiven = case["completion"].endswith("\n")
        assert keeps_format(case["completion"], "think") == (forgiven or bool(case["reward"])), case


@check("temporal_iou")
def temporal_iou_of_pairs(inputs: Any, outputs: Any) -> None:
    """Spans without length and inverted ones are no spans: as answers they score 0, as the file demands."""
    for (predicted, truth), hull, union in zip(inputs["pairs"], outputs["hull"], outputs["set_union"], strict=True):
        true = Interval(*truth)
        if predicted[0] < predicted[1]:
            close(temporal_iou(Interval(*predicted), true), hull)
            close(union_iou([Interval(*predicted)], [true]), union)
        else:
            refused("no span", Interval, *predicted)
        close(value_of("temporal_iou", true, f"<answer>{predicted[0]} to {predicted[1]}</answer>"), hull)


@check("tw_grpo_soft_reward")
def tw_grpo_soft_reward(outputs: Any) -> None:
    for case in outputs["cases"]:
        for kind in ("soft", "hard"):
            ours = value_of("choice", case["solution"], case["completion"], kind={"soft": "soft", "hard": "exact"}[kind])
            close(ours, float(case[kind]), what=f"{kind} {case}")
