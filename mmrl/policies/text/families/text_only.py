"""Text-only language models: prompts are text, and the rest of the library takes them as it takes the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmrl.policies.shared.chat_templates import text_of
from mmrl.policies.text.families.base import Family, HubProcessor, Media, OwnProcessor


@dataclass(frozen=True)
class TextOnly(Family):
    """No media, one axis of positions; freezing and adapters see the layers of `model.model`."""

    media_keys: frozenset[str] = frozenset()
    sees: tuple[str, ...] = ()
    vision: tuple[str, ...] = ()
    projector: tuple[str, ...] = ()
    language: tuple[str, ...] = ("layers", "embed_tokens", "norm")

    def processor(self, model: str, trusted: bool = False) -> HubProcessor:
        """The tokenizer in the role of a processor."""
        from transformers import AutoTokenizer

        return TextProcessor(AutoTokenizer.from_pretrained(model, trust_remote_code=trusted))

    def num_features(self, media: Media) -> int:
        return 0


@dataclass(frozen=True)
class TextProcessor(OwnProcessor):
    """A tokenizer where a processor is expected."""

    image_processor: None = None

    @property
    def tokenizer(self) -> HubProcessor:
        return self.inner

    def apply_chat_template(self, chat: Sequence[Mapping[str, object]], **options: object) -> object:
        """The tokenizer's, whose templates want one text per message, not pieces."""
        return self.tokenizer.apply_chat_template([{**one, "content": text_of(one["content"])} for one in chat], **options)
