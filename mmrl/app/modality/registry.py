"""The modalities by the word that `policy.kind` says."""

from typing import Any

from mmrl.app.modality.base import Modality
from mmrl.app.modality.flow import FlowModality
from mmrl.app.modality.text import TextModality, TokenImageModality
from mmrl.policies.codes.settings import CodePolicyConfig
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.settings import TextPolicyConfig

PolicyConfig = TextPolicyConfig | FlowPolicyConfig | CodePolicyConfig

AnyModality = Modality[Any, Any]
MODALITIES: dict[str, AnyModality] = {"text": TextModality(), "flow": FlowModality(), "token_image": TokenImageModality()}

POLICIES: dict[str, type] = {name: modality.settings for name, modality in MODALITIES.items()}
"""`policy.kind` -> its settings."""


def modality_of(policy: object) -> AnyModality:
    """The modality whose settings these are."""
    return next(modality for modality in MODALITIES.values() if isinstance(policy, modality.settings))
