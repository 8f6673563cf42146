"""mmrl: group-relative RL fine-tuning of vision-language models, video LLMs and flow-matching image generators.

The public names, described in docs/api.md; each is imported on first use, so `import mmrl` costs nothing.
"""

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from mmrl.moved import OldNames

if TYPE_CHECKING:
    from mmrl.algorithms.algorithm import Algorithm
    from mmrl.algorithms.presets import PRESETS as presets  # noqa: N811 - a mapping that is looked up in, not a setting
    from mmrl.answers.boxes.box import Box
    from mmrl.answers.spans.interval import Interval
    from mmrl.app.api.evaluate import Evaluation, evaluate
    from mmrl.app.api.fit import fit
    from mmrl.app.api.load import load_data, load_reward
    from mmrl.app.api.run import Run
    from mmrl.core.protocols import Callback
    from mmrl.core.samples import Group, Prompt, Sample, Scored, Video
    from mmrl.core.types import Examples, Scores
    from mmrl.policies.flow.policy import FlowPolicy
    from mmrl.policies.flow.settings import FlowPolicyConfig
    from mmrl.policies.text.policy import TextPolicy
    from mmrl.policies.text.settings import TextPolicyConfig
    from mmrl.training.trainer import Trainer

_HOMES = {
    "Prompt": "mmrl.core.samples",
    "Sample": "mmrl.core.samples",
    "Group": "mmrl.core.samples",
    "Scored": "mmrl.core.samples",
    "Video": "mmrl.core.samples",
    "Scores": "mmrl.core.types",
    "Examples": "mmrl.core.types",
    "Callback": "mmrl.core.protocols",
    "Algorithm": "mmrl.algorithms.algorithm",
    "TextPolicy": "mmrl.policies.text.policy",
    "TextPolicyConfig": "mmrl.policies.text.settings",
    "FlowPolicy": "mmrl.policies.flow.policy",
    "FlowPolicyConfig": "mmrl.policies.flow.settings",
    "Trainer": "mmrl.training.trainer",
    "Run": "mmrl.app.api.run",
    "Evaluation": "mmrl.app.api.evaluate",
    "evaluate": "mmrl.app.api.evaluate",
    "fit": "mmrl.app.api.fit",
    "load_data": "mmrl.app.api.load",
    "load_reward": "mmrl.app.api.load",
    "presets": "mmrl.algorithms.presets:PRESETS",
    "Box": "mmrl.answers.boxes.box",
    "Interval": "mmrl.answers.spans.interval",
}
"""Name -> the module it comes from, with the name it has there where that differs."""
__all__ = [
    "Algorithm",
    "Box",
    "Callback",
    "Evaluation",
    "Examples",
    "FlowPolicy",
    "FlowPolicyConfig",
    "Group",
    "Interval",
    "Prompt",
    "Run",
    "Sample",
    "Scored",
    "Scores",
    "TextPolicy",
    "TextPolicyConfig",
    "Trainer",
    "Video",
    "__version__",
    "evaluate",
    "fit",
    "load_data",
    "load_reward",
    "presets",
]

if OldNames not in sys.meta_path:
    sys.meta_path.append(OldNames)

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
