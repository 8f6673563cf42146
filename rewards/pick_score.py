"""exp(s) cos(picture, prompt) of PickScore's CLIP ViT-H/14: which of two pictures would people pick?

    r = (exp(s) cos - shift) / scale, exp(s) the learnt temperature, about 100; softmax over two pictures = share of picks

Raw scores are about 18 to 24. Elsewhere they are divided by 26 (Flow-GRPO), (x - 18) / 8 (MixGRPO) or bare cosines (Pref-GRPO):
set scale and shift when rewards are added up. Parts: raw, cosine, cut_prompt (the prompt was longer than 77 tokens).

Modality: image
Range: about 18 to 24 before shift and scale
Source: arXiv:2305.01569, yuvalkirstain/PickScore
Licence: own code Apache-2.0; PickScore's code MIT, its weights' card states none
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from mmrl import Group, Need, Prompt, Scored
from mmrl.runtime.ranges import Number, Positive
from mmrl.serving.files import refuse_missing_model
from mmrl.serving.media import pictures_of
from mmrl.serving.scorers.encoders import Encoder, OfEncoder, cosines, cosines_of_pixels, encoder_of
from mmrl.serving.scorers.sizes import ModelSize, encoder_size


@dataclass(frozen=True)
class PickScore(OfEncoder):
    """How likely people are to prefer the picture for its prompt."""

    model: str = "yuvalkirstain/PickScore_v1"
    """Hub id or folder of the weights."""
    processor: str = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    """Tokenizer and preprocessing, which the model's repository lacks; empty: those of the model."""
    scale: Positive = 1.0
    """Divides the score, after the shift."""
    shift: Number = 0.0
    """Subtracted from the score first."""
    needs = Need(setup="model (hub id or folder, 4 GB)")

    def models(self) -> Sequence[ModelSize]:
        return [encoder_size(self.model, self.device)]

    def ready(self) -> None:
        """Raises FileNotFoundError where the processor is not to be had."""
        refuse_missing_model(self.processor or self.model)

    def __call__(self, group: Group) -> list[float | Scored | None]:
        encoder = self.encoder()
        found = cosines(encoder, pictures_of(group), group.prompt.text, self.batch_size)
        temperature = encoder.scale()
        return [
            Scored(
                (temperature * cosine - self.shift) / self.scale,
                {"raw": temperature * cosine, "cosine": cosine, "cut_prompt": float(cut)},
            )
            for cosine, cut in zip(found.values.tolist(), found.cut, strict=True)
        ]

    def of_pixels(self, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """The same scores with a gradient, for pictures (n, 3, y, x) in [0, 1]."""
        encoder = self.encoder()
        found = cosines_of_pixels(encoder, pixels, [prompt.text for prompt in prompts], self.batch_size)
        return (encoder.scale() * found - self.shift) / self.scale

    def encoder(self) -> Encoder:
        return encoder_of(self.model, self.processor, self.device)
