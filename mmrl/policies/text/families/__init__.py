"""The kinds of models that write; `family_of(config)` picks by `config.model_type`."""

from typing import Any

from mmrl.policies.text.families.base import Family, Media, belongs
from mmrl.policies.text.families.gemma import Gemma3, Gemma4, gemma4
from mmrl.policies.text.families.generic import Generic
from mmrl.policies.text.families.hearing import GraniteSpeech, Hearing, Phi4
from mmrl.policies.text.families.qwen_vl import BOX_SPACES, Glm4v, Qwen3Omni, QwenOmni, QwenVL
from mmrl.policies.text.families.text_only import TextOnly
from mmrl.policies.text.families.tiles import Idefics, InternVL, LlavaOnevision, SmolVLM
from mmrl.policies.text.families.voxtral import Voxtral

FAMILIES: dict[str, type[Family]] = {
    **dict.fromkeys(BOX_SPACES, QwenVL),
    "qwen2_5_omni_thinker": QwenOmni,
    "qwen3_omni_moe_thinker": Qwen3Omni,
    "smolvlm": SmolVLM,
    "idefics3": Idefics,
    "internvl": InternVL,
    "llava_onevision": LlavaOnevision,
    "gemma3": Gemma3,
    "gemma4": Gemma4,
    "granite_speech": GraniteSpeech,
    "phi4_multimodal": Phi4,
    "voxtral": Voxtral,
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm46v"), Glm4v),
}

__all__ = [
    "FAMILIES",
    "Family",
    "Generic",
    "Hearing",
    "Media",
    "TextOnly",
    "belongs",
    "family_of",
    "hears_alone",
    "is_text_only",
    "model_class",
]


def family_of(config: Any) -> Family:
    """The family of a transformers config; models without one are `Generic`, `Hearing` if they take sounds and no pictures, or
    `TextOnly`."""
    if is_text_only(config):
        return TextOnly(config)
    family = FAMILIES.get(config.model_type, Hearing if hears_alone(config) else Generic)
    if family is QwenVL:
        return QwenVL(config, box_space=BOX_SPACES[config.model_type])
    return gemma4(config) if family is Gemma4 else family(config)


def hears_alone(config: object) -> bool:
    """Does transformers know the model as one that writes about other media than pictures?"""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING

    return type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING and type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def is_text_only(config: Any) -> bool:
    """Does transformers know the model as one that writes, and as none that takes media?"""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return known and config.model_type not in FAMILIES and not hears_alone(config)


def model_class(model_config: object) -> Any:
    """The class of transformers that loads models of this config."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM

    if hears_alone(model_config):
        return AutoModelForMultimodalLM
    return AutoModelForCausalLM if is_text_only(model_config) else AutoModelForImageTextToText


def writing_part(config: Any) -> Any:
    """The config of the part that writes text, of a model of several parts; else the same."""
    return getattr(config, "thinker_config", config)
