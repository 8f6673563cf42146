"""Qwen-Image-Edit-2509 and -2511: Qwen-Image whose encoder reads pictures with the words, and whose transformer sees them too."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import torch
from PIL import Image
from torch import Tensor

from mmrl.policies.flow.families.base import SOURCE, Condition
from mmrl.policies.flow.families.qwen.image import QwenImage
from mmrl.policies.flow.families.sources import tokens_of

READ_PIXELS = 384 * 384
"""Area at which the text encoder reads a picture, unless the transformer's is smaller."""


@dataclass(frozen=True)
class QwenImageEdit(QwenImage):
    """arXiv:2508.02324. One to three pictures per prompt; guidance 4 against a prompt of one space that sees them too.

    Its pipeline brings pictures to a megapixel by itself; here they have `source_size`. Not supported: QwenImageEditPipeline, the
    first of its kind, whose encoder was prompted differently.
    """

    tasks = ("edits of one to three pictures",)
    licence_read = "makers"
    sources = (1, 3)
    usual_prompt_tokens = 1024
    source_step = 32
    own_negatives = True

    def encode_with(self, text: str, pictures: Sequence[Image.Image], device: torch.device) -> Condition:
        processor = self.pipeline.image_processor
        width, height = self.source_size
        read = import_module(type(self.pipeline).__module__).calculate_dimensions(
            min(READ_PIXELS, width * height), width / height
        )
        seen = [processor.resize(picture, read[1], read[0]) for picture in pictures]
        with_text, without = (
            self.pipeline.encode_prompt(words, image=seen, device=device)[0][0].cpu() for words in (text, self.empty_prompt)
        )
        pixels = [processor.preprocess(picture)[:, :, None] for picture in pictures]
        return {"embeds": with_text, "empty": without, SOURCE: tokens_of(self, pixels)}

    def negative(self, condition: Condition) -> Condition:
        return {**condition, "embeds": condition["empty"]}

    def blank_condition(self, dtype: torch.dtype) -> Condition:
        blank = super().blank_condition(dtype)
        return {**blank, "empty": blank["embeds"]}

    def collate(self, conditions: Sequence[Condition], full: bool) -> dict[str, Tensor]:
        """Raises ValueError where all prompts are to have one length and one is longer."""
        longest = max(len(condition["embeds"]) for condition in conditions)
        if full and longest > self.prompt_tokens:
            raise ValueError(
                f"a prompt has {longest} tokens with its pictures, but policy.max_prompt_tokens is {self.prompt_tokens}: raise "
                "it, or set policy.equal_forwards = false"
            )
        found = super().collate(conditions, full)
        return found | {SOURCE: torch.stack([condition[SOURCE] for condition in conditions])}

    def count_tokens(self, text: str) -> tuple[int, int]:
        """Nothing is cut; the tokens of pictures are not counted."""
        count, _ = super().count_tokens(text)
        return count, count
