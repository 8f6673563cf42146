"""Small random models that score pictures, of the real classes: a CLIP with its tokenizer, and a detector with COCO's names.

Their scores mean nothing; they load, batch and answer as the published ones do.
"""

import math
from collections.abc import Callable
from pathlib import Path

import torch

from mmrl.lab.tiny.byte_tokens import hub, own_ids
from mmrl.lab.tiny.flow.pipeline_parts import clip_tokenizer
from mmrl.serving.scorers.detectors import COCO

SPREAD = 0.2
"""Deviation of random weights: enough for different pictures to score differently."""


def clip(folder: Path) -> None:
    """A CLIPModel of 28 pixels with tokenizer and preprocessing, as PickScore and CLIP come."""
    tokenizer = clip_tokenizer()
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**small, **own_ids(tokenizer), "max_position_embeddings": 77}
    vision = {**small, "image_size": 28, "patch_size": 7}
    model = hub("CLIPModel", hub("CLIPConfig", text_config=text, vision_config=vision, projection_dim=16))
    draw_weights(model)
    with torch.no_grad():
        model.logit_scale.fill_(math.log(100.0))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    hub("CLIPImageProcessor", size={"shortest_edge": 28}, crop_size=28).save_pretrained(folder)


def detector(folder: Path) -> None:
    """A YOLOS of 64 pixels that knows COCO's names."""
    names = [name for name in COCO if name != "-"]
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    config = hub("YolosConfig", **small, **labels, image_size=[64, 64], num_detection_tokens=100)
    model = hub("YolosForObjectDetection", config)
    draw_weights(model)
    model.save_pretrained(folder)
    hub("YolosImageProcessor", size={"height": 64, "width": 64}).save_pretrained(folder)


def draw_weights(model: torch.nn.Module) -> None:
    """The same random matrices every time."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, SPREAD, generator=generator)


SCORERS: dict[str, Callable[[Path], None]] = {"clip": clip, "detector": detector}
"""Name of a folder -> what fills it."""
