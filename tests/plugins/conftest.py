"""Loading plug-in files as the app does, groups to score, and small models of the real classes that score pictures."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, MediaSize, Prompt, Sample, Scored
from mmrl.lab.tiny import scorers
from mmrl.lab.tiny.byte_tokens import byte_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SIZE = MediaSize(640, 480, 644, 476)
MEAN, STD = torch.tensor([0.48145466, 0.4578275, 0.40821073]), torch.tensor([0.26862954, 0.26130258, 0.27577711])
"""How CLIP's pictures are normalized."""


def values(scores) -> list[Any]:
    """The numbers of scores, parts aside."""
    return [score.value if isinstance(score, Scored) else score for score in scores]


def pictured(text, *images, **columns):
    """A group of pictures for a text."""
    return Group(0, Prompt("p7", text, columns=columns), tuple(Sample(image=image) for image in images))


def shipped(name: str, **fields: object) -> Any:
    """The shipped reward of this name."""
    return load(str(ROOT / "rewards" / f"{name}.py"), "rewards")(**fields)


@pytest.fixture
def reward():
    """name, fields -> the shipped reward."""
    return shipped


@pytest.fixture
def dataset():
    """name -> the shipped data set's load function."""
    return lambda name: load(str(ROOT / "datasets" / f"{name}.py"), "datasets")


@pytest.fixture
def group_of():
    """answer, texts -> a group on one picture of 640 x 480 pixels."""

    def build(answer, *texts, sizes=(SIZE,)):
        samples = tuple(Sample(text, tuple(range(len(text.split()))), media_sizes=sizes) for text in texts)
        return Group(0, Prompt("p7", "Where?", ("cat.jpg",), answer), samples)

    return build


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """A CLIPModel of 28 pixels with tokenizer and preprocessing of its own."""
    folder = tmp_path_factory.mktemp("clip")
    scorers.clip(folder)
    return folder


@pytest.fixture(scope="module")
def siglip_folder(tmp_path_factory):
    """A SiglipModel, whose pictures are squashed to a square, and its texts padded to their full length."""
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    folder, tokenizer = tmp_path_factory.mktemp("siglip"), byte_tokenizer({})
    small = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**small, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config={**small, "image_size": 28, "patch_size": 14}))
    scorers.draw_weights(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    SiglipImageProcessor(size={"height": 28, "width": 28}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def open_clip_folder(tmp_path_factory):
    """A folder as open_clip saves it to the hub; also the architecture alone, and a checkpoint as HPSv2 has it."""
    import open_clip
    from safetensors.torch import save_file

    vision = {"image_size": 28, "layers": 2, "width": 32, "head_width": 16, "patch_size": 7}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    folder, sizes = tmp_path_factory.mktemp("open_clip"), {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    torch.manual_seed(1)
    weights = open_clip.CLIP(**sizes).state_dict()
    save_file(weights, folder / "open_clip_model.safetensors")
    torch.save({"epoch": 3, "state_dict": weights}, folder / "HPS_v2.1_compressed.pt")
    preprocess = {"mean": MEAN.tolist(), "std": STD.tolist(), "interpolation": "bicubic", "resize_mode": "shortest"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": sizes, "preprocess_cfg": preprocess}))
    (folder / "small-vit.json").write_text(json.dumps(sizes))
    return folder
