"""w . f / |f| + b, f the features of the picture, (w, b) the predictor's five linear layers multiplied into one.

    v2    LAION's predictor on CLIP ViT-L/14: bounded by 5.24 +- 18, pictures lie between 4 and 7
    v2.5  on SigLIP so400m/14 at 384 pixels, the picture squashed without crop: 1 to 10, good from 5.5

Neither reads the prompt, so a policy trained on it alone forgets what to draw: add an alignment reward. Both heads have no
activations between their layers; the variants that have (file names with "relu") are refused.

Modality: image
Range: v2 about 4 to 7; v2.5 1 to 10
Source: christophschuhmann/improved-aesthetic-predictor (v2), discus0434/aesthetic-predictor-v2-5
Licence: own code Apache-2.0; v2's head Apache-2.0; v2.5's head AGPL-3.0, therefore never a default
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from mmrl import Group, Need, Prompt, Scored
from mmrl.runtime.ranges import Positive, check_ranges
from mmrl.serving.files import hub_file
from mmrl.serving.media import pictures_of
from mmrl.serving.scorers.encoders import Encoder, OfEncoder, encoder_of, picture_features, pixel_features
from mmrl.serving.scorers.models import collapse_layers, read_weights
from mmrl.serving.scorers.sizes import ModelSize, encoder_size

MODELS = {"v2": "openai/clip-vit-large-patch14", "v2.5": "google/siglip-so400m-patch14-384"}
HEADS = {"v2": "sac+logos+ava1-l14-linearMSE.pth", "v2.5": "aesthetic_predictor_v2_5.pth"}


@dataclass(frozen=True)
class Aesthetic(OfEncoder):
    """Predicts how beautiful people find the picture, whatever it shows."""

    version: Literal["v2", "v2.5"] = "v2"
    """Which predictor, on which model's features."""
    head: str = ""
    """The predictor's file, or a folder or hub repository that holds it under its own name."""
    model: str = ""
    """Empty: the one the predictor was fitted on."""
    scale: Positive = 1.0
    """The number that the score is divided by."""
    needs = Need(setup="head (a file: see the error), model (hub id or folder)")

    def __post_init__(self) -> None:
        check_ranges(self)
        if "relu" in Path(self.head).name.lower():
            raise ValueError(f"head {self.head!r} has activations between its layers: take {HEADS[self.version]}")

    def models(self) -> Sequence[ModelSize]:
        return [encoder_size(self.model or MODELS[self.version], self.device)]

    def ready(self) -> None:
        """Raises FileNotFoundError without the head."""
        self._head()

    def __call__(self, group: Group) -> list[float | Scored | None]:
        weight, bias = self._head()
        features = picture_features(self.encoder(), pictures_of(group), self.batch_size)
        if features.shape[1] != len(weight):
            raise ValueError(
                f"head {self.head!r} reads {len(weight)} features, model {self.model!r} gives {features.shape[1]}: "
                f"{self.version} belongs to {MODELS[self.version]}"
            )
        raw = (features @ weight + bias).tolist()
        return [Scored(value / self.scale, {"raw": value}) for value in raw]

    def of_pixels(self, pixels: torch.Tensor, prompts: Sequence[Prompt]) -> torch.Tensor:
        """The same scores with a gradient, for pictures (n, 3, y, x) in [0, 1]."""
        weight, bias = self._head()
        features = pixel_features(self.encoder(), pixels, self.batch_size)
        return (features @ weight.to(features) + bias.to(features)) / self.scale

    def encoder(self) -> Encoder:
        return encoder_of(self.model or MODELS[self.version], device=self.device)

    def _head(self) -> tuple[torch.Tensor, torch.Tensor]:
        name = HEADS[self.version]
        if not self.head:
            source = "improved-aesthetic-predictor" if self.version == "v2" else "aesthetic-predictor-v2-5"
            raise FileNotFoundError(f"head is not set: download {name} from the repository {source} and set head to its path")
        file = hub_file(self.head, name, "head")
        known = (str(file), file.stat().st_mtime_ns)
        if known not in _HEADS:
            _HEADS[known] = collapse_layers(read_weights(file), f"head {self.head!r}")
        return _HEADS[known]


_HEADS: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor]] = {}
