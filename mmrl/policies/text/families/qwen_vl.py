"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patch rows with a grid per picture, and positions on three axes (M-RoPE).

Those that see likewise: GLM-4.1V, and thinkers of Qwen2.5-Omni and Qwen3-Omni, which hear, too.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from jaxtyping import Int, Real
from torch import Tensor

from mmrl.policies.text.families.base import Core, Family, Media
from mmrl.policies.video.decode import Frames
from mmrl.policies.video.sampling import Budget, VideoSettings

log = logging.getLogger("mmrl")
BOX_SPACES = {
    "qwen2_vl": "norm1000",
    "qwen2_5_vl": "resized",
    "qwen3_vl": "norm1000",
    "qwen3_vl_moe": "norm1000",
    "qwen3_5": "norm1000",
    "qwen3_5_moe": "norm1000",
}

VIDEO_KEYS = frozenset({"pixel_values_videos", "video_grid_thw"})
GRIDS = {"image": "image_grid_thw", "video": "video_grid_thw"}
LONGEST = 0.9 * 128_000
"""Tokens of a clip at most, as qwen_vl_utils has it."""
CLOSE = 1e-6


@dataclass(frozen=True)
class QwenVL(Family):
    """pixel_values holds one row per patch, t * h * w of `image_grid_thw` for each picture; clips have tensors of their own.

    Most layers of Qwen3.5, which looks as Qwen3-VL does, carry a state: completions are read with their prompt repeated.

    Qwen2.5-VL reads the time of a clip from its positions on the axis of time, Qwen3-VL and Qwen3.5 from `<3.5 seconds>` before
    each pair of frames.
    """

    media_keys: frozenset[str] = frozenset({"pixel_values", "image_grid_thw", *VIDEO_KEYS})
    own_keys: tuple[tuple[str, frozenset[str]], ...] = (("video", VIDEO_KEYS),)
    sees: tuple[str, ...] = ("image", "video")
    clips_differ: bool = True
    frame_multiple: int = 2
    projector: tuple[str, ...] = ("visual.merger", "visual.deepstack_merger_list")

    def tidy(self, media: Media) -> Media:
        """Without the interval of clips, which only positions need."""
        return super().tidy({key: value for key, value in media.items() if key != "second_per_grid_ts"})

    @property
    def video_options(self) -> dict[str, Any]:
        """Frames come in their size; the processor only warns unless a setting says whether it should cap it."""
        return {"do_resize": False, "cap_pixels_per_frame": False}

    def video_budget(self, processor: Any, settings: VideoSettings) -> Budget:
        """The areas that the settings name; else the video processor's, with a total for Qwen2-VL and Qwen2.5-VL."""
        video, (low, high) = processor.video_processor, self.video_areas(processor)
        side = video.patch_size * video.merge_size
        if self.config.model_type.startswith(("qwen3_vl", "qwen3_5")):
            usual = Budget(side, min_total=low, max_total=high)
        else:
            usual = Budget(side, low, high, max_total=LONGEST * side**2 * self.frame_multiple)
        if settings.min_pixels is not None:
            usual = replace(usual, min_pixels=float(settings.min_pixels), min_total=0.0)
        if settings.max_pixels is not None:
            usual = replace(usual, max_pixels=float(settings.max_pixels))
        return usual if settings.total_pixels is None else replace(usual, max_total=float(settings.total_pixels))

    def video_areas(self, processor: Any) -> tuple[float, float]:
        """The smallest and the largest, in pixels."""
        size = processor.video_processor.size
        return float(size["shortest_edge"]), float(size["longest_edge"])

    def entries(self, media: Media, kind: str = "image") -> int:
        return len(media[GRIDS[kind]]) if GRIDS[kind] in media else 0

    def placeholders(self, media: Media) -> dict[str, int | None]:
        return {kind: self.num_features(media, kind) for kind in GRIDS}

    def num_features(self, media: Media, kind: str = "image") -> int:
        if GRIDS[kind] not in media:
            return 0
        return int(media[GRIDS[kind]].prod(1).sum()) // self.config.vision_config.spatial_merge_size**2

    def check_rows(self, media: Media) -> None:
        for grids, rows, what in (
            ("image_grid_thw", "pixel_values", "pictures"),
            ("video_grid_thw", "pixel_values_videos", "clips"),
        ):
            if grids in media and (count := int(media[grids].prod(1).sum())) != len(media[rows]):
                raise ValueError(f"the grids of its {what} speak of {count} patches, {rows} holds {len(media[rows])}")

    def positions(
        self, core: Core, token_ids: Int[Tensor, " p"], type_ids: Tensor | None, media: Media, clips: Sequence[Frames] = ()
    ) -> Int[Tensor, "3 p"]:
        """Axes time, height, width by the model's own rule; without the token types it would silently fall back to one axis.

        Qwen2.5-VL knows one interval per clip. Where frames are not evenly spaced its rule is applied to their true times.
        What follows a clip stands after the clip's last moment, as it did when the weights were made.
        """
        if type_ids is None:
            raise ValueError(f"{self.config.model_type}: the processor gave no mm_token_type_ids, which M-RoPE positions need")
        times = {"video_grid_thw": media["video_grid_thw"]} if clips else {}
        timed = bool(clips) and self.config.model_type == "qwen2_5_vl"
        if timed:
            # A hair more, so that rounding of floats does not put a frame one position too early.
            seconds = [self.frame_multiple * clip.step * (1 + CLOSE) for clip in clips]
            times["second_per_grid_ts"] = torch.tensor(seconds, dtype=torch.float64)
        positions = mrope_positions(core, token_ids, type_ids, media.get("image_grid_thw"), **times)
        if timed:
            self.set_times(positions, type_ids, clips, float(self.config.vision_config.tokens_per_second))
        return after_clips(positions, type_ids)

    def set_times(self, positions: Real[Tensor, "3 p"], type_ids: Tensor, clips: Sequence[Frames], rate: float) -> None:
        """Put frames that are not evenly spaced at their true times, at `rate` positions a second, in place."""
        for (start, end), clip in zip(runs(type_ids, 2), clips, strict=True):
            if any(abs(time - clip.times[0] - k * clip.step) > 1 / clip.fps + CLOSE for k, time in enumerate(clip.times)):
                pairs = torch.tensor(clip.times, dtype=torch.float64)[:: self.frame_multiple]
                ticks = (pairs - pairs[0]) * rate
                ticks = ticks if positions.is_floating_point() else (ticks + CLOSE).long()
                first = positions[0, start].clone()
                positions[0, start:end] = first + ticks.repeat_interleave((end - start) // len(ticks))
            if positions[0, start:end].unique().numel() < len(clip.times) // self.frame_multiple:
                say_shared(self.config.model_type, rate)

    def seen_sizes(self, sizes: Sequence[tuple[int, int]], media: Media) -> list[tuple[int, int]]:
        patch = self.config.vision_config.patch_size
        # Frames of clips may be pictures among pictures, and are none of the prompt's own.
        grids = media["image_grid_thw"].tolist() if sizes and "image_grid_thw" in media else []
        return [(int(w) * patch, int(h) * patch) for _, h, w in grids]

    def limit_pixels(self, processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
        size = processor.image_processor.size
        low = min_pixels if min_pixels is not None else size["shortest_edge"]
        high = max_pixels if max_pixels is not None else size["longest_edge"]
        if low > high:
            raise ValueError(f"policy.min_pixels ({low}) is larger than policy.max_pixels ({high}): lower one or raise the other")
        # The names are the library's; for this processor they are areas in pixels.
        processor.image_processor.size = {"shortest_edge": low, "longest_edge": high}


@cache
def say_shared(model_type: str, rate: float) -> None:
    """Warn, once, that the model cannot tell the order of neighbouring frames."""
    log.warning(
        "%s counts %.3g positions a second, and more than 2 frames of a clip fall on one: which comes first it cannot see. "
        "Show at most %.3g frames a second (policy.video.fps, or fps in the data)",
        *(model_type, rate, 2 * rate),
    )


def mrope_positions(
    core: Core,
    token_ids: Int[Tensor, " p"],
    type_ids: Int[Tensor, " p"],
    image_grid_thw: Int[Tensor, "pictures 3"] | None = None,
    **videos: Tensor,
) -> Int[Tensor, "3 p"]:
    """Position ids of one row without padding. `core` is the model under the head; types: 0 text, 1 image, 2 video."""
    positions, _ = core.get_rope_index(token_ids[None], mm_token_type_ids=type_ids[None], image_grid_thw=image_grid_thw, **videos)
    return positions[:, 0]


def after_clips(positions: Real[Tensor, "3 p"], type_ids: Int[Tensor, " p"]) -> Real[Tensor, "3 p"]:
    """Positions in which the text after a clip begins past the largest of the clip's (arXiv:2409.12191).

    transformers from 5.3 on begins past its height or width only, inside the time of a clip that is longer than that.
    """
    positions = positions.clone()
    for start, end in runs(type_ids, 2):
        if end < positions.shape[1]:
            positions[:, end:] += positions[:, start:end].max() + 1 - positions[0, end]
    return positions


def runs(type_ids: Int[Tensor, " p"], kind: int) -> list[tuple[int, int]]:
    """(start, end) of every stretch of this type."""
    marks = torch.nn.functional.pad((type_ids == kind).long(), (1, 1)).diff()
    return list(zip((marks == 1).nonzero()[:, 0].tolist(), (marks == -1).nonzero()[:, 0].tolist(), strict=True))


@dataclass(frozen=True)
class Glm4v(QwenVL):
    """Two frames of a clip become one picture, with the whole second of the first written after it.

    Clips have the placeholder of pictures, so they are kept as pictures; one prompt holds one of both kinds.
    """

    media_keys: frozenset[str] = frozenset({"pixel_values", "image_grid_thw"})
    own_keys: tuple[tuple[str, frozenset[str]], ...] = ()
    mixes_kinds: bool = False
    projector: tuple[str, ...] = ("visual.merger", "visual.downsample")
    box_space: str | None = "norm1000"

    def tidy(self, media: Media) -> Media:
        if "video_grid_thw" in media:
            grids = torch.as_tensor(media["video_grid_thw"])
            frames = grids.repeat_interleave(grids[:, 0], dim=0)
            frames[:, 0] = 1
            media = {"pixel_values": media["pixel_values_videos"], "image_grid_thw": frames}
        return super().tidy(media)

    def placeholders(self, media: Media) -> dict[str, int | None]:
        return {"image": self.num_features(media)}

    @property
    def video_options(self) -> dict[str, Any]:
        """Frames come in their size."""
        return {"do_resize": False}

    def positions(
        self, core: Core, token_ids: Int[Tensor, " p"], type_ids: Tensor | None, media: Media, clips: Sequence[Frames] = ()
    ) -> Int[Tensor, "3 p"]:
        if type_ids is None:
            raise ValueError(f"{self.config.model_type}: the processor gave no mm_token_type_ids, which M-RoPE positions need")
        return mrope_positions(core, token_ids, type_ids.clamp(max=1), media.get("image_grid_thw"))


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
