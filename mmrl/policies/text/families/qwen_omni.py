"""Qwen2.5-Omni's thinker: pictures and clips as Qwen2.5-VL sees them, and sounds, 25 tokens a second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mmrl.policies.text.families.base import Core, Media
from mmrl.policies.text.families.qwen_vl import CLOSE, VIDEO_KEYS, QwenVL, after_clips
from mmrl.policies.video.decode import Frames

MASK = "feature_attention_mask"
AUDIO_KEYS = frozenset({"input_features", MASK})


@dataclass(frozen=True)
class QwenOmni(QwenVL):
    """`input_features` holds the mel frames of each sound, 100 a second, padded to the longest of its prompt.

    transformers' forward takes features of pictures and clips, and none of sounds: `attach` writes those over their placeholders.
    """

    media_keys: frozenset[str] = frozenset({"pixel_values", "image_grid_thw", *VIDEO_KEYS, *AUDIO_KEYS})
    own_keys: tuple[tuple[str, frozenset[str]], ...] = (("video", VIDEO_KEYS), ("audio", AUDIO_KEYS))
    sees: tuple[str, ...] = ("image", "video", "audio")
    vision: tuple[str, ...] = ("visual", "audio_tower")
    projector: tuple[str, ...] = ("visual.merger", "audio_tower.proj")

    def attach(self, core: Core) -> None:
        core.register_forward_pre_hook(write_sounds, with_kwargs=True)

    def tidy(self, media: Media) -> Media:
        """Mel frames without what the processor adds up to its longest sound, which the model never reads."""
        kept = super().tidy({key: value for key, value in media.items() if key != "video_second_per_grid"})
        if MASK not in kept:
            return kept
        frames = int(kept[MASK].sum(1).max())
        return {key: value[..., :frames].contiguous() if key in AUDIO_KEYS else value for key, value in kept.items()}

    def look(self, core: Core, kind: str, media: Sequence[Media]) -> Any:
        output = super().look(core, kind, media)
        if kind == "audio":
            output.pooler_output = output.pooler_output.split([n for one in media for n in sound_tokens(one).tolist()])
        return output

    def entries(self, media: Media, kind: str = "image") -> int:
        return len(sound_tokens(media)) if kind == "audio" else super().entries(media, kind)

    def placeholders(self, media: Media) -> dict[str, int | None]:
        return {**super().placeholders(media), "audio": int(sound_tokens(media).sum())}

    def positions(
        self, core: Core, token_ids: Int[Tensor, " p"], type_ids: Tensor | None, media: Media, clips: Sequence[Frames] = ()
    ) -> Int[Tensor, "3 p"]:
        """Axes time, height, width by the model's own rule, which finds media by their marks; a sound counts on as text does."""
        seconds = [self.frame_multiple * clip.step * (1 + CLOSE) for clip in clips]
        positions, _ = core.get_rope_index(
            token_ids[None],
            image_grid_thw=media.get("image_grid_thw"),
            video_grid_thw=media.get("video_grid_thw"),
            attention_mask=torch.ones_like(token_ids)[None],
            audio_seqlens=media[MASK].sum(1) if MASK in media else None,
            second_per_grids=torch.tensor(seconds, dtype=torch.float64),
        )
        own, types = positions[:, 0], 2 * (token_ids == self.token_of("video")).long()
        self.set_times(own, types, clips, float(self.config.position_id_per_seconds))
        return after_clips(own, types)


def sound_tokens(media: Media) -> Int[Tensor, " sounds"]:
    """How many placeholders each sound of a prompt has: a quarter of its mel frames."""
    if MASK not in media:
        return torch.zeros(0, dtype=torch.long)
    return ((media[MASK].sum(1) - 1) // 2 + 1 - 2) // 2 + 1


def write_sounds(core: Core, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[object, ...], dict[str, Any]]:
    """A forward's arguments with its sounds' features in the embeddings of its tokens."""
    outputs = dict(kwargs.get("mm_encoder_outputs") or {})
    heard = outputs.pop("audio", None)
    if heard is None:
        return args, dict(kwargs)
    words = core.get_input_embeddings()(kwargs["input_ids"])
    places = (kwargs["input_ids"] == core.config.audio_token_id)[..., None]
    features = torch.cat(list(heard.pooler_output)).to(words)
    return args, {**kwargs, "mm_encoder_outputs": outputs or None, "inputs_embeds": words.masked_scatter(places, features)}
