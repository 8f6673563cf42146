"""State of the whole process that a plug-in must leave as it found it: settings, and random generators.

Settings are compared without importing torch.
"""

import os
import random
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from threading import RLock, Thread, current_thread
from types import ModuleType
from typing import Any
from weakref import WeakSet


class ProcessChangedError(RuntimeError):
    """A plug-in changed a setting of the whole process, which was put back."""


@dataclass(frozen=True)
class ProcessState:
    """The settings at one moment; the defaults are those of a process that has not loaded torch."""

    folder: str
    dtype: str = "float32"
    device: str = "cpu"
    has_gradients: bool = True
    is_deterministic: bool = False

    def restore(self, names: Collection[str] = ()) -> str:
        """Put everything back as it was here, or these settings; what had changed, in words, empty where nothing had."""
        now, wanted = process_state(), names or [f.name for f in fields(self)]
        changed = [name for name in wanted if getattr(self, name) != getattr(now, name)]
        for name in changed:
            put_back(name, getattr(self, name))
        return " and ".join(f"{WORDS[name]} from {getattr(self, name)} to {getattr(now, name)}" for name in changed)

    def beside(self, first: "ProcessState") -> "ProcessState":
        """The same, with what all threads share as another one found it that will put its own state back later."""
        return replace(self, **{name: getattr(first, name) for name in SHARED})


SHARED = ("folder", "dtype", "is_deterministic")
"""Settings that all threads have in common."""
LEFT_BEHIND: WeakSet[Thread] = WeakSet()
"""Threads that nobody waits for any more: what they put back when they end would be put in the middle of something else."""
WORDS = {
    "folder": "the working directory",
    "dtype": "torch's default dtype",
    "device": "torch's default device",
    "has_gradients": "torch's gradient mode",
    "is_deterministic": "torch's deterministic algorithms",
}
GONE = "a folder that is gone"
Generators = dict[str, Any]
"""Every global random generator, as plain numbers and tensors, so that it can be saved."""
ASIDE: dict[Thread, Generators] = {}
"""The random state of a thread, while another one has put its own in its place."""
_SWITCHING = RLock()


def process_state() -> ProcessState:
    """The settings as they are."""
    torch = loaded_torch()
    if torch is None:
        return ProcessState(working_folder())
    return ProcessState(
        working_folder(),
        str(torch.get_default_dtype()).removeprefix("torch."),
        default_device(torch),
        bool(torch.is_grad_enabled()),
        bool(torch.are_deterministic_algorithms_enabled()),
    )


def default_device(torch: ModuleType) -> str:
    try:
        return str(torch.get_default_device())
    except AttributeError:
        # torch 2.9 cannot say once the default was taken back
        return "cpu"


def working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return GONE


def loaded_torch() -> ModuleType | None:
    """The module torch where it is loaded, whole."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_default_device") else None


def put_back(name: str, value: str | bool) -> None:
    if current_thread() in LEFT_BEHIND:
        return
    torch = loaded_torch()
    if name == "folder":
        os.chdir(str(value)) if value != GONE else None
        return
    assert torch is not None
    if name == "dtype":
        torch.set_default_dtype(getattr(torch, str(value)))
    elif name == "device":
        # a default device of cpu that was set is not the same as none: it wraps every function of torch
        torch.set_default_device(None if value == "cpu" else value)
        context = vars(torch).get("_GLOBAL_DEVICE_CONTEXT")
        if value == "cpu" and context is not None and getattr(context, "device_context", 0) is None:
            # torch 2.9 then fails wherever anybody asks for the default device
            del context.device_context
    elif name == "has_gradients":
        torch.set_grad_enabled(value)
    elif name == "is_deterministic":
        torch.use_deterministic_algorithms(value)


def refuse_change(before: ProcessState) -> None:
    """Put back what changed since `before`, and raise ProcessChangedError if anything had."""
    changed = before.restore()
    if changed:
        raise ProcessChangedError(change_text(changed))


def change_text(changed: str, who: str = "it") -> str:
    return f"{who} changed {changed} (put back now): change such settings in a `with` block, or run the reward in its own process"


def seed(number: int) -> None:
    """Begin every global random generator anew, for a run that starts again must draw the same."""
    import numpy as np
    import torch

    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def random_state() -> Generators:
    """Every global random generator as this thread left it."""
    import numpy as np
    import torch

    with _SWITCHING:
        aside, cuda = ASIDE.get(current_thread()), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        if aside is not None:
            return aside | {"cuda": cuda}
        version, internal, gauss = random.getstate()
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        return {
            "python": [version, list(internal), gauss],
            "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
            "torch": torch.get_rng_state(),
            "cuda": cuda,
        }


def set_random_state(state: Generators) -> None:
    """Put every global random generator where it was, for this thread; one that was left behind changes none."""
    import torch

    thread = current_thread()
    if thread in LEFT_BEHIND:
        return
    with _SWITCHING:
        if thread in ASIDE:
            ASIDE[thread] = state
        else:
            set_generators(state)
        # those of cards are never put aside: they stay with the thread that computes there
        for device, known in enumerate(state["cuda"][: torch.cuda.device_count()] if thread in ASIDE or not ASIDE else ()):
            torch.cuda.set_rng_state(known, device)


def set_generators(state: Generators) -> None:
    """Put the generators that all threads share where they were, but for those of cards."""
    import numpy as np
    import torch

    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])


def put_aside(owner: Thread, state: Generators | None) -> None:
    """Put this thread's random state in the place of another one's, which is kept, and which its owner still reads and sets."""
    with _SWITCHING:
        ASIDE[owner] = random_state()
        if state is not None:
            set_generators(state)


def take_back(owner: Thread) -> Generators:
    """Give the other thread its place back, unless it has; the random state of this one."""
    with _SWITCHING:
        own, outside = random_state(), ASIDE.pop(owner, None)
        if outside is not None:
            set_generators(outside)
        return own


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Put the global random states back at the end: sampling outside goes on as if nothing had been drawn inside."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)
