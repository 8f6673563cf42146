"""Does the picture show the objects that the prompt names, with the right count, colour and place? (GenEval)

    dense    mean over clauses: max(0, 1 - |wanted - found| / wanted) for the count; if that is right, the same for the colour,
             and 1 or 0 for the place
    strict   1 if every count, colour and place is right, else 0
    correct  GenEval's benchmark: at least that count (the best boxes count), `exclude` caps it

Metadata are columns of the prompt: tag, include = [{class, count, color?, position = [relation, number of another clause]?}],
exclude; lists or JSON text. Unlike the widely copied server, a wrong place earns nothing and no clause is below 0.

GenEval's own judge is a Mask2Former, and a CLIP that names colours of what is cut out on grey:

    detector = "facebook/mask2former-swin-small-coco-instance"
    colour = "openai/clip-vit-large-patch14"
    score = "correct"

The benchmark's weights are another training of that model, in mmdetection: expect small differences. It counts surer boxes
(counting_threshold) in prompts tagged `counting`. Weaker detectors need a lower one there.

Modality: image
Range: [0, 1]
Source: arXiv:2310.11513, djghosh13/geneval; dense score of Flow-GRPO, arXiv:2505.05470
Licence: own code Apache-2.0; GenEval MIT; the detector's weights see their card
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image

from mmrl import Group, Need, Scored
from mmrl.runtime.ranges import Count, Share
from mmrl.serving.media import pictures_of
from mmrl.serving.scorers.detectors import (
    COLOURS,
    RELATIONS,
    SSD,
    Detection,
    Detector,
    canonical,
    colour_by_name,
    detector_of,
    lab_colour,
    relations,
)
from mmrl.serving.scorers.models import HeldModel, OnDevice, chunks
from mmrl.serving.scorers.sizes import ModelSize, encoder_size, hub_size

MOST = 16


@dataclass(frozen=True)
class ObjectCounts(OnDevice):
    """GenEval's clauses, checked with a detector."""

    detector: str = "PekingU/rtdetr_v2_r50vd"
    """Hub id or folder of a detector or a Mask2Former of transformers, or ssd_mobilenet."""
    score: Literal["dense", "strict", "correct"] = "dense"
    """How clauses become one number: one of the three ways above."""
    threshold: Share = 0.3
    """Confidence from which an object counts as detected."""
    counting_threshold: Share = 0.9
    """For prompts tagged `counting`: GenEval's number, fitted to Mask2Former; weaker detectors want less."""
    colour: str = "lab"
    """lab = nearest mean colour of the box's middle; or a CLIP that names it, as GenEval's openai/clip-vit-large-patch14."""
    batch_size: Count = 8
    """Pictures in one forward of the model."""
    needs = Need(
        "the column include; color, position, exclude and tag where they apply",
        lambda prompt, *_: prompt.columns.get("include"),
        setup="detector (hub id or folder; ssd_mobilenet: opencv and a package with its weights)",
    )

    def models(self) -> Sequence[ModelSize]:
        found = [] if self.detector == SSD else [hub_size(self.detector, self.device, "AutoModelForObjectDetection")]
        return found if self.colour == "lab" else [*found, encoder_size(self.colour, self.device)]

    def held(self) -> HeldModel | None:
        return detector_of(self.detector, self.device).held

    def __call__(self, group: Group) -> list[float | Scored | None]:
        columns = group.prompt.columns
        if columns.get("include") is None:
            return [None] * len(group.samples)
        detector = detector_of(self.detector, self.device)
        include = _clauses(columns["include"], detector, group.prompt.id)
        exclude = _clauses(columns.get("exclude") or [], detector, group.prompt.id)
        threshold = self.counting_threshold if columns.get("tag") == "counting" else self.threshold
        scored = []
        for some in chunks(pictures_of(group), self.batch_size):
            for picture, found in zip(some, detector(some, threshold), strict=True):
                scored.append(self._score(picture, found, include, exclude))
        return scored

    def _score(self, picture: Any, found: Sequence[Detection], include: Sequence[dict], exclude: Sequence[dict]) -> Scored:
        by_class = [[one for one in found if one.label == clause["class"]][:MOST] for clause in include]
        dense, correct = list[float](), True
        for clause, mine in zip(include, by_class, strict=True):
            wanted = clause["count"]
            dense.append(_closeness(wanted, len(mine)))
            best, exact = mine[:wanted], len(mine) == wanted
            correct &= len(mine) >= wanted
            if "color" in clause:
                colours = [self._colour(picture, one) for one in best]
                dense.append(_closeness(wanted, colours.count(clause["color"])) if exact else 0.0)
                correct &= colours.count(clause["color"]) >= wanted
            if "position" in clause:
                relation, other = clause["position"]
                others = by_class[other][: include[other]["count"]]
                right = bool(best and others) and all(relation in relations(a, b) for a in best for b in others)
                dense.append(float(right and exact))
                correct &= right
        for clause in exclude:
            correct &= sum(one.label == clause["class"] for one in found) < clause["count"]
        parts = {"dense": sum(dense) / len(dense), "strict": float(all(value == 1 for value in dense)), "correct": float(correct)}
        return Scored(parts[self.score], {**parts, "objects": float(len(found))})

    def _colour(self, picture: Image.Image, one: Detection) -> str:
        if self.colour == "lab":
            return lab_colour(picture, one.corners)
        return colour_by_name(picture, one, self.colour, self.device)


def _closeness(wanted: int, found: int) -> float:
    return max(0.0, 1 - abs(wanted - found) / wanted)


def _clauses(given: Any, detector: Detector, prompt_id: str) -> list[dict[str, Any]]:
    """The clauses with COCO's names, checked."""
    clauses = [dict(clause) for clause in (json.loads(given) if isinstance(given, str) else given)]
    for clause in clauses:
        clause["class"], clause["count"] = canonical(str(clause.get("class"))), int(clause.get("count") or 1)
        # Arrow fills what a row lacks with None
        clause |= {} if clause.get("position") is None else {"position": _position(clause["position"], clauses, prompt_id)}
        for key in [key for key, value in clause.items() if value is None]:
            del clause[key]
        if clause["class"] not in detector.labels:
            raise ValueError(f"prompt {prompt_id!r} asks for {clause['class']!r}, which the detector does not know")
        if clause.get("color", "red") not in COLOURS:
            raise ValueError(f"prompt {prompt_id!r} asks for the colour {clause['color']!r}: known are {', '.join(COLOURS)}")
    return clauses


def _position(position: Any, clauses: Sequence[Mapping[str, Any]], prompt_id: str) -> tuple[str, int]:
    relation, other = str(position[0]), int(position[1])
    if relation not in RELATIONS or not 0 <= other < len(clauses):
        raise ValueError(f"prompt {prompt_id!r}: position {position!r} must be one of {RELATIONS} and the number of a clause")
    return relation, other
