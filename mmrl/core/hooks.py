"""Hooks: what parts, samplers and policies may do or declare besides what their protocol asks for. All do nothing by default.

A class inherits them and overrides what it needs; a part that is a dataclass has its ranges checked. For a class that inherits
nothing, such as a user's own part, `with_hooks` uses those that it defines.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Self, TypeVar, cast

from mmrl.core.protocols import Diagnostics, Rounding, View
from mmrl.core.types import ClipRange, Credit, Prompt, Reading, Rollouts, Scores
from mmrl.runtime.ranges import check_ranges

Hooks = TypeVar("Hooks")


class PartHooks:
    """Any part of an algorithm."""

    length: int | None = 0
    """The run's completion length, in actions, where the part divides or counts by it; None: the run fills it in."""
    __post_init__ = check_ranges

    @property
    def views(self) -> Mapping[str, View]:
        """Views of prompts that a planner samples under or a term reads under, by the names its requests and readings use."""
        return {}

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Look at a run's first prompts before a model loads; ValueError names one that it cannot work with, and a remedy."""

    def with_length(self, length: int) -> Self:
        """The same part with the run's completion length; asked where `length` is None."""
        return replace(self, length=length)  # pyright: ignore[reportArgumentType, reportUnknownVariableType] - it is a dataclass

    def adapt(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in the measures of a step, means over its updates and all ranks; steps count from 1. Terms and advantages only."""


class TermHooks(PartHooks):
    """A term of the objective."""

    silent_without_advantage: bool = False
    """Are value and gradient 0 wherever the advantage is 0, so that such rows need no forward?"""

    @property
    def clip_range(self) -> ClipRange | None:
        """How far it clips; checked before training, since rounding alone must not be clipped. None: it does not clip."""
        return None

    @property
    def at_first_update(self) -> str | None:
        """Its name at a step's first update, where the policy is the weights that sampled: `plain REINFORCE`.

        None: it is the same as in later updates.
        """
        return None

    @property
    def rebase_after(self) -> int:
        """The training step, from 1 on, at whose end `ref` becomes the policy's weights; 0: none."""
        return 0


class AdvantageHooks(PartHooks):
    """An advantage."""

    reads: tuple[Reading, ...] = ()
    """Readings of actions that it finds in `rollouts.recorded`, under weights that do not move."""
    min_group_size: int = 1
    """The fewest samples per prompt that have an advantage."""
    unscored: bool = False
    """Does it look at no reward, so that none is asked?"""
    previews: bool = False
    """Does it look at the rewards of what every step predicted (`Sample.values`)?"""


class WeightHooks(PartHooks):
    """A weight."""

    pools: tuple[Reading, ...] = ()
    """Frozen readings whose values at all trainable actions of the minibatch, of all ranks, it finds in `counts.pooled`."""


class PlannerHooks(PartHooks):
    """A planner."""

    heats_tokens: bool = False
    """Are tokens drawn at individual temperatures (`Tempering.rule`), which servers do not support?"""
    samples_plainly: bool = True
    """Are all its samples of the prompt that training reads, from their first token on or a `Branch`, at the run's temperature?
    Worlds answer only such."""
    scouts: bool = False
    """Does it look at samples of few denoising steps first, which image generators alone draw (`Tempering.num_steps`)?"""
    branches: bool = False
    """Do episodes go on from turns of others, so that worlds must repeat?"""
    inspects: tuple[Reading, ...] = ()
    """Readings of actions that `inspect` finds in `rollouts.recorded`, under weights that do not move."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        """Readings of actions that `watch` finds in `rollouts.recorded`, under weights that do not move."""
        return ()

    def begin(self, prompts: Sequence[Prompt], vocabulary: str) -> None:
        """Called once, before anything else, with the prompts of the run and a name for the policy's vocabulary.

        A planner that defines it trains rows of earlier steps again (`StoredRow`).

        Raises ValueError where the rows that it remembers have another vocabulary.
        """

    def inspect(self, rollouts: Rollouts) -> None:
        """Take in the rows so far, of all ranks and without traces and media, before every `revise`.

        Raises ValueError where what it needs was not recorded.
        """

    def watch(self, step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> None:
        """Take in the rows of all ranks, without traces and media, with what was recorded of them. Steps count from 1."""


class SamplerHooks:
    """A sampler."""

    prompts: Iterable[Prompt] | None = None
    """All prompts, if the sampler holds them."""

    def peek(self, num_prompts: int) -> Iterable[Prompt]:
        """The same prompts as the next `draw`, which then still gives them; made when they are looked at."""
        return ()


class PolicyHooks:
    """A policy."""

    turns: int = 1
    """Processes that read every row together: where there is a gradient, one of them after the other has rows."""
    reads_at_temperatures: bool = False
    """Does it evaluate log-probabilities at another temperature than rows were sampled with (`Reading.temperature`)?"""

    def audit(self, rollouts: Rollouts) -> None:
        """Do recorded media, positions, tokens, prompts and pictures fit together? ValueError names the prompt and the row."""

    @cached_property
    def diagnostics(self) -> Diagnostics | None:
        """Explains why its readings differ; None: it cannot."""
        return None

    @property
    def vocabulary(self) -> str:
        """A name of its tokens: the same for two policies that number the same tokens alike.

        Empty: it cannot take up rows of an earlier step again.
        """
        return ""

    @property
    def exact_sampler(self) -> bool:
        """Are the log-probabilities noted while sampling computed by the network that trains? An engine's are not."""
        return True

    @property
    def rounding(self) -> Rounding | None:
        """How its network rounds, if it knows."""
        return None

    @property
    def prefetches(self) -> bool:
        """False as long as no prompt had anything to prepare: data sets may draw prompts only when they are looked at."""
        return False

    def prefetch(self, prompts: Iterable[Prompt]) -> None:
        """Prepare prompts that will probably be rolled out soon (decode clips); it waits for nothing."""

    def unreadable(self, prompts: Sequence[Prompt]) -> Mapping[int, str]:
        """Place -> what is wrong with the prompt there (a missing picture, a clip that cannot be decoded)."""
        return {}

    def drain_metrics(self) -> Mapping[str, float]:
        """The cost of sampling since the last call, besides its own time, for the log."""
        return {}

    def begin_stage(self, shadows: Iterable[str], ema_decay: Callable[[int], float] | None, views: Mapping[str, View]) -> None:
        """Another stage of a chain begins: what is kept beside the live weights, and how prompts are shown, is what it needs.

        Every shadow starts again from the weights as they are.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot begin another stage")

    def end_step(self, rebase: bool = False) -> None:
        """A step's updates are over: `previous`, if it is kept, becomes the weights with which this step began.

        With `rebase` `ref`, if it is kept, becomes the weights of now.
        """


class EnvironmentHooks:
    """An environment."""

    repeats: bool = True
    """Does the same seed open a world that answers the same turns in the same way?"""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Look at a run's first prompts before a model loads; ValueError names one that opens no world, and a remedy."""


class StandIn:
    """Asks an object that does not inherit its hooks for those that it defines; the others do nothing."""

    def __init__(self, asked: object, hooks: object) -> None:
        self._asked, self._hooks = asked, hooks

    def __getattr__(self, name: str) -> object:
        return getattr(self._asked if hasattr(self._asked, name) else self._hooks, name)


def with_hooks(asked: object, hooks: type[Hooks]) -> Hooks:
    """The object itself where it inherits the hooks, else one that answers for it."""
    return asked if isinstance(asked, hooks) else cast(Hooks, StandIn(asked, hooks()))


def defines(asked: object, hook: Callable[..., object]) -> bool:
    """Does an object write this hook itself, or stand for one that does? `defines(planner, PlannerHooks.begin)`."""
    own = getattr(asked, hook.__name__, hook)
    return getattr(own, "__func__", own) is not hook
