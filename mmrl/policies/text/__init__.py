"""Vision-language models as policies. The names that plug-ins and examples use, each imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrl.policies.shared.lora import LoraSettings
    from mmrl.policies.text.policy import TextPolicy
    from mmrl.policies.text.settings import Sampling, TextPolicyConfig
    from mmrl.policies.text.trace import TextTrace
    from mmrl.policies.video.sampling import VideoSettings

_HOMES = {
    "LoraSettings": "settings",
    "Sampling": "settings",
    "TextPolicy": "policy",
    "TextPolicyConfig": "settings",
    "TextTrace": "trace",
    "VideoSettings": "settings",
}
__all__ = ["LoraSettings", "Sampling", "TextPolicy", "TextPolicyConfig", "TextTrace", "VideoSettings"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'mmrl.policies.text' has no attribute {name!r}; it offers {__all__}")
    return getattr(import_module(f"mmrl.policies.text.{_HOMES[name]}"), name)
