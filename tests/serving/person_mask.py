"""score = IoU of the people in the picture, segmented by mediapipe, and the polygons of `prompt.answer`."""

from collections.abc import Sequence
from typing import Any

import mediapipe  # pyright: ignore[reportMissingImports]
import numpy as np
from PIL import Image, ImageDraw

from mmrl import Group, Scored

__all__ = ["PersonMask"]


class PersonMask:
    pointwise = True

    def __init__(self) -> None:
        self.model: Any = mediapipe.solutions.selfie_segmentation.SelfieSegmentation(model_selection=0)

    def __call__(self, group: Group) -> Sequence[Scored]:
        return [self.one(sample.image, group.prompt.answer) for sample in group.samples]

    def one(self, image: Image.Image, polygons: Sequence[Sequence[tuple[int, int]]]) -> Scored:
        found = self.model.process(np.asarray(image.convert("RGB"))).segmentation_mask > 0.5
        canvas = Image.new("1", image.size)
        for polygon in polygons:
            ImageDraw.Draw(canvas).polygon([tuple(point) for point in polygon], fill=1)
        wanted = np.array(canvas)
        iou = (found & wanted).sum() / max((found | wanted).sum(), 1)
        return Scored(float(iou), {"numpy": float(np.__version__.rpartition(".")[0]), "covered": float(found.mean())})
