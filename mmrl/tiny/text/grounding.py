"""A Qwen3-VL of 0.9 M parameters that draws boxes round handwritten digits, taught by sloppy annotators.

`build` writes the untrained model and its real processor. `warm_start` teaches it by imitation, from labels as hurried people
make them: boxes too large, and half of them round the wrong digit. What the labels cannot teach is left to reinforcement
learning. The model answers as Qwen3-VL does: `[{"bbox_2d": [x1, y1, x2, y2]}]`, in thousandths of width and height.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from mmrl.answers.boxes.box import Box
from mmrl.answers.boxes.parsing import format_box
from mmrl.data.drawn import scenes
from mmrl.data.drawn.scenes import Corners, Scene, SceneStyle, draw_scene, question
from mmrl.runtime.repeating import bit_for_bit
from mmrl.tiny import teaching
from mmrl.tiny import tokenizer as tokenizers
from mmrl.tiny.byte_tokens import Built, HubObject
from mmrl.tiny.keep import Progress, hash_of, keep
from mmrl.tiny.text import muon, student
from mmrl.tiny.text.student import Imitation, imitate, with_answers

SIDE = 64
"""Pictures of 64 x 64 pixels: 64 patches of 8 x 8, merged 2 by 2 into 16 tokens."""
_PIXELS = 0.16, 0.25
"""Mean and deviation of the scenes' pixels."""
_SCENE_SEED = 1_000_003
"""Scenes of the warm start come from series of their own, so that no later stage trains on them again."""


@dataclass(frozen=True)
class WarmStart(Imitation):
    """The settings by which the model is taught by imitation."""

    loosen: float = 0.4
    """Every side of a label is pushed out by up to this share of the digit's width or height."""
    confused: float = 0.5
    """Share of labels that surround a distractor."""
    style: SceneStyle = field(default_factory=SceneStyle)

    def __post_init__(self) -> None:
        if self.style.side != SIDE:
            raise ValueError(f"the model sees pictures of {SIDE} x {SIDE} pixels, not of side {self.style.side}")


Label = tuple[Scene, str]
"""A scene and an annotator's answer to it."""


def build(folder: Path, seed: int = 0) -> Path:
    """Save model and processor, untrained, to `folder` and return it."""
    return student.save(_build(seed), folder)


@bit_for_bit()
def warm_start(settings: WarmStart = WarmStart(), folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Teach the model and return the folder it was saved to; see `keep.keep`."""

    def make(unfinished: Path) -> None:
        model, processor = _build(settings.seed)
        teach(model, processor, settings, progress)
        student.save((model, processor), unfinished)

    return keep(folder, f"tiny-grounding-{fingerprint(settings)}", "config.json", make)


def fingerprint(settings: WarmStart) -> str:
    """See `keep.hash_of`."""
    code = (WarmStart, student, muon, teaching, tokenizers, scenes)
    return hash_of(settings, code, ("torch", "transformers"))


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
            batch.append((scene, answer_text(_loosen(target.corners, rng.uniform(0, settings.loosen, 4).tolist()))))
        yield batch


def teach(model: HubObject, processor: HubObject, settings: WarmStart, progress: Progress | None = None) -> None:
    """Train on the cross entropy of the labels' tokens, in one pass over fresh scenes."""
    imitate(model, (_inputs(processor, batch) for batch in labels(settings)), settings, progress)


def _build(seed: int) -> Built:
    texts = [*(question(digit) for digit in range(10)), "user\nassistant\n", answer_text((8.0, 8.0, 40.0, 40.0))]
    return student.build(texts, SIDE, _PIXELS, video_area=SIDE**2, seed=seed)


def _inputs(processor: HubObject, batch: Sequence[Label]) -> dict[str, Tensor]:
    """The batch as the model is fed it, with labels on the answers' tokens only."""
    chats = [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": scene.question}]}] for scene, _ in batch]
    prompts = processor.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    fed = dict(processor(text=prompts, images=[[scene.image] for scene, _ in batch], return_tensors="pt", padding=True))
    return with_answers(fed, processor.tokenizer, [answer for _, answer in batch])


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
