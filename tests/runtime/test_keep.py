"""The names of models that are taught once: whatever draws, builds or teaches them is part of the name."""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from mmrl.data.drawn.digit_text import Prints
from mmrl.data.drawn.gliding import Glides
from mmrl.data.drawn.shapes import Sketches
from mmrl.lab.tiny import teaching
from mmrl.lab.tiny.flow import clip_generator, editor, generator, sound_generator
from mmrl.lab.tiny.taught import BOXES, LOOKS, SPANS, WORDS, Pupil
from mmrl.runtime import cache as keep

COMMON = {"mmrl.runtime.cache", "mmrl.lab.tiny.byte_tokens"}
"""Where models are kept, and names of types."""


@dataclass(frozen=True)
class Settings:
    seed: int = 0


def modules_of(module: ModuleType) -> set[str]:
    """Modules of tiny models and of drawn data that a module takes functions and classes from."""
    found = {thing.__module__ for thing in vars(module).values() if inspect.isfunction(thing) or inspect.isclass(thing)}
    return {name for name in found if name.startswith(("mmrl.lab.tiny.", "mmrl.data."))}


@pytest.mark.parametrize(
    "module, settings",
    [
        (generator, generator.WarmStart(Sketches())),
        (generator, generator.WarmStart(Prints())),
        (clip_generator, clip_generator.ClipStart(Glides())),
        (editor, editor.EditorStart()),
        (sound_generator, sound_generator.SoundStart()),
    ],
)
def test_all_code_of_a_taught_model_is_in_its_name(module: ModuleType, settings: Any, monkeypatch: pytest.MonkeyPatch):
    counted: set[str] = set()

    def note(settings: Any, code: Sequence[ModuleType | type], packages: Sequence[str]) -> str:
        counted.update(part.__module__ if isinstance(part, type) else part.__name__ for part in code)
        return "noted"

    monkeypatch.setattr(inspect.getmodule(module.KIND.fingerprint), "hash_of", note)
    module.KIND.fingerprint(settings)
    used = modules_of(module)
    if hasattr(settings, "data"):
        used |= modules_of(sys.modules[type(settings.data).__module__])
    assert used <= counted | COMMON


@pytest.mark.parametrize("pupil", [BOXES, SPANS, LOOKS, WORDS])
def test_all_code_of_a_model_that_stages_teach_is_in_its_name(pupil: Pupil):
    counted = {module.__name__ for module in pupil.code}
    builds = {"mmrl.lab.tiny.text.student", "mmrl.training.optim", "mmrl.lab.tiny.teaching"}
    assert modules_of(pupil.code[0]) | modules_of(pupil.code[2]) <= counted | COMMON | builds


def test_a_name_depends_on_settings_code_and_versions():
    names = {
        keep.hash_of(Settings(), (keep,), ("torch",)),
        keep.hash_of(Settings(1), (keep,), ("torch",)),
        keep.hash_of(Settings(), (keep, teaching), ("torch",)),
        keep.hash_of(Settings(), (keep,), ("torch", "numpy")),
    }
    assert len(names) == 4 and all(len(name) == 12 for name in names)
    assert keep.hash_of(Settings(), (keep,), ("torch",)) in names
