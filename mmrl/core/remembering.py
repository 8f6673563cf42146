"""The promises of parts that remember, beside `Stateful`: what they are told, and what they may ask for."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from mmrl.core.types import Credit, Prompt, Rollouts, Scores


@runtime_checkable
class Adapting(Protocol):
    """A term or an advantage that follows what updates measure; every run has a copy of its own, and checkpoints its state."""

    def adapt(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in the measures of a step, means over its updates and all ranks; steps count from 1."""
        ...


@runtime_checkable
class Watching(Protocol):
    """A planner that looks at what was sampled, at its scores and its credit."""

    def watch(self, step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> None:
        """Take in the rows of all ranks, without traces and media, with what was recorded of them. Steps count from 1."""
        ...


@runtime_checkable
class Inspecting(Protocol):
    """A planner that asks for samples by what was noted of actions, not by their rewards alone."""

    def inspect(self, rollouts: Rollouts) -> None:
        """Take in the rows so far, of all ranks and without traces and media, before every `revise`.

        Raises:
            ValueError: what it wants to know was not noted.
        """
        ...


@runtime_checkable
class Replaying(Protocol):
    """A planner that has rows of earlier steps trained again (`Request.stored`)."""

    def begin(self, prompts: Sequence[Prompt], vocabulary: str) -> None:
        """Told once, before anything else: all prompts of the run, and a name of the policy's tokens.

        Raises:
            ValueError: what it remembers is of other tokens.
        """
        ...


@runtime_checkable
class HoldsPrompts(Protocol):
    """A sampler that has all of its prompts at hand."""

    @property
    def prompts(self) -> Sequence[Prompt]: ...


@runtime_checkable
class Restoring(Protocol):
    """A policy that can take up rows of an earlier step again, token by token."""

    @property
    def vocabulary(self) -> str:
        """A name of its tokens: the same for two policies that number the same tokens alike."""
        ...


@runtime_checkable
class Tempering(Protocol):
    """A policy that evaluates log-probabilities at another temperature than rows were sampled with (`Reading.temperature`)."""

    @property
    def reads_at_temperatures(self) -> bool: ...


@runtime_checkable
class Heating(Protocol):
    """A planner under which tokens are drawn at temperatures of their own (`Request.heat`), which servers do not know."""

    @property
    def heats_tokens(self) -> bool: ...


@runtime_checkable
class Preceding(Protocol):
    """A policy that may keep the weights with which the step before began, under the name `previous`."""

    def end_step(self, rebase: bool = False) -> None:
        """A step's updates are over: `previous` becomes the weights with which this step began.

        Args:
            rebase: `ref`, if it is kept, becomes the weights of now.
        """
        ...


@runtime_checkable
class Rebasing(Protocol):
    """A term whose reference is, from one step on, the policy as it then was."""

    @property
    def rebase_after(self) -> int:
        """The training step, from 1 on, at whose end `ref` becomes the policy's weights; 0: none."""
        ...
