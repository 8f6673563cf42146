"""Voxtral: the makers' tokenizer of chats with sounds, written as text and a chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrl.answers.spans.sounds import Ear, Wave
from mmrl.policies.text.families.base import HubProcessor, OwnProcessor
from mmrl.policies.text.families.hearing import Hearing

SOUND = "[AUDIO]"
TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}{{ '[SYSTEM_PROMPT]' }}{%- elif message.role == 'user' -%}{{ '[INST]' }}
    {%- elif message.role != 'assistant' -%}{{ raise_exception('knows no role ' + message.role) }}{%- endif -%}
    {%- for part in message.content -%}
        {%- if part.type == 'text' -%}{{ part.text }}
        {%- elif messages[0].role == 'system' -%}
            {{- raise_exception('Voxtral takes no system prompt beside sounds: leave policy.system_prompt empty') -}}
        {%- else -%}{{ '[BEGIN_AUDIO][AUDIO]' }}{%- endif -%}
    {%- endfor -%}
    {%- if message.role == 'system' -%}{{ '[/SYSTEM_PROMPT]' }}{%- elif message.role == 'user' -%}{{ '[/INST]' }}
    {%- else -%}{{ eos_token }}{%- endif -%}
{%- endfor -%}
"""
"""What mistral-common 1.13.1 writes by the seventh version of its format, which the published models have."""


@dataclass(frozen=True)
class Voxtral(Hearing):
    """Sounds are cut into pieces of 30 seconds, the last one filled with silence; all are heard."""

    wants_rate: bool = False
    sounds_read_by: str = "transformers[audio,mistral-common]"

    def processor(self, model: str, trusted: bool = False) -> HubProcessor:
        from transformers import AutoFeatureExtractor
        from transformers.utils.hub import cached_file

        extractor: HubProcessor = AutoFeatureExtractor.from_pretrained(model)
        try:
            file = Path(str(cached_file(model, "tekken.json")))
        except OSError as error:
            raise FileNotFoundError(
                f"policy.model {model!r} has no tekken.json, in which its makers keep its tokens: put theirs beside config.json"
            ) from error
        return tekken_processor(file, extractor, self.piece)

    @property
    def piece(self) -> int:
        """Placeholders of one piece of a sound."""
        ears = self.config.audio_config
        return ears.max_source_positions * ears.hidden_size // ears.intermediate_size

    def ear(self, processor: HubProcessor) -> Ear:
        """Sounds as long as the text layers have positions for."""
        extractor = processor.feature_extractor
        pieces = self.config.text_config.max_position_embeddings // self.piece
        return Ear(extractor.sampling_rate, float(pieces * extractor.chunk_length))


@dataclass(frozen=True)
class TekkenProcessor(OwnProcessor):
    """The model's processor, given texts and sounds; its tokenizer is tekken.json as transformers converts it.

    That of mistral-common takes whole chats alone, so no text could follow the answer of a turn.
    """

    tekken: bytes
    """The file."""
    piece: int
    """Placeholders of one piece of a sound."""
    chat_template: str = TEMPLATE

    def apply_chat_template(self, chat: Sequence[Mapping[str, object]], **options: object) -> str:
        """The chat as text, with one mark per sound."""
        return self.tokenizer.apply_chat_template(chat, chat_template=self.chat_template, **options)

    def __call__(self, text: Sequence[str], audio: Sequence[Wave] = (), **options: object) -> dict[str, object]:
        """Token ids (1, p) and their mask of one text, and features (pieces, mels, frames) of its sounds."""
        head, *rest = text[0].split(SOUND)
        if len(rest) != len(audio):
            raise ValueError(f"its text holds {len(rest)} marks {SOUND} for {len(audio)} sounds: it must not spell this mark")
        ears = self.feature_extractor
        marks = [SOUND * self.piece * -(-len(wave) // ears.n_samples) for wave in audio]
        spelled = head + "".join(mark + after for mark, after in zip(marks, rest, strict=True))
        given = {**self.inner.audio_kwargs, "sampling_rate": ears.sampling_rate, "pad_to_multiple_of": ears.n_samples}
        del given["max_source_positions"]
        hear = self.inner._retrieve_input_features
        heard = {"input_features": hear(list(audio), ears.nb_max_frames, **given)} if audio else {}
        return {**self.tokenizer([spelled], **options), **heard}

    def save_pretrained(self, folder: Path | str) -> None:
        """Write the files of the published folder: tekken.json and preprocessor_config.json."""
        self.feature_extractor.save_pretrained(folder)
        (Path(folder) / "tekken.json").write_bytes(self.tekken)


def tekken_processor(file: Path, extractor: HubProcessor, piece: int) -> TekkenProcessor:
    """The processor of a tekken.json and a feature extractor; `piece`: placeholders of one piece of a sound."""
    from transformers import VoxtralProcessor
    from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

    return TekkenProcessor(VoxtralProcessor(extractor, convert_tekken_tokenizer(str(file), TEMPLATE)), file.read_bytes(), piece)
