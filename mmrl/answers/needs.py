"""The needs of a reward: declared beside its fields, looked at before weights load, and listed by `mmrl ls` and the docs."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmrl.core.samples import Group, Prompt, Sample, Scored
from mmrl.runtime.ranges import check_ranges

Reads = Callable[[Prompt, Any, str], object]
"""What a reward reads of a prompt, from the prompt, the reward and the kind of samples: text, image, video or sound.

None where it does not apply to the prompt; ValueError where it could not score its samples.
"""


@dataclass(frozen=True)
class Need:
    """The needs of a reward: `needs = Need("a number as answer", answer(true_number))` in its class, or a function's file.

    `Need()`: nothing. Texts are written out, since lists read them without running the file.
    """

    prompts: str = ""
    """What each prompt must have, in words."""
    reads: Reads = lambda prompt, reward, output: prompt
    samples: int = 1
    """The fewest samples of a prompt that it says something about."""
    alone: str = ""
    """How it scores fewer; empty: it fails."""
    setup: str = ""
    """What else must be there, and how it comes there: settings, servers, packages."""
    package: str = ""
    """What it imports that mmrl itself does without."""
    turns: bool = False
    """It reads what a world answered, and scores all samples alike where none does."""

    def __str__(self) -> str:
        several = f"{self.samples} samples of a prompt" if self.samples > 1 else ""
        setup = self.setup or (self.package and f"the package {self.package}")
        return "; ".join(part for part in (self.prompts, several, setup) if part) or "nothing"


def answer(read: Callable[[Prompt], object] = lambda prompt: prompt) -> Reads:
    """The true answer; the reward does not apply to prompts without one."""
    return lambda prompt, reward, output: None if prompt.answer is None else read(prompt)


def columns(*names: str) -> Reads:
    """Columns that must be there."""

    def read(prompt: Prompt, reward: object, output: str) -> object:
        if missing := [name for name in names if prompt.columns.get(name) is None]:
            raise ValueError(
                f"prompt {prompt.id!r} has no column {', '.join(missing)}: add it to the data, or take another reward"
            )
        return prompt

    return read


def picture(prompt: Prompt, reward: object, output: str) -> object:
    """A picture beside the text."""
    if not prompt.media:
        raise ValueError(f"prompt {prompt.id!r} has no picture: add one to the data, or take another reward")
    return prompt


@dataclass(frozen=True)
class OfSamples(ABC):
    """The common base of rewards that look at each sample alone."""

    pointwise = True

    __post_init__ = check_ranges

    def __call__(self, group: Group) -> list[float | Scored | None]:
        return [self.score(sample, group.prompt) for sample in group.samples]

    @abstractmethod
    def score(self, sample: Sample, prompt: Prompt) -> float | Scored | None:
        """The score of one sample."""
