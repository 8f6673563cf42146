"""`policy.kind` -> what the commands must know of it."""

from typing import Any

from mmrl.app.modality.base import Modality
from mmrl.app.modality.flow import FlowModality
from mmrl.app.modality.text import TextModality
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.settings import TextPolicyConfig

PolicyConfig = TextPolicyConfig | FlowPolicyConfig


MODALITIES: dict[str, Modality] = {kind.name: kind for kind in (TextModality(), FlowModality())}


POLICIES: dict[str, type] = {name: kind.settings for name, kind in MODALITIES.items()}
"""`policy.kind` -> its settings."""


def modality_of(policy: Any) -> Modality:
    """The kind whose settings these are."""
    return next(kind for kind in MODALITIES.values() if isinstance(policy, kind.settings))
