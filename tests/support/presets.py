"""The presets by what their tests run them on; a new one is in one of these sets by itself."""

from mmrl.algorithms.advantages.decoupled import PerModality
from mmrl.algorithms.presets import PRESETS
from mmrl.app.plugins.catalog import documents
from mmrl.core.readings import PIXELS

BY_PIXELS = {name: algorithm for name, algorithm in PRESETS.items() if PIXELS in algorithm.live_reads}
"""They train on the gradient of rewards, through a decoder: tests/policies/flow/read/test_surrogate.py."""
WITH_SOUND = {name for name, algorithm in PRESETS.items() if isinstance(algorithm.advantage, PerModality)}
"""They need clips with sound: tests/app/modality/test_clips.py, tests/evidence/sounds.py."""
FLOW = {name: one for name, one in PRESETS.items() if one.schedule is not None and name not in {*BY_PIXELS, *WITH_SOUND}}
WITH_TEACHERS = {name for name, one in FLOW.items() if any(reading.model == "teacher" for reading in one.all_reads)}
"""They need prompts that name an adapter: with real models in tests/policies/flow/test_learning.py."""
VIDEO = {name: PRESETS[name] for name, (_, file) in documents().items() if file.stem == "video"}
"""On prompts with clips."""
DISTILLED = {
    name: one for name, one in PRESETS.items() if one.schedule is None and any(reading.target for reading in one.all_reads)
}
"""They compare whole distributions, which real models alone have: tests/policies/text/test_teachers.py."""
TEXT = {name: one for name, one in PRESETS.items() if one.schedule is None and name not in VIDEO | DISTILLED}


def of_files(*ideas: str) -> list[str]:
    """The names of the presets in files of these names, in their order: test workers have to agree on it."""
    found = [(name, file.stem) for name, (_, file) in documents().items() if file.stem in ideas]
    assert {stem for _, stem in found} == {*ideas}, "a file of presets has another name"
    return [name for name, _ in found]


ON_TASKS = [*of_files("hints"), "s_grpo", "rlpr", "gui_g1", "adapt_think", "thinkless", "hbpo", "anytime"]
"""They need prompts that bring more than a letter, and learn where their claim lies: short rows of tests/evidence."""
FEWER_PROMPTS = (
    *("aepo", "ares", "arpo_gui", "dcpo", "hapo", "hart", "mobile_agent_v3", "remix", "riskpo", "spo", "spo_segment", "ssr"),
    "treerl",
)
"""Presets that remember something, or draw many samples of a prompt."""
SILENT_STEPS = {"riskpo": 1}
"""How many steps train nothing, because what the advantage remembers has first to be filled."""
