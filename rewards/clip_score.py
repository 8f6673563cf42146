"""cos(picture, prompt) of a CLIP or SigLIP model, or CLIPScore: 2.5 max(0, cos(picture, "A photo depicts " + prompt)).

Reinforcement learning uses the cosine; CLIPScore is the measure of the paper. A prompt longer than the encoder's limit is cut
off, which is counted in the part `cut_prompt`.

Modality: image
Range: [-1, 1], usually .15 to .40; CLIPScore [0, 2.5]
Source: arXiv:2104.08718, jmhessel/clipscore
Licence: own code Apache-2.0; OpenAI's CLIP weights MIT, others see their cards (DFN: Apple's own terms)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from mmrl import Group, Need, Prompt, Scored
from mmrl.serving.media import pictures_of
from mmrl.serving.scorers.encoders import Encoder, OfEncoder, cosines, cosines_of_pixels, encoder_of
from mmrl.serving.scorers.sizes import ModelSize, encoder_size

CAPTION = "A photo depicts "


@dataclass(frozen=True)
class ClipScore(OfEncoder):
    """How close the picture is to its prompt."""

    model: str = "openai/clip-vit-large-patch14"
    """Hub id or folder; or open_clip's: `open_clip:ViT-H-14/laion2b_s32b_b79k`, `open_clip:hf-hub:owner/name`."""
    form: Literal["cosine", "paper"] = "cosine"
    """The plain cosine, or CLIPScore as in its paper."""
    processor: str = ""
    """Where tokenizer and preprocessing come from, if not from the model."""
    needs = Need(setup="model (hub id or folder, transformers or open_clip)")

    def models(self) -> Sequence[ModelSize]:
        return [encoder_size(self.model, self.device)]

    def __call__(self, group: Group) -> list[float | Scored | None]:
        text = (CAPTION if self.form == "paper" else "") + group.prompt.text
        found = cosines(self.encoder(), pictures_of(group), text, self.batch_size)
        values = 2.5 * found.values.clamp(min=0) if self.form == "paper" else found.values
        return [
            Scored(value, {"cosine": cosine, "cut_prompt": float(cut)})
            for value, cosine, cut in zip(values.tolist(), found.values.tolist(), found.cut, strict=True)
        ]

    def of_pixels(self, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """The same scores with a gradient, for pictures (n, 3, y, x) in [0, 1]."""
        texts = [(CAPTION if self.form == "paper" else "") + prompt.text for prompt in prompts]
        found = cosines_of_pixels(self.encoder(), pixels, texts, self.batch_size)
        return 2.5 * found.clamp(min=0) if self.form == "paper" else found

    def encoder(self) -> Encoder:
        return encoder_of(self.model, self.processor, self.device)
