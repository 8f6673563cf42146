"""A Qwen3-VL of 0.8 M parameters that watches mp4 files of handwritten digits, taught by sloppy annotators.

`build` writes the untrained model and its real processor. `warm_start` teaches it by imitation, from labels as hurried people
make them: spans too long, half of them of the wrong digit where there are two, and of two digits mostly one named. Files are
decoded and encoded as every policy does it, so the model learns from the frames and the time stamps that it meets later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmrl.answers.spans.interval import Interval
from mmrl.answers.spans.parsing import format_interval
from mmrl.core.types import Prompt, Video
from mmrl.data.drawn import moving, scenes
from mmrl.data.drawn.moving import Clip, ClipStyle, draw, plan_clip
from mmrl.data.files import mp4
from mmrl.data.files.mp4 import clip_folder, write_once
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig, VideoSettings
from mmrl.policies.text.prompt.encode import Encoded, collate_prompts
from mmrl.runtime.repeating import bit_for_bit
from mmrl.tiny import teaching
from mmrl.tiny import tokenizer as tokenizers
from mmrl.tiny.keep import Progress, hash_of, keep
from mmrl.tiny.text import muon, student
from mmrl.tiny.text.student import Imitation, imitate, with_answers

FPS = 2.2
"""Frames asked for per second: of the demo's clips 12, from the first to the last, half a second apart."""
STYLE = ClipStyle(
    side=32,
    glyph=(20, 24),
    seconds=5.6,
    time_grid=1.0,
    stay=(1.2, 4.0),
    speed=10.0,
    digits=(0, 3, 4, 7),
    asked=(7,),
    shown=(1, 2),
    num_discs=0,
)
"""The look of the demo's clips; no span begins or ends near a multiple of the second that a pair of frames is."""
_PIXELS = 0.13, 0.18
"""Mean and deviation of the clips' pixels."""
_CLIP_SEED = 1_000_003
"""Clips of the warm start come from series of their own, so that no later stage trains on them again."""


@dataclass(frozen=True)
class WarmStart(Imitation):
    """The settings by which the model is taught by imitation."""

    num_clips: int = 2000
    """Drawn, written and decoded once, then learned from again and again."""
    questions: tuple[str, ...] = ("when", "which", "which")
    """Kinds, drawn evenly from this list."""
    loosen: float = 0.6
    """Both ends of a span are pushed out by up to this share of its length."""
    confused: float = 0.5
    """Share of spans that are another digit's, where there is another digit."""
    careless: float = 0.75
    """Share of answers that name one digit where there are two."""
    style: ClipStyle = STYLE


class Lesson(NamedTuple):
    """A clip as the model is fed it."""

    clip: Clip
    prompt: Encoded


def build(folder: Path, seed: int = 0, style: ClipStyle = STYLE) -> Path:
    """Save model and processor, untrained, to `folder` and return it."""
    built = student.build(_texts(style), style.side, _PIXELS, video_area=64 * style.side**2, seed=seed)
    return student.save(built, folder)


@bit_for_bit()
def warm_start(settings: WarmStart = WarmStart(), folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Teach the model and return the folder it was saved to; see `keep.keep`."""

    def make(unfinished: Path) -> None:
        policy = watcher(build(unfinished, settings.seed, settings.style))
        teach(policy, lessons(policy, settings), settings, progress)
        policy.save(unfinished)

    return keep(folder, f"tiny-clips-{fingerprint(settings)}", "config.json", make)


def watcher(folder: Path) -> TextPolicy:
    """The model of a folder as a policy that decodes where it is needed."""
    return TextPolicy(TextPolicyConfig(model=str(folder), video=VideoSettings(fps=FPS, workers=0, cache_mb=0)))


def fingerprint(settings: WarmStart) -> str:
    """See `keep.hash_of`."""
    code = (WarmStart, student, muon, teaching, tokenizers, moving, scenes, mp4)
    return hash_of(settings, code, ("torch", "transformers", "av"))


def lessons(policy: TextPolicy, settings: WarmStart) -> list[Lesson]:
    """Write clips as mp4 files, and encode them by the policy's own encoder."""
    shown = {"style": asdict(settings.style), "kinds": settings.questions}
    folder = clip_folder("clips", shown, (moving.__file__, scenes.__file__))
    found: list[Lesson] = []
    for index in range(settings.num_clips):
        clip = plan_clip(settings.seed + _CLIP_SEED, index, "train", settings.style, settings.questions)
        name = f"{settings.seed}-{index}"
        file = write_once(folder / f"{name}.mp4", settings.style.fps, lambda clip=clip: draw(clip))
        found.append(Lesson(clip, policy.encode(Prompt(name, clip.text, (Video(str(file), fps=FPS),)))))
    return found


def answer_of(clip: Clip, settings: WarmStart, rng: np.random.Generator) -> str:
    """An annotator's answer: a span (when) or letters (which), as the model is to write them."""
    sloppy = len(clip.digits) > 1 and rng.random() < (settings.confused if clip.kind == "when" else settings.careless)
    if clip.kind == "when":
        span = clip.span(clip.digits[rng.integers(1, len(clip.digits)) if sloppy else 0])
        before, after = (rng.uniform(0, settings.loosen, 2) * span.length).tolist()
        return format_interval(Interval(max(0.0, span.start - before), min(clip.duration, span.end + after)))
    letters = str(clip.answer).split(",")
    return str(rng.choice(letters)) if sloppy else ",".join(letters)


def teach(policy: TextPolicy, pool: Sequence[Lesson], settings: WarmStart, progress: Progress | None = None) -> None:
    """Train on the cross entropy of the labels' tokens; a clip that comes again has a new label."""
    imitate(policy.net.model, batches(policy, pool, settings), settings, progress)


def batches(policy: TextPolicy, pool: Sequence[Lesson], settings: WarmStart) -> Iterator[dict[str, Tensor]]:
    """Clips with the annotators' answers, endless and fixed by the seed: all of the pool, then all in another order."""
    rng, order = np.random.default_rng([settings.seed, _CLIP_SEED]), list[int]()
    while True:
        while len(order) < settings.batch_size:
            order += rng.permutation(len(pool)).tolist()
        batch = [pool[order.pop()] for _ in range(settings.batch_size)]
        yield _inputs(policy, batch, [answer_of(lesson.clip, settings, rng) for lesson in batch])


def _inputs(policy: TextPolicy, batch: Sequence[Lesson], answers: Sequence[str]) -> dict[str, Tensor]:
    """The batch as the model is fed it, with labels on the answers' tokens only."""
    prompts = collate_prompts([lesson.prompt for lesson in batch], policy.tokenizer.pad_token_id, torch.device("cpu"))
    assert prompts.type_ids is not None
    fed = {"input_ids": prompts.token_ids, "attention_mask": prompts.attention, "mm_token_type_ids": prompts.type_ids}
    return with_answers(policy.family.collate(prompts.media) | fed, policy.tokenizer, answers)


def _texts(style: ClipStyle) -> list[str]:
    """Words that become single tokens."""
    moments = [f"<{second + tenth / 10:.1f} seconds>" for second in range(10) for tenth in (2, 5, 8)]
    options = " ".join(f"{letter}: {digit}" for letter, digit in zip("ABCDEFGH", style.digits, strict=False))
    asked = [f"When is the {digit} visible?" for digit in style.asked or style.digits]
    return [*asked, f"Which digits appear? {options}", "user\nassistant\n", "3.2 to 4.5", "A,B,C,D", *moments]
