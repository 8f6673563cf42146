"""Janus and Janus-Pro (arXiv:2410.13848, arXiv:2501.17811): codes have a table, a head and a decoder of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from PIL import Image
from torch import Tensor

from mmrl.policies.shared.published import Published
from mmrl.policies.text.families import Family, TextOnly
from mmrl.policies.text.families.base import OwnProcessor

TYPES = ("janus",)
"""Types of models that draw by tokens."""
PUBLISHED = {
    "janus": Published(
        ("text to pictures",),
        "Janus-Pro: MIT; others: see the card",
        "makers",
        "codes as by its own generate; rollouts re-read with guidance, gradients, exports",
    )
}
"""The public weights."""


@dataclass(frozen=True)
class Janus(TextOnly):
    """Prompts are text, completions codes; the part that sees pictures rests."""

    vision: tuple[str, ...] = ("vision_model", "vqmodel")
    projector: tuple[str, ...] = ("aligner", "lm_head")
    """The head of text among them where no plan is written: no code passes it."""
    language: tuple[str, ...] = ("language_model",)
    kept: tuple[int, ...] = ()
    """Tokens of a prompt that stay when guidance takes its words away: the first, and the one that begins a picture."""
    processor = Family.processor

    @property
    def num_codes(self) -> int:
        """Codes of a picture."""
        return int(self.config.vq_config.num_patches) ** 2

    @property
    def vocabulary(self) -> int:
        """Different codes."""
        return int(self.config.vq_config.num_embeddings)

    @property
    def side(self) -> int:
        """Width and height of a picture, in pixels."""
        return int(self.config.vq_config.num_patches) * 2 ** (len(self.config.vq_config.channel_multiplier) - 1)

    def room(self, plan: int) -> int:
        """Tokens of a prompt at most, in front of a picture and a plan of this length; ValueError where there are none."""
        found = int(self.config.get_text_config().max_position_embeddings) - self.num_codes - plan
        if found < 1:
            raise ValueError(
                f"policy.plan.max_new_tokens is {plan}, and the model has {found + plan} positions in front of a picture, for "
                "prompt and plan: lower it"
            )
        return found

    def media_token_ids(self, tokenizer: object) -> frozenset[int]:
        """None: completions are not of the tokenizer."""
        return frozenset()

    def without_words(self, token_ids: Int[Tensor, "n p"], pad: int) -> Int[Tensor, "n p"]:
        """Prompts whose words became padding, in place and seen, as the model's own `generate` has them."""
        words = token_ids != pad
        for token in self.kept:
            words &= token_ids != token
        return token_ids.masked_fill(words, pad)


def family_of(config: Any, plans: bool = False) -> Janus:
    """The family of a model's config, whose head of text trains if it `plans`.

    Raises ValueError for a model that does not draw by tokens, or whose parts do not fit.
    """
    if config.model_type not in TYPES:
        raise ValueError(
            f"policy.kind is 'token_image', and a model of type {config.model_type} does not draw by tokens: take "
            f"one of type {' or '.join(TYPES)}, or set policy.kind = 'text'"
        )
    family = Janus(config, projector=("aligner",)) if plans else Janus(config)
    seen = config.vision_config.num_image_tokens
    if seen != family.num_codes:
        raise ValueError(
            f"the model's config says that a picture has {seen} tokens, and its decoder takes {family.num_codes} codes: "
            "take the config that came with the weights"
        )
    if config.vq_config.image_token_embed_dim != config.get_text_config().hidden_size:
        raise ValueError(
            f"the model's head of codes takes {config.vq_config.image_token_embed_dim} numbers, and its language model gives "
            f"{config.get_text_config().hidden_size}: take the config that came with the weights"
        )
    return family


@dataclass(frozen=True)
class DrawingProcessor(OwnProcessor):
    """The model's processor as it asks for pictures: a chat ends with the token that begins one, or, for plans, without."""

    draws: bool = True

    def apply_chat_template(self, chat: Sequence[object], **options: object) -> str:
        """The chat as text, and the beginning of what follows."""
        return self.inner.apply_chat_template(chat, **options) + (self.inner.image_start_token if self.draws else "")

    def pictures(self, pixels: Sequence[Tensor]) -> list[Image.Image]:
        """PIL images of pixels (y, x, 3) in [-1, 1]."""
        # Asked for PIL images, the processor of transformers 5.23 raises: it takes that word for a kind of tensor.
        found: Tensor = self.inner.postprocess(list(pixels), return_tensors="pt")["pixel_values"]
        return [Image.fromarray(one.permute(1, 2, 0).numpy()) for one in found]
