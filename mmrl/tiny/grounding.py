"""A Qwen3-VL of 0.9 M parameters that draws boxes round handwritten digits, taught by sloppy annotators.

`build` writes the untrained model and its real processor. `warm_start` teaches it by imitation, from labels as hurried people
make them: boxes too large, and half of them round the wrong digit. What the labels cannot teach is left to reinforcement
learning. The model answers as Qwen3-VL does: `[{"bbox_2d": [x1, y1, x2, y2]}]`, in thousandths of width and height.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mmrl.answers.boxes.box import Box
from mmrl.answers.boxes.parsing import format_box
from mmrl.core.repeating import bit_for_bit
from mmrl.data import scenes
from mmrl.data.scenes import Corners, Scene, SceneStyle, draw_scene, question
from mmrl.tiny import tokenizer as tokenizers
from mmrl.tiny.keep import keep
from mmrl.tiny.tokenizer import CHAT_TEMPLATE, qwen_tokenizer
from mmrl.tiny.vlms import Built, HubObject, Kwargs, qwen_ids

SIDE = 64
"""Pictures of 64 x 64 pixels: 64 patches of 8 x 8, merged 2 by 2 into 16 tokens."""
PATCH = 8
_MEAN, _STD = 0.16, 0.25
"""Mean and deviation of the scenes' pixels. With the usual 0.5 and 0.5 a model of this size does not learn to see in minutes."""
_WEIGHT_STD, _POSITION_STD = 0.04, 0.5
"""A position table as narrow as the other weights leaves the model blind to places for as long."""
_SCENE_SEED = 1_000_003
"""Scenes of the warm start come from series of their own, so that no later stage trains on them again."""
Progress = Callable[[int, int, float], None]
"""Called with the step (from 1), the number of steps, and the loss."""


@dataclass(frozen=True)
class WarmStart:
    """The settings by which the model is taught by imitation."""

    steps: int = 400
    batch_size: int = 16
    lr: float = 3e-3
    """The learning rate of Muon for matrices and AdamW for the rest; 20 steps of warm-up, then a cosine down to a hundredth."""
    seed: int = 0
    loosen: float = 0.4
    """Every side of a label is pushed out by up to this share of the digit's width or height."""
    confused: float = 0.5
    """Share of labels that surround a distractor."""
    style: SceneStyle = field(default_factory=SceneStyle)

    def __post_init__(self) -> None:
        if self.style.side != SIDE:
            raise ValueError(f"the model sees pictures of {SIDE} x {SIDE} pixels, not of side {self.style.side}")


class Label(NamedTuple):
    """An annotator's answer to a scene."""

    scene: Scene
    answer: str


def build(folder: Path, seed: int = 0) -> Path:
    """Save model and processor, untrained, to `folder` and return it."""
    model, processor = _build(seed)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@bit_for_bit()
def warm_start(settings: WarmStart = WarmStart(), folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Teach the model and return the folder it was saved to; if that exists already, nothing is trained.

    The result depends on the settings alone, bit for bit on one machine; rounding may differ between machines.

    Args:
        settings: steps, labels, optimizer.
        folder: where to save; by default a folder below MMRL_CACHE (or ~/.cache/mmrl), named by a hash of settings and code.
        progress: called after every step.
    """

    def make(unfinished: Path) -> None:
        model, processor = _build(settings.seed)
        teach(model, processor, settings, progress)
        model.save_pretrained(unfinished)
        processor.save_pretrained(unfinished)

    return keep(folder, f"tiny-grounding-{fingerprint(settings)}", "config.json", make)


def fingerprint(settings: WarmStart) -> str:
    """A hash of the settings, the code that draws, builds and teaches, and the versions of torch and transformers."""
    digest = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode())
    for file in (__file__, scenes.__file__, tokenizers.__file__):
        digest.update(Path(file).read_bytes())
    digest.update(f"{version('torch')} {version('transformers')}".encode())
    return digest.hexdigest()[:12]


def answer_text(corners: Corners) -> str:
    """A pixel box as the model is to write it: `[{"bbox_2d": [125, 31, 500, 469]}]`."""
    x1, y1, x2, y2 = (1000 * x / SIDE for x in corners)
    return f"[{format_box(Box(x1, y1, x2, y2, 'norm1000'))}]"


def labels(settings: WarmStart) -> Iterator[list[Label]]:
    """Batches of scenes with the annotators' answers, endless and fixed by the seed."""
    rng = np.random.default_rng([settings.seed, _SCENE_SEED])
    index = 0
    while True:
        batch: list[Label] = []
        for _ in range(settings.batch_size):
            scene = draw_scene(settings.seed + _SCENE_SEED, index, "train", settings.style)
            index += 1
            wrong = scene.distractors and rng.random() < settings.confused
            target = scene.distractors[rng.integers(len(scene.distractors))] if wrong else scene.asked
            batch.append(Label(scene, answer_text(_loosen(target.corners, rng.uniform(0, settings.loosen, 4).tolist()))))
        yield batch


def teach(model: HubObject, processor: HubObject, settings: WarmStart, progress: Progress | None = None) -> None:
    """Train on the cross entropy of the labels' tokens, in one pass over fresh scenes."""
    model.train()
    optimizers = muon_and_adamw(model, settings.lr)
    for step, batch in zip(range(settings.steps), labels(settings)):  # noqa: B905 - the labels never end
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = settings.lr * cosine(step, settings.steps)
        loss = model(**_inputs(processor, batch)).loss
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if progress is not None:
            progress(step + 1, settings.steps, loss.item())
    model.zero_grad()
    model.eval()


def _build(seed: int) -> Built:
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    texts = [*(question(digit) for digit in range(10)), "user\nassistant\n", answer_text((8.0, 8.0, 40.0, 40.0))]
    tokenizer = qwen_tokenizer(texts)
    patches: Kwargs = {"patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 2}
    patches |= {"image_mean": [_MEAN] * 3, "image_std": [_STD] * 3}
    area: Kwargs = {"shortest_edge": SIDE * SIDE, "longest_edge": SIDE * SIDE}
    processor = Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**patches, size=area),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**patches, size=area),
        chat_template=CHAT_TEMPLATE,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(_config(tokenizer))
        nn.init.normal_(model.model.visual.pos_embed.weight, std=_POSITION_STD)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval(), processor


def _config(tokenizer: HubObject) -> HubObject:
    from transformers import Qwen3VLConfig

    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    text = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3, "head_dim": 32, "rope_parameters": rope}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
    text |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    text |= {"vocab_size": len(tokenizer), "initializer_range": _WEIGHT_STD, "tie_word_embeddings": True}
    vision = {"hidden_size": 64, "intermediate_size": 128, "depth": 2, "num_heads": 2, "out_hidden_size": 128}
    vision |= {"patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2, "deepstack_visual_indexes": [0]}
    vision |= {"num_position_embeddings": (SIDE // PATCH) ** 2, "initializer_range": _WEIGHT_STD}
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **qwen_ids(tokenizer))


def _inputs(processor: HubObject, batch: Sequence[Label]) -> dict[str, Tensor]:
    """The batch as the model is fed it, with labels on the answers' tokens only."""
    chats = [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": scene.question}]}] for scene, _ in batch]
    prompts = processor.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    fed = dict(processor(text=prompts, images=[[scene.image] for scene, _ in batch], return_tensors="pt", padding=True))
    tokenizer = processor.tokenizer
    answers = tokenizer([answer + tokenizer.eos_token for _, answer in batch], padding=True, padding_side="right")
    ids, mask = (torch.tensor(answers[name]) for name in ("input_ids", "attention_mask"))
    unlabelled = torch.full_like(fed["input_ids"], -100)
    return fed | {
        "input_ids": torch.cat([fed["input_ids"], ids], dim=1),
        "attention_mask": torch.cat([fed["attention_mask"], mask], dim=1),
        "mm_token_type_ids": torch.cat([fed["mm_token_type_ids"], torch.zeros_like(ids)], dim=1),
        "labels": torch.cat([unlabelled, ids.masked_fill(mask == 0, -100)], dim=1),
    }


def _loosen(corners: Corners, shares: Sequence[float]) -> Corners:
    x1, y1, x2, y2 = corners
    width, height = x2 - x1, y2 - y1
    left, top, right, bottom = shares
    return (
        max(0.0, x1 - left * width),
        max(0.0, y1 - top * height),
        min(float(SIDE), x2 + right * width),
        min(float(SIDE), y2 + bottom * height),
    )


def muon_and_adamw(model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """The optimizers: Muon for matrices, AdamW for embeddings and all else."""
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    chosen = {id(weight) for weight in matrices}
    rest = [weight for weight in model.parameters() if id(weight) not in chosen]
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, lr=lr, weight_decay=0.0)]


def cosine(step: int, steps: int, warmup: int = 20) -> float:
    """Factor of the learning rate: up over the warm-up, then down to a hundredth."""
    return max(0.01, min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps)))
