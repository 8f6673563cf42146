"""Positions, patch rows, boxes and picture sizes of Qwen's models, through the policy's own functions, and VLM-R1's IoU."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from transformers import Qwen2_5_VLConfig, Qwen3VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as smart_resize_video

from mmrl.answers.boxes.box import Box, Space, iou
from mmrl.core.types import MediaSize
from mmrl.policies.text.families.qwen_vl import mrope_positions
from tests.numerics.formulas import split_rows_by_grid
from tests.numerics.registry import Vector, check, close

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
def mrope_positions_by_the_model(vector: Vector) -> None:
    """Ours are transformers 5's; what version 4 makes of long videos is in the file for comparison only."""
    merge, rate = vector.params["spatial_merge"], vector.params["tokens_per_second"]
    before, after = vector.params["layout"].strip("[]").split(" V*n ")
    num_before, num_after = len(before.split()), len(after.split())
    model = core(Qwen2_5_VLConfig, Qwen2_5_VLModel, merge, tokens_per_second=rate)
    for case in vector.outputs["qwen2_5_vl"]:
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
    case = vector.outputs["qwen3_vl"]
    types = torch.tensor(case["token_types"][0])
    model = core(Qwen3VLConfig, Qwen3VLModel, merge)
    positions = mrope_positions(model, torch.zeros_like(types), types, video_grid_thw=torch.tensor([case["grid_thw"]]))
    assert positions.tolist() == case["position_ids"]
    assert [[int(positions.max()) + 1 - len(types)]] == case["delta"]


@check("trl_split_pixel_values")
def trl_split_pixel_values(vector: Vector) -> None:
    grids, num_images = torch.tensor(vector.inputs["image_grid_thw"]), vector.inputs["num_images"]
    rows = split_rows_by_grid(grids, num_images)
    assert rows == vector.outputs["rows_per_sample"]
    assert sum(map(len, rows)) == vector.inputs["pixel_rows"]
    ends = torch.tensor([0, *num_images]).cumsum(0).tolist()
    assert [grids[a:b].tolist() for a, b in pairwise(ends)] == vector.outputs["grid_per_sample"]


def box_of(corners: Sequence[float]) -> Box:
    x1, y1, x2, y2 = corners
    return Box(x1, y1, x2, y2, "pixel")


@check("vlm_r1_iou_conventions")
def vlm_r1_iou_conventions(vector: Vector) -> None:
    pairs = [(box_of(a), box_of(b)) for a, b in vector.inputs["pairs"]]
    for (a, b), strict, qwen_style in zip(pairs, vector.outputs["strict"], vector.outputs["qwen_style"], strict=True):
        close(iou(a, b), strict, what=f"{a} and {b}")
        # the qwen style sees no overlap unless it exceeds one unit on both axes; we do, and agree on all others
        if qwen_style:
            close(iou(a, b), qwen_style, what=f"{a} and {b}")


@check("qwen_smart_resize_and_boxes")
def qwen_smart_resize_and_boxes(vector: Vector) -> None:
    """The resizing is transformers'; the boxes are ours. The file's boxes are rounded to integers."""
    for case in vector.outputs["images"]:
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
    for case in vector.outputs["qwen3_video"]:
        resized = smart_resize_video(case["frames"], case["height"], case["width"], max_pixels=case["max_pixels"], **limits)
        assert list(resized) == case["resized"], f"the budget of a Qwen3-VL video counts all its frames: {case}"
