"""A Qwen3-VL of some 0.9 M parameters with its real processor, and how it imitates what it is shown.

Weights and positions are drawn so wide that a model of this size learns to see within minutes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mmrl.runtime.tensors import mark_tables
from mmrl.tiny.byte_tokens import Built, HubObject, Kwargs
from mmrl.tiny.keep import Progress
from mmrl.tiny.teaching import cosine
from mmrl.tiny.tokenizer import CHAT_TEMPLATE, qwen_ids, qwen_tokenizer
from mmrl.training.optim import Muon

PATCH = 8
"""Pixels; merged 2 by 2, and over pairs of frames: 32 x 32 pixels are 4 tokens, a second of two such frames too."""
_WEIGHT_STD, _POSITION_STD = 0.04, 0.5
"""A position table as narrow as the other weights leaves the model blind to places for as long."""


@dataclass(frozen=True)
class Imitation:
    """The settings of an imitation."""

    steps: int = 400
    batch_size: int = 16
    lr: float = 3e-3
    """Of Muon for matrices and AdamW for the rest; 20 steps of warm-up, then a cosine down to a hundredth."""
    seed: int = 0


def build(
    texts: Sequence[str], side: int, pixels: tuple[float, float], video_area: int, seed: int, tags: Sequence[str] = ()
) -> Built:
    """The untrained model, and its processor of square pictures of `side` pixels; `texts` become tokens of whole words.

    Args:
        pixels: their mean and deviation. With the usual 0.5 and 0.5 the model does not learn to see in minutes.
        video_area: the most pixels of all frames of a clip.
        tags: words that are single tokens whatever stands around them.
    """
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    tokenizer = qwen_tokenizer(texts)
    tokenizer.add_tokens([*tags])
    mean, std = pixels
    patches: Kwargs = {"patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 2}
    patches |= {"image_mean": [mean] * 3, "image_std": [std] * 3}
    area = side**2
    processor = Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**patches, size={"shortest_edge": area, "longest_edge": area}),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**patches, size={"shortest_edge": area, "longest_edge": video_area}),
        chat_template=CHAT_TEMPLATE,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(_config(tokenizer, side))
        nn.init.normal_(model.model.visual.pos_embed.weight, std=_POSITION_STD)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval(), processor


def save(built: Built, folder: Path) -> Path:
    """Save model and processor to a folder and return it."""
    for part in built:
        part.save_pretrained(folder)
    return folder


def imitate(
    model: HubObject, batches: Iterable[dict[str, Tensor]], settings: Imitation, progress: Progress | None = None
) -> None:
    """Train on the cross entropy of the labels' tokens, one batch a step; `batches` are endless."""
    steps, lr = settings.steps, settings.lr
    losses = learn(model, batches, lambda step: lr * cosine(step, steps, warmup=20))
    for step, loss in zip(range(steps), losses):  # noqa: B905 - batches may be endless
        if progress is not None:
            progress(step + 1, steps, loss)
    model.zero_grad()
    model.eval()


def learn(model: HubObject, batches: Iterable[dict[str, Tensor]], lr: Callable[[int], float]) -> Iterator[float]:
    """Train on a batch each time the loss is asked for, at the learning rate of that step (from 0)."""
    mark_tables(model)
    optimizer = Muon(model.parameters(), lr(0), weight_decay=0.0)
    for step, fed in enumerate(batches):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = lr(step)
        loss = model(**fed).loss
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


def with_answers(fed: dict[str, Tensor], tokenizer: HubObject, answers: Sequence[str]) -> dict[str, Tensor]:
    """A batch of prompts with the answers behind them, and labels on the answers' tokens only."""
    written = tokenizer([answer + tokenizer.eos_token for answer in answers], padding=True, padding_side="right")
    ids, mask = (torch.tensor(written[name]) for name in ("input_ids", "attention_mask"))
    unlabelled = torch.full_like(fed["input_ids"], -100)
    return fed | {
        "input_ids": torch.cat([fed["input_ids"], ids], dim=1),
        "attention_mask": torch.cat([fed["attention_mask"], mask], dim=1),
        "mm_token_type_ids": torch.cat([fed["mm_token_type_ids"], torch.zeros_like(ids)], dim=1),
        "labels": torch.cat([unlabelled, ids.masked_fill(mask == 0, -100)], dim=1),
    }


def _config(tokenizer: HubObject, side: int) -> HubObject:
    from transformers import Qwen3VLConfig

    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    text = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3, "head_dim": 32, "rope_parameters": rope}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    text |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    text |= {"vocab_size": len(tokenizer), "initializer_range": _WEIGHT_STD, "tie_word_embeddings": True}
    vision = {"hidden_size": 64, "intermediate_size": 128, "depth": 2, "num_heads": 2, "out_hidden_size": 128}
    vision |= {"patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2, "deepstack_visual_indexes": [0]}
    vision |= {"num_position_embeddings": (side // PATCH) ** 2, "initializer_range": _WEIGHT_STD}
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **qwen_ids(tokenizer))
