"""Thinkers of Qwen2.5-Omni and Qwen3-Omni: pictures and clips as Qwen-VL models see them, and sounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int, Real
from torch import Tensor

from mmrl.policies.text.families.base import Core, Media
from mmrl.policies.text.families.qwen_vl import CLOSE, VIDEO_KEYS, QwenVL, after_clips
from mmrl.policies.video.decode import Frames

MASK = "feature_attention_mask"
AUDIO_KEYS = frozenset({"input_features", MASK})
UNUSED = ("video_second_per_grid", "num_audio_tokens")
"""Tensors of the processor that follow from others."""
WINDOW = 13
"""Tokens that Qwen3-Omni makes of a hundred mel frames."""


@dataclass(frozen=True)
class QwenOmni(QwenVL):
    """`input_features` holds the mel frames of each sound, 100 a second, padded to the longest of its prompt; Qwen2.5-Omni makes
    a token of four of them."""

    media_keys: frozenset[str] = frozenset({"pixel_values", "image_grid_thw", *VIDEO_KEYS, *AUDIO_KEYS})
    own_keys: tuple[tuple[str, frozenset[str]], ...] = (("video", VIDEO_KEYS), ("audio", AUDIO_KEYS))
    sees: tuple[str, ...] = ("image", "video", "audio")
    vision: tuple[str, ...] = ("visual", "audio_tower")
    projector: tuple[str, ...] = ("visual.merger", "audio_tower.proj")
    between: bool = False
    """Do frames stand between whole positions?"""

    def tidy(self, media: Media) -> Media:
        """Mel frames without what the processor adds up to its longest sound, which the model never reads."""
        kept = super().tidy({key: value for key, value in media.items() if key not in UNUSED})
        if MASK not in kept:
            return kept
        frames = int(kept[MASK].sum(1).max())
        return {key: value[..., :frames].contiguous() if key in AUDIO_KEYS else value for key, value in kept.items()}

    def video_areas(self, processor: Any) -> tuple[float, float]:
        """Those of the processor's class where it has any: folders hold the areas of pictures."""
        size = (getattr(processor, "videos_kwargs", None) or {}).get("size")
        return (float(size["shortest_edge"]), float(size["longest_edge"])) if size else super().video_areas(processor)

    def look(self, core: Core, kind: str, media: Sequence[Media]) -> Any:
        output = super().look(core, kind, media)
        if kind == "audio":
            heard = output.last_hidden_state if output.pooler_output is None else output.pooler_output
            output.pooler_output = heard.split([n for one in media for n in self.sound_tokens(one).tolist()])
        return output

    def sound_tokens(self, media: Media) -> Int[Tensor, " sounds"]:
        """How many placeholders each sound of a prompt has: a quarter of its mel frames."""
        return ((lengths(media) - 1) // 2 + 1 - 2) // 2 + 1

    def entries(self, media: Media, kind: str = "image") -> int:
        return len(lengths(media)) if kind == "audio" else super().entries(media, kind)

    def placeholders(self, media: Media) -> dict[str, int | None]:
        return {**super().placeholders(media), "audio": int(self.sound_tokens(media).sum())}

    def positions(
        self, core: Core, token_ids: Int[Tensor, " p"], type_ids: Tensor | None, media: Media, clips: Sequence[Frames] = ()
    ) -> Real[Tensor, "3 p"]:
        """Axes time, height, width by the model's own rule, which finds media by their marks; a sound counts on as text does."""
        hair = 0.0 if self.between else CLOSE
        seconds = [self.frame_multiple * clip.step * (1 + hair) for clip in clips]
        positions, _ = core.get_rope_index(
            token_ids[None],
            image_grid_thw=media.get("image_grid_thw"),
            video_grid_thw=media.get("video_grid_thw"),
            attention_mask=torch.ones_like(token_ids)[None],
            audio_seqlens=media[MASK].sum(1) if MASK in media else None,
            second_per_grids=torch.tensor(seconds, dtype=torch.float64),
        )
        own = positions[:, 0].double() if self.between else positions[:, 0].long()
        types = 2 * (token_ids == self.token_of("video")).long()
        self.set_times(own, types, clips, float(self.config.position_id_per_seconds))
        return after_clips(own, types)


@dataclass(frozen=True)
class Qwen3Omni(QwenOmni):
    """Qwen3-Omni's thinker, a mixture of experts that makes 13 tokens of a second.

    It puts frames at fractions of a position, and what follows a clip too: positions are float64, in which adding whole numbers
    in any order gives the same.
    """

    between: bool = True
    projector: tuple[str, ...] = ("visual.merger", "visual.deepstack_merger_list", "audio_tower.proj")
    longest_sound: float | None = 2400.0
    """Its makers speak of 40 minutes; its processor drops nothing."""

    def sound_tokens(self, media: Media) -> Int[Tensor, " sounds"]:
        """Three halvings of every hundred mel frames, of which the last may be short."""
        frames = lengths(media)
        window = 2 * self.config.audio_config.n_window
        whole, rest = frames // window, frames % window
        for _ in range(3):
            rest = (rest + 1) // 2
        return whole * WINDOW + rest


def lengths(media: Media) -> Int[Tensor, " sounds"]:
    """The mel frames of each sound."""
    return media[MASK].sum(1) if MASK in media else torch.zeros(0, dtype=torch.long)
