"""A Qwen3-VL of some 0.9 M parameters with its real processor.

Weights and positions are drawn so wide that a model of this size learns to see within minutes.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from mmrl.lab.tiny.byte_tokens import Built, HubObject, Kwargs, hub, own_ids, processor_of, rope
from mmrl.lab.tiny.tokenizer import CHAT_TEMPLATE, qwen_ids, qwen_tokenizer

PATCH = 8
"""Pixels; merged 2 by 2, and over pairs of frames: 32 x 32 pixels are 4 tokens, a second of two such frames too."""
_WEIGHT_STD, _POSITION_STD = 0.04, 0.5
"""A position table as narrow as the other weights leaves the model blind to places for as long."""


@dataclass(frozen=True)
class Student:
    """The words and pictures that a model is to know: `Student(("Where is the 7?",), 64, (0.16, 0.25))`."""

    texts: tuple[str, ...]
    """Their words become single tokens."""
    side: int
    """Of its square pictures, in pixels."""
    pixels: tuple[float, float]
    """Their mean and deviation. With the usual 0.5 and 0.5 the model does not learn to see in minutes."""
    frames: int = 1
    """The most frames of a clip."""
    tags: tuple[str, ...] = ()
    """Words that are single tokens whatever stands around them."""

    def build(self, seed: int) -> Built:
        """The untaught model, and its processor."""
        tokenizer = qwen_tokenizer(self.texts)
        tokenizer.add_tokens([*self.tags])
        (mean, std), area = self.pixels, self.side**2
        patches: Kwargs = {"patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 2}
        patches |= {"image_mean": [mean] * 3, "image_std": [std] * 3}
        sizes = ({"shortest_edge": area, "longest_edge": most * area} for most in (1, self.frames))
        pictures, clips = ({**patches, "size": size} for size in sizes)
        processor = processor_of("Qwen3VL", tokenizer, pictures, clips, "Qwen2VL", "Qwen3VL", chat_template=CHAT_TEMPLATE)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = hub("Qwen3VLForConditionalGeneration", _config(tokenizer, self.side))
            nn.init.normal_(model.model.visual.pos_embed.weight, std=_POSITION_STD)
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.pad_token_id = tokenizer.pad_token_id
        return model.eval(), processor

    def __call__(self, folder: Path, seed: int = 0) -> Path:
        """Save model and processor, untaught, to a folder and return it."""
        return save(self.build(seed), folder)


def save(built: Built, folder: Path) -> Path:
    """Save model and processor to a folder and return it."""
    for part in built:
        part.save_pretrained(folder)
    return folder


def _config(tokenizer: HubObject, side: int) -> HubObject:
    axes = rope(6, 5, 5, rope_theta=5e6, mrope_interleaved=True)
    text = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3, "head_dim": 32, "rope_parameters": axes}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    text |= {**own_ids(tokenizer), "bos_token_id": None, "initializer_range": _WEIGHT_STD, "tie_word_embeddings": True}
    vision = {"hidden_size": 64, "intermediate_size": 128, "depth": 2, "num_heads": 2, "out_hidden_size": 128}
    vision |= {"patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2, "deepstack_visual_indexes": [0]}
    vision |= {"num_position_embeddings": (side // PATCH) ** 2, "initializer_range": _WEIGHT_STD}
    return hub("Qwen3VLConfig", text_config=text, vision_config=vision, tie_word_embeddings=True, **qwen_ids(tokenizer))
