"""Boxes and picture sizes: IoU against VLM-R1's two conventions, and the three ways Qwen's models write a box."""

from collections.abc import Sequence

from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as smart_resize_video

from mmrl.answers.boxes.box import Box, Space, iou
from mmrl.core.types import MediaSize
from tests.numerics.registry import Vector, check, close


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
