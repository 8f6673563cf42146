"""VideoAlign's opinion of a clip: visual quality (VQ), motion quality (MQ), how it fits the text (TA), or the sum of the three.

    r = (logit - mean) / std of the model's own reward head, normalized with the numbers in its folder

Clips are written as H.264 files, which VideoAlign's own code reads at its own frame rate. That code pins an old transformers:
serve this reward from a separate environment (`mmrl reward serve`) and name its address. Several entries with different
`score`s share one forward, so that VQ and MQ can be normalized separately, as in DanceGRPO. Parts: VQ, MQ, TA, change.

Modality: video
Range: about -3 to 3 for one score
Source: arXiv:2501.13918, github.com/KwaiVGI/VideoAlign
Licence: own code Apache-2.0; VideoAlign's code and weights see their cards
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from mmrl import Group, Need, Scored
from mmrl.data.files.mp4 import write_mp4
from mmrl.runtime.ranges import Count, check_ranges
from mmrl.serving.media import change_of, clip_of
from mmrl.serving.scorers.sizes import ModelSize, checkpoint_size

PUBLISHED_AS = "KwaiVGI/VideoReward"
USUAL_FPS = 8
"""Of clips that do not say how fast they are."""
MOST_KNOWN = 4096
"""Clips whose scores are remembered for the next entry that asks."""
_KNOWN: dict[tuple[object, ...], Mapping[str, float]] = {}


@dataclass(frozen=True)
class VideoAlign:
    """One of VideoAlign's scores. ValueError for a sample without a clip, or a checkout without its code."""

    code: str = ""
    """Folder of a checkout of VideoAlign: its inference.py is imported."""
    checkpoint: str = ""
    """Folder of the weights, with model_config.json."""
    score: Literal["VQ", "MQ", "TA", "Overall"] = "Overall"
    """Which of its scores counts; the others are parts."""
    normalized: bool = True
    """With the means and deviations of the model's folder; False: plain logits."""
    device: str = "cuda"
    """Where the model runs: cuda, cuda:1 or cpu."""
    batch_size: Count = 4
    """Clips in one forward of the model."""
    needs = Need(setup="code (a checkout of KwaiVGI/VideoAlign), checkpoint (folder of KwaiVGI/VideoReward, 4.5 GB), a GPU")
    pointwise = True

    __post_init__ = check_ranges

    def models(self) -> Sequence[ModelSize]:
        return [checkpoint_size(self.checkpoint or PUBLISHED_AS, "model.safetensors", self.device)]

    def __call__(self, group: Group) -> list[float | Scored | None]:
        clips = [clip_of(sample, group.prompt.id) for sample in group.samples]
        rates = [max(1, round(sample.fps or USUAL_FPS)) for sample in group.samples]
        model = (self.code, self.checkpoint, self.device, self.normalized)
        keys = [
            (*model, group.prompt.text, rate, clip.shape, blake2b(clip.tobytes(), digest_size=16).digest())
            for clip, rate in zip(clips, rates, strict=True)
        ]
        missing = list({key: i for i, key in enumerate(keys) if key not in _KNOWN}.values())
        if missing:
            found = self._ask([clips[i] for i in missing], [rates[i] for i in missing], group.prompt.text)
            _KNOWN.update(zip((keys[i] for i in missing), found, strict=True))
        answers = [_KNOWN[key] for key in keys]
        while len(_KNOWN) > MOST_KNOWN:
            del _KNOWN[next(iter(_KNOWN))]
        return [
            Scored(scores[self.score], {name: scores[name] for name in ("VQ", "MQ", "TA")} | {"change": change_of(clip)})
            for scores, clip in zip(answers, clips, strict=True)
        ]

    def _ask(self, clips: Sequence[Any], rates: Sequence[int], text: str) -> list[Mapping[str, float]]:
        import torch

        judge, found = _judge(self.code, self.checkpoint, self.device), list[Mapping[str, float]]()
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            files = [
                str(write_mp4(Path(folder) / f"{i}.mp4", clip, rate, crf=10))
                for i, (clip, rate) in enumerate(zip(clips, rates, strict=True))
            ]
            for start in range(0, len(files), self.batch_size):
                some = files[start : start + self.batch_size]
                answers = judge.reward(some, [text] * len(some), use_norm=self.normalized)
                found += [{name: float(value) for name, value in answer.items()} for answer in answers]
        return found


@lru_cache(maxsize=1)
def _judge(code: str, checkpoint: str, device: str) -> Any:
    """VideoAlign's own inference."""
    import torch

    folder = Path(code).expanduser()
    if not code or not (folder / "inference.py").is_file():
        raise ValueError(
            f"video_align: code = {code!r} has no inference.py: set it to the folder of a checkout of KwaiVGI/VideoAlign"
        )
    if not (Path(checkpoint).expanduser() / "model_config.json").is_file():
        raise ValueError(
            f"video_align: checkpoint = {checkpoint!r} has no model_config.json: set it to the folder of VideoReward"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return import_module("inference").VideoVLMRewardInference(checkpoint, device=device, dtype=torch.bfloat16)
