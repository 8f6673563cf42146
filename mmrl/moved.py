"""Where modules have moved to, for imports written before: they fail with the new name instead of `No module named ...`."""

from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "mmrl.data.recognise": "mmrl.data.layouts.guess",
    "mmrl.geometry": "mmrl.answers",
    "mmrl.geometry.answers": "mmrl.answers.block",
    "mmrl.geometry.attempts": "mmrl.answers.boxes.attempts",
    "mmrl.geometry.boxes": "mmrl.answers.boxes.box",
    "mmrl.geometry.choices": "mmrl.answers.choices",
    "mmrl.geometry.detection": "mmrl.answers.boxes.detection",
    "mmrl.geometry.intervals": "mmrl.answers.spans.interval",
    "mmrl.geometry.numbers": "mmrl.answers.numbers",
    "mmrl.geometry.parsing": "mmrl.answers.boxes.parsing",
    "mmrl.geometry.questions": "mmrl.answers.questions",
    "mmrl.geometry.spans": "mmrl.answers.spans.attempts",
    "mmrl.geometry.temporal": "mmrl.answers.spans.detection",
    "mmrl.geometry.timelines": "mmrl.answers.spans.timelines",
    "mmrl.geometry.times": "mmrl.answers.spans.parsing",
    "mmrl.geometry.words": "mmrl.answers.words",
    "mmrl.policies.answer_tokens": "mmrl.policies.text.answer_tokens",
    "mmrl.policies.audit": "mmrl.policies.text.audit",
    "mmrl.policies.audit_positions": "mmrl.policies.text.audit_positions",
    "mmrl.policies.changes": "mmrl.policies.shared.interventions",
    "mmrl.policies.decode": "mmrl.policies.text.generate",
    "mmrl.policies.divergence": "mmrl.policies.text.divergence",
    "mmrl.policies.families": "mmrl.policies.text.families",
    "mmrl.policies.families.base": "mmrl.policies.text.families.base",
    "mmrl.policies.families.flux": "mmrl.policies.flow.families.flux",
    "mmrl.policies.families.gemma": "mmrl.policies.text.families.gemma",
    "mmrl.policies.families.generic": "mmrl.policies.text.families.generic",
    "mmrl.policies.families.idefics": "mmrl.policies.text.families.idefics",
    "mmrl.policies.families.internvl": "mmrl.policies.text.families.internvl",
    "mmrl.policies.families.llava_onevision": "mmrl.policies.text.families.llava_onevision",
    "mmrl.policies.families.qwen_image": "mmrl.policies.flow.families.qwen_image",
    "mmrl.policies.families.qwen_vl": "mmrl.policies.text.families.qwen_vl",
    "mmrl.policies.families.sd3": "mmrl.policies.flow.families.sd3",
    "mmrl.policies.flow_audit": "mmrl.policies.flow.audit",
    "mmrl.policies.flow_family": "mmrl.policies.flow.families.base",
    "mmrl.policies.flow_loading": "mmrl.policies.flow.loading",
    "mmrl.policies.flow_net": "mmrl.policies.flow.net",
    "mmrl.policies.flow_prompts": "mmrl.policies.flow.encode",
    "mmrl.policies.flow_reading": "mmrl.policies.flow.evaluate",
    "mmrl.policies.flow_rehearsal": "mmrl.policies.flow.dry_run",
    "mmrl.policies.flow_settings": "mmrl.policies.flow.settings",
    "mmrl.policies.flow_split": "mmrl.policies.flow.packing",
    "mmrl.policies.flow_suspects": "mmrl.policies.flow.diagnose",
    "mmrl.policies.flow_trace": "mmrl.policies.flow.trace",
    "mmrl.policies.flow_weights": "mmrl.policies.shared.weights",
    "mmrl.policies.image_input": "mmrl.policies.text.encode",
    "mmrl.policies.loading": "mmrl.policies.text.loading",
    "mmrl.policies.net": "mmrl.policies.text.net",
    "mmrl.policies.packing": "mmrl.policies.text.packing",
    "mmrl.policies.pretend": "mmrl.policies.shared.meta_models",
    "mmrl.policies.rehearsal": "mmrl.policies.text.dry_run",
    "mmrl.policies.rollout": "mmrl.policies.text.rollout",
    "mmrl.policies.scoring": "mmrl.policies.text.evaluate",
    "mmrl.policies.settings": "mmrl.policies.text.settings",
    "mmrl.policies.shadows": "mmrl.policies.shared.weights",
    "mmrl.policies.sharding": "mmrl.policies.shared.sharding",
    "mmrl.policies.suspects": "mmrl.policies.text.diagnose",
    "mmrl.policies.templates": "mmrl.policies.text.templates",
    "mmrl.policies.trace": "mmrl.policies.text.trace",
    "mmrl.policies.video_cache": "mmrl.policies.video.cache",
    "mmrl.policies.video_decode": "mmrl.policies.video.decode",
    "mmrl.policies.video_input": "mmrl.policies.video.input",
    "mmrl.policies.video_sampling": "mmrl.policies.video.sampling",
    "mmrl.policies.video_worker": "mmrl.policies.video.worker",
    "mmrl.policies.video_workers": "mmrl.policies.video.workers",
}
"""Old module -> where most of it is now."""


LEAVING: dict[str, tuple[str, str]] = {}
"""Public name -> the one that takes its place, and the release from which on the old one is gone."""
PACKAGES = ("mmrl.geometry", "mmrl.policies.families")
"""Old folders: each is found as an empty package, so that the import goes on to the module inside, whose new name is known."""


class OldNames:
    """Knows modules by their old names; asked where nobody else finds one."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """An empty package for an old folder, nothing for names that were never mmrl's.

        Raises:
            ModuleNotFoundError: the module has moved; the message names the one to import instead.
        """
        if name in PACKAGES:
            return ModuleSpec(name, EmptyPackage(), is_package=True)
        if name in MOVED:
            raise moved(name)
        return None


class EmptyPackage(Loader):
    """A folder that is no longer there: whatever is looked up in it has moved."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's own kind of module."""

    def exec_module(self, module: ModuleType) -> None:
        """Let every name of the package but Python's own raise."""
        package = module.__name__

        def find(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            raise moved(f"{package}.{name}" if f"{package}.{name}" in MOVED else package)

        vars(module)["__getattr__"] = find


def moved(name: str) -> ModuleNotFoundError:
    """The error for an old name; it has no `name`, or `from mmrl.policies import trace` would swallow it."""
    return ModuleNotFoundError(f"{name} is {MOVED[name]} now: change the import")
