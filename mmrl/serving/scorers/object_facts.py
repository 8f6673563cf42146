"""The colour of a detected object, and its place as seen from another one: questions of GenEval (arXiv:2310.11513)."""

import math

import torch
from PIL import Image

from mmrl.runtime.pictures import upright_rgb
from mmrl.serving.scorers.detectors import COLOURS, Detection
from mmrl.serving.scorers.encoders import encoder_of, picture_features

MARGIN = 0.1
NO_MOVE = 1e-3
GREY = (153, 153, 153)
RELATIONS = ("left of", "right of", "above", "below")


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
