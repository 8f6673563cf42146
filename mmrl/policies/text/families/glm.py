"""GLM-4.1V and GLM-4.5V: Qwen's patch rows and positions, but frames of clips are written with the marks of pictures."""

from dataclasses import dataclass
from typing import Any


from mmrl.policies.text.families.base import Media
from mmrl.policies.text.families.qwen_vl import QwenVL


@dataclass(frozen=True)
class Glm4v(QwenVL):
    """Two frames of a clip become one picture, with the whole second of the first written after it; one token stands for all."""

    projector: tuple[str, ...] = ("visual.merger", "visual.downsample")
    box_space: str | None = "norm1000"

    def placeholders(self, media: Media) -> dict[int, int | None]:
        return {self.config.image_token_id: self._num_features(media, "image") + self._num_features(media, "video")}

    @property
    def video_options(self) -> dict[str, Any]:
        """Frames come in their size."""
        return {"do_resize": False}
