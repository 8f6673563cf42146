"""Published algorithms by name, as deltas of each other, a file per idea: a preset in any file of this folder is found.

The string under each assignment is its documentation: first a one-line summary, then the paper with its arXiv id, what
differs from the preset it replaces, and what is not implemented. `mmrl ls algorithms` reads it without running the files.
Updates are minibatches x epochs per step. What a clip, a gate or a trust region does with ratios shows from the second update
on; with one update every one of them is REINFORCE with the preset's advantages and aggregation.
"""

from importlib import import_module
from pkgutil import iter_modules

from mmrl.algorithms.algorithm import Algorithm


def collect() -> dict[str, Algorithm]:
    """The presets of all files, in the order of the files' names; a file may import presets of another."""
    found: dict[str, Algorithm] = {}
    for file in iter_modules(__path__):
        for name, value in vars(import_module(f"{__name__}.{file.name}")).items():
            if isinstance(value, Algorithm) and name.islower():
                assert found.setdefault(name, value) is value, f"two presets have the name {name}"
    return found


PRESETS = collect()
