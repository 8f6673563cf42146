"""One small file per kind of vision-language model; `family_of(config)` picks by `config.model_type`."""

from typing import Any

from mmrl.policies.text.families.base import Family, Media
from mmrl.policies.text.families.gemma import Gemma3
from mmrl.policies.text.families.generic import Generic
from mmrl.policies.text.families.glm import Glm4v
from mmrl.policies.text.families.idefics import Idefics, SmolVLM
from mmrl.policies.text.families.internvl import InternVL
from mmrl.policies.text.families.llava_onevision import LlavaOnevision
from mmrl.policies.text.families.qwen_vl import BOX_SPACES, QwenVL

FAMILIES: dict[str, type[Family]] = {
    **dict.fromkeys(BOX_SPACES, QwenVL),
    "smolvlm": SmolVLM,
    "idefics3": Idefics,
    "internvl": InternVL,
    "llava_onevision": LlavaOnevision,
    "gemma3": Gemma3,
    "glm4v": Glm4v,
    "glm4v_moe": Glm4v,
}

__all__ = ["FAMILIES", "Family", "Media", "family_of"]


def family_of(config: Any) -> Family:
    """The family of a transformers config; models nobody wrote one for are `Generic`."""
    family = FAMILIES.get(config.model_type, Generic)
    if family is QwenVL:
        return QwenVL(config, box_space=BOX_SPACES[config.model_type])
    return family(config)
