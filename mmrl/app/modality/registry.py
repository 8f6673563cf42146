"""`policy.kind` -> what the commands must know of it."""

from typing import Any

from mmrl.app.modality.base import Kind
from mmrl.app.modality.flow import FlowKind
from mmrl.app.modality.text import TextKind
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.settings import TextPolicyConfig

PolicyConfig = TextPolicyConfig | FlowPolicyConfig


KINDS: dict[str, Kind] = {kind.name: kind for kind in (TextKind(), FlowKind())}


POLICIES: dict[str, type] = {name: kind.settings for name, kind in KINDS.items()}
"""`policy.kind` -> its settings."""


def kind_of(policy: Any) -> Kind:
    """The kind whose settings these are."""
    return next(kind for kind in KINDS.values() if isinstance(policy, kind.settings))
