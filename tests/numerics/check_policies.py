"""Positions, boxes and picture sizes of Qwen's models, VLM-R1's IoU, and advantages and packed layouts of peers."""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

import torch
from transformers import Qwen2_5_VLConfig, Qwen3VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as smart_resize_video

from mmrl.algorithms.advantages.decoupled import Decoupled
from mmrl.algorithms.advantages.group import GroupNorm, LeaveOneOut, ReinforcePlusPlus
from mmrl.answers.boxes.box import Box, Space, iou
from mmrl.core.protocols import Advantage
from mmrl.core.types import MediaSize
from mmrl.policies.text.families.qwen_vl import mrope_positions
from mmrl.policies.text.packed.row import pack_row
from mmrl.policies.text.prompt.encode import Encoded
from tests.numerics.registry import check, close, tensor
from tests.numerics.rows import blocks, credited

IMAGE, VIDEO = 1, 2
TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}


@cache
def core(config_class: Any, model_class: Any, spatial_merge: int, **vision: int) -> Any:
    """A model without weights: positions need its config alone."""
    config = config_class(
        text_config={**TEXT, "vocab_size": 64}, vision_config={**VISION, "spatial_merge_size": spatial_merge, **vision}
    )
    with torch.device("meta"):
        return model_class(config)


@check("mrope_positions")
def mrope_positions_by_the_model(params: Any, outputs: Any) -> None:
    """Ours are transformers 5's; what version 4 makes of long videos is in the file for comparison only."""
    merge, rate = params["spatial_merge"], params["tokens_per_second"]
    before, after = params["layout"].strip("[]").split(" V*n ")
    num_before, num_after = len(before.split()), len(after.split())
    model = core(Qwen2_5_VLConfig, Qwen2_5_VLModel, merge, tokens_per_second=rate)
    for case in outputs["qwen2_5_vl"]:
        grid = torch.tensor([case["grid_thw"]])
        is_video = case["kind"] == "video"
        num_features = int(grid.prod()) // merge**2
        types = torch.tensor([0] * num_before + [VIDEO if is_video else IMAGE] * num_features + [0] * num_after)
        video = {"video_grid_thw": grid, "second_per_grid_ts": torch.tensor([case["second_per_grid"]])} if is_video else {}
        positions = mrope_positions(model, torch.zeros_like(types), types, None if is_video else grid, **video)
        assert positions[:, num_before].tolist() == case["vision_first"], case
        assert positions[:, num_before + num_features - 1].tolist() == case["vision_last"], case
        assert positions[:, -num_after:].tolist() == case["tail_transformers_5"], case
        assert [[int(positions.max()) + 1 - len(types)]] == case["delta_5"], case
    case = outputs["qwen3_vl"]
    types = torch.tensor(case["token_types"][0])
    model = core(Qwen3VLConfig, Qwen3VLModel, merge)
    positions = mrope_positions(model, torch.zeros_like(types), types, video_grid_thw=torch.tensor([case["grid_thw"]]))
    assert positions.tolist() == case["position_ids"]
    assert [[int(positions.max()) + 1 - len(types)]] == case["delta"]


def box_of(corners: Sequence[float]) -> Box:
    x1, y1, x2, y2 = corners
    return Box(x1, y1, x2, y2, "pixel")


@check("vlm_r1_iou_conventions")
def vlm_r1_iou_conventions(inputs: Any, outputs: Any) -> None:
    pairs = [(box_of(a), box_of(b)) for a, b in inputs["pairs"]]
    for (a, b), strict, qwen_style in zip(pairs, outputs["strict"], outputs["qwen_style"], strict=True):
        close(iou(a, b), strict, what=f"{a} and {b}")
        # the qwen style sees no overlap unless it exceeds one unit on both axes; we do, and agree on all others
        if qwen_style:
            close(iou(a, b), qwen_style, what=f"{a} and {b}")


@check("qwen_smart_resize_and_boxes")
def qwen_smart_resize_and_boxes(outputs: Any) -> None:
    """The resizing is transformers'; the boxes are ours. The file's boxes are rounded to integers."""
    for case in outputs["images"]:
        height, width, resized = case["height"], case["width"], tuple(case["resized"])
        what = f"{height} x {width}, factor {case['factor']}, at most {case['max_pixels']} pixels"
        assert smart_resize(height, width, case["factor"], case["min_pixels"], case["max_pixels"]) == resized, what
        frames, rows, columns = case["grid_thw_patch"]
        patch = resized[0] // rows
        assert (frames, rows * patch, columns * patch) == (1, *resized), what
        size = MediaSize(width, height, seen_width=columns * patch, seen_height=rows * patch)
        box = box_of(case["box_original_xyxy"])
        written: dict[Space, list[int]] = {"resized": case["box_qwen25_pixels"], "norm1000": case["box_0_1000"]}
        for space, corners in written.items():
            off = [abs(ours - theirs) for ours, theirs in zip(box.to(space, size).corners, corners, strict=True)]
            assert max(off) <= 0.5 + 1e-6, f"{what}: {space} is off by {off}"
            close(box.to(space, size).to("pixel", size).corners, box.corners, what=f"{what}: {space} and back")
    video = Qwen3VLVideoProcessor
    limits = {"factor": video.patch_size * video.merge_size, "min_pixels": video.size["shortest_edge"]}
    for case in outputs["qwen3_video"]:
        resized = smart_resize_video(case["frames"], case["height"], case["width"], max_pixels=case["max_pixels"], **limits)
        assert list(resized) == case["resized"], f"the budget of a Qwen3-VL video counts all its frames: {case}"


@check("swift_advantages")
def swift_advantages(inputs: Any, params: Any, outputs: Any) -> None:
    size, eps = params["num_generations"], params["eps"]
    ids = blocks(len(inputs["rewards_per_func"]), size)
    for case in outputs["cases"]:
        name, scale = case["advantage_estimator"], case["scale_rewards"]
        rewards, weights, tolerance, factor = tensor(case["rewards"]), [1.0], 1e-6, 1.0
        part: Advantage = GroupNorm(scale=scale if scale != "gdpo" else "group", eps=eps)
        if scale == "gdpo":
            part = Decoupled(eps=params["gdpo_eps"], whiten_eps=params["gdpo_eps"])
            rewards, weights = tensor(inputs["rewards_per_func"]), inputs["reward_weights"]
        elif name == "rloo":
            # it divides leave-one-out differences by deviations, which is a constant times GroupNorm
            part, factor = (LeaveOneOut(), 1.0) if scale == "none" else (part, size / (size - 1))
        elif name == "reinforce_plus_plus" and scale == "batch":
            # its eps is added to the deviation, ours to the variance
            part, tolerance = ReinforcePlusPlus(baseline=True), eps * 4
        found = credited(part, rewards, ids, weights) * factor
        close(found, case["advantages"], tolerance, f"{name} {scale} {case['kl_in_reward']}")


@check("prefix_grouper_layout")
def prefix_grouper_layout(inputs: Any, params: Any, outputs: Any) -> None:
    """Its row of a group is ours without padding; positions go on after the prompt for every completion."""
    size = params["group_sizes"]
    for i, (ids, mask) in enumerate(zip(inputs["prefix_ids"], inputs["prefix_mask"], strict=True)):
        prompt = torch.tensor([token for token, real in zip(ids, mask, strict=True) if real])
        suffixes = torch.tensor(inputs["suffix_ids"][i * size : (i + 1) * size])
        lengths = torch.tensor(inputs["suffix_mask"][i * size : (i + 1) * size]).sum(1)
        # ours never feeds a completion's last token, which predicts nothing: one more is appended to feed all of them
        tokens = torch.nn.functional.pad(suffixes, (0, 1))
        encoded = Encoded("0", prompt, torch.arange(len(prompt))[None])
        row = pack_row([encoded], torch.zeros(size, dtype=torch.long), tokens, lengths + 1)
        real = int(lengths.sum()) + len(prompt)
        order = sorted(range(size), key=lambda row: -int(lengths[row]))
        fed = [suffixes[j, : lengths[j]].tolist() for j in order]
        assert row.token_ids[0].tolist() == [*prompt.tolist(), *chain.from_iterable(fed)]
        theirs = dict(zip(range(size), split(outputs["packed_ids"][i][len(prompt) : real], lengths.tolist()), strict=True))
        assert [theirs[j] for j in order] == fed
        places = dict(zip(range(size), split(outputs["position_ids"][i][len(prompt) : real], lengths.tolist()), strict=True))
        assert row.positions[0, 0].tolist() == [
            *outputs["position_ids"][i][: len(prompt)],
            *chain.from_iterable(places[j] for j in order),
        ]
        # the prompt's last token predicts the first one of every completion
        assert row.place[:, 0].tolist() == [len(prompt) - 1] * size


def split(row: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """The row cut into pieces of these lengths."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return [list(row[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
