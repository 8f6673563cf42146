"""mmrl: group-relative RL fine-tuning of vision-language models, video LLMs and flow-matching image generators.

The public names, described in docs/api.md; each is imported on first use, so `import mmrl` costs nothing.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

_HOMES = {
    "Prompt": "mmrl.core.samples",
    "Sample": "mmrl.core.samples",
    "Group": "mmrl.core.samples",
    "Scored": "mmrl.core.samples",
    "Video": "mmrl.core.samples",
    "Audio": "mmrl.core.samples",
    "Observation": "mmrl.core.samples",
    "Turn": "mmrl.core.samples",
    "Need": "mmrl.answers.needs",
    "Scores": "mmrl.core.types",
    "Examples": "mmrl.training.callbacks",
    "Callback": "mmrl.training.callbacks",
    "Algorithm": "mmrl.algorithms.algorithm",
    "TextPolicy": "mmrl.policies.text.policy",
    "TextPolicyConfig": "mmrl.policies.text.settings",
    "FlowPolicy": "mmrl.policies.flow.policy",
    "FlowPolicyConfig": "mmrl.policies.flow.settings",
    "Trainer": "mmrl.training.trainer",
    "Run": "mmrl.app.api.fit",
    "Evaluation": "mmrl.app.api.fit",
    "evaluate": "mmrl.app.api.fit",
    "find_suite": "mmrl.app.plugins.suites",
    "fit": "mmrl.app.api.fit",
    "load_data": "mmrl.app.api.fit",
    "load_environment": "mmrl.app.plugins.resolve",
    "load_reward": "mmrl.app.api.fit",
    "load_judge": "mmrl.app.reward_model.scorer",
    "load_painter": "mmrl.app.reward_model.scorer",
    "load_reward_model": "mmrl.app.reward_model.scorer",
    "presets": "mmrl.algorithms.presets:PRESETS",
    "Box": "mmrl.answers.boxes.box",
    "Interval": "mmrl.answers.spans.interval",
}
"""Name -> the module it comes from, with the name it has there where that differs."""
__all__ = sorted([*_HOMES, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll] - __init__.pyi has the names

try:
    __version__ = version("mmrl")
except PackageNotFoundError:
    __version__ = "0.0.0+source"


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'mmrl' has no attribute {name!r}; it offers {sorted(__all__)}")
    module, _, own = _HOMES[name].partition(":")
    found = getattr(import_module(module), own or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
