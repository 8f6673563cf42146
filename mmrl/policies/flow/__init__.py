"""Flow-matching image generators as policies. The names that plug-ins and examples use, each imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrl.policies.flow.policy import FlowPolicy
    from mmrl.policies.flow.settings import FlowPolicyConfig
    from mmrl.policies.flow.trace import FlowTrace

_HOMES = {"FlowPolicy": "policy", "FlowPolicyConfig": "settings", "FlowTrace": "trace"}
__all__ = ["FlowPolicy", "FlowPolicyConfig", "FlowTrace"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'mmrl.policies.flow' has no attribute {name!r}; it offers {__all__}")
    return getattr(import_module(f"mmrl.policies.flow.{_HOMES[name]}"), name)
