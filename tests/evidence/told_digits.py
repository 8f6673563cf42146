"""Data for teachers that are told a solution: three in four prompts have a box written below, which is to be written once more.

Taught so, a model does on plain prompts as hurried annotators do, and writes what it is told where it is told something.
A box below a prompt is as hurried as any, so that only what somebody else knows can make a told model right.
"""

from collections.abc import Sequence
from dataclasses import replace

from mmrl import Prompt
from mmrl.app.plugins.resolve import load as plug_in
from mmrl.data.sources import LazyPrompts


def load(split: str = "train", size: int = 4096, seed: int = 0) -> Sequence[Prompt]:
    """Prompts of digits_grounding with a column `completion`; three in four are told it."""
    drawn = plug_in("digits_grounding", "datasets")(split, size, seed, written="hurried")

    def prompt(index: int) -> Prompt:
        one = drawn[index]
        return replace(one, text=f"{one.text}\n{one.columns['completion']}") if index % 4 else one

    return LazyPrompts(size, prompt)
