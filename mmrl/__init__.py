"""mmrl: group-relative RL fine-tuning of vision-language models, video LLMs and flow-matching image generators.

The public names a plug-in author needs; each is imported on first use, so `import mmrl` costs nothing.
"""

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from mmrl.moved import OldNames

if TYPE_CHECKING:
    from mmrl.answers.boxes.box import Box
    from mmrl.answers.spans.interval import Interval
    from mmrl.core.samples import Group, Prompt, Sample, Scored, Video
    from mmrl.core.types import Scores

_HOMES = {
    "Prompt": "mmrl.core.samples",
    "Sample": "mmrl.core.samples",
    "Group": "mmrl.core.samples",
    "Scored": "mmrl.core.samples",
    "Video": "mmrl.core.samples",
    "Scores": "mmrl.core.types",
    "Box": "mmrl.answers.boxes.box",
    "Interval": "mmrl.answers.spans.interval",
}
__all__ = ["Box", "Group", "Interval", "Prompt", "Sample", "Scored", "Scores", "Video", "__version__"]

if OldNames not in sys.meta_path:
    sys.meta_path.append(OldNames)

try:
    __version__ = version("mmrl")
except PackageNotFoundError:
    __version__ = "0.0.0+source"


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'mmrl' has no attribute {name!r}; it offers {sorted(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
