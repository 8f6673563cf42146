"""The interfaces between rooms. Attributes are read-only properties, so frozen dataclasses fit."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmrl.core.types import (
    Batch,
    Counts,
    Credit,
    Group,
    Prompt,
    Reading,
    Request,
    Revision,
    Rollouts,
    Scope,
    Scored,
    Scores,
    Trace,
)
from mmrl.runtime.accelerator import Accelerator

State = dict[str, Any]
"""What state_dict gives: tensors, numbers, strings, lists and dicts of these; no pickled objects."""

SamplingT = TypeVar("SamplingT", contravariant=True)
"""How a policy samples: Sampling (text), RolloutPlan (flow)."""


@runtime_checkable
class Policy(Protocol[SamplingT]):
    """A trainable generator: all the trainer knows of a modality. `Policy[Never]` is any policy, sampling as it trains."""

    @property
    def offers(self) -> frozenset[str]:
        """Quantities `read` can evaluate: logprobs, entropy, group_divergence, velocity, ..."""
        ...

    @property
    def shadows(self) -> frozenset[str]:
        """Weights kept beside the live ones: ref, ema."""
        ...

    def rollout(self, requests: Sequence[Request], sampling: SamplingT | None = None) -> Rollouts:
        """Sample. `sampling` replaces the training settings (evaluation: greedy; flow: the step's plan)."""
        ...

    def read(self, trace: Trace, readings: Iterable[Reading], mask: Bool[Tensor, "n t"]) -> dict[Reading, Tensor]:
        """Evaluate quantities of the recorded actions, (n, t, ...); finite everywhere, exact where mask is True.

        A quantity whose name begins with `group_` compares the rows of the trace, which then are those of one group.
        """
        ...

    def split(self, batch: Batch, micro_batch: int, scope: Scope) -> Iterator[Batch]:
        """Cut a batch into parts that fit `micro_batch` (positions of one forward), never finer than `scope`."""
        ...

    def join(self, traces: Sequence[Trace]) -> Trace:
        """One trace holding the rows of all, in order; shorter ones padded at the end."""
        ...

    def parameters(self) -> Iterable[nn.Parameter]:
        """The trainable ones."""
        ...

    def advance(self) -> None:
        """The optimizer has stepped: shadows that follow the policy follow it now."""
        ...

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...

    def save(self, folder: Path) -> None:
        """Write the live weights in the form the model's own library loads."""
        ...

    def prepare(self, accelerator: Accelerator) -> None:
        """Move to the device and wrap for many processes."""
        ...


@runtime_checkable
class Planner(Protocol):
    """Chooses the samples of a step: plan -> sample -> score -> revise, capped."""

    @property
    def max_rounds(self) -> int: ...

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        """Group ids count up from `first_id`."""
        ...

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        """Look at all groups so far (all ranks; `group_ids` are the rows' of scores); `wanted` = groups the step should have."""
        ...


@runtime_checkable
class View(Protocol):
    """Another way to show a prompt. The same seed shows it the same way again."""

    def __call__(self, prompt: Prompt, seed: int, /) -> Prompt: ...


@runtime_checkable
class Stateful(Protocol):
    """A part that remembers from step to step: every run has a copy of its own, and checkpoints hold what it knows."""

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


@dataclass(frozen=True)
class Hypothesis:
    """A reason why training may evaluate other log-probabilities than the sampler noted, and the reading that would show it."""

    cause: str
    """In a few words: `dropout or training mode`."""
    change: str
    """What is different in this reading: `with every dropout off`; of a fact, what was seen."""
    remedy: str
    read: Callable[[], Tensor] | None = None
    """Log-probabilities (n, t) under this one change, NaN where it leaves no action; None: a fact, seen without reading."""
    must_equal: Literal["rollout", "reading"] = "rollout"
    """rollout: it is the cause if under the change the numbers of the rollout come out. reading: it is the cause if the change
    moves what training reads, which it must not."""
    shrinks: float = 20.0
    """Factor by which the change must shrink the difference to explain it, if it does not make it vanish."""
    control: bool = False
    """Nothing is changed: what the readings under a change are compared with."""


@runtime_checkable
class Diagnostics(Protocol):
    """Explains why two readings of the same rows may differ, for one policy."""

    def hypotheses(self, rollouts: Rollouts) -> Iterable[Hypothesis]:
        """Why the log-probabilities of these rows may differ, the cheap and particular reasons first.

        Every process makes the same forwards for as many rows, whatever it finds.
        """
        ...


@runtime_checkable
class Rounding(Protocol):
    """How a policy's network rounds, for comparing two of its readings."""

    @property
    def bound(self) -> float:
        """Largest |log ratio| of two readings under the same weights, where nothing has to be measured."""
        ...

    @property
    def unit(self) -> float:
        """Relative error of one rounding: 2**-24 in float32, 2**-8 in bfloat16."""
        ...

    @property
    def depth(self) -> int:
        """Layers in which errors add up."""
        ...

    @property
    def is_coarse(self) -> bool:
        """Is rounding so much coarser than `bound` that it must be measured?"""
        ...

    def readings(self, rollouts: Rollouts) -> Iterator[Float[Tensor, "n t"]]:
        """Log-probabilities of the same actions in two ways or more that are equal but for rounding, sampling's own among them.

        Every process makes the same forwards for as many rows.
        """
        ...


@runtime_checkable
class Reward(Protocol):
    """Scores one group. May be `async def`. None = does not apply to the group; raise when it fails."""

    def __call__(self, group: Group, /) -> Sequence[float | Scored | Mapping[str, float] | None]: ...


@runtime_checkable
class Shaping(Protocol):
    """Scores -> Scores, before advantages: bonuses and penalties that look at rollouts or frozen readings."""

    @property
    def reads(self) -> tuple[Reading, ...]: ...

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor], /) -> Scores: ...


@runtime_checkable
class Advantage(Protocol):
    """Scores -> Credit. Sees the rows of all ranks, with what was recorded of them but without traces and media, on one process
    as on many; rows whose total is NaN must not be kept."""

    def __call__(self, scores: Scores, rollouts: Rollouts, /) -> Credit: ...


@runtime_checkable
class Mask(Protocol):
    """Rollouts -> which actions may train; what it removes leaves the counts too, but not the baseline."""

    def __call__(self, rollouts: Rollouts, /) -> Bool[Tensor, "n t"]: ...


@runtime_checkable
class Weight(Protocol):
    """Rollouts -> (n, t). As `aggregation` it is the aggregation; as `importance` it multiplies credited terms."""

    @property
    def reads(self) -> tuple[Reading, ...]: ...
    @property
    def scope(self) -> Scope: ...

    def __call__(self, batch: Batch, counts: Counts, /) -> Float[Tensor, "n t"]:
        """`batch` is the whole minibatch of this rank; its share and importance are still ones here."""
        ...


@runtime_checkable
class Term(Protocol):
    """One addend of the objective, a value per action; shares turn it into a loss to be minimized."""

    @property
    def reads(self) -> tuple[Reading, ...]: ...
    @property
    def scope(self) -> Scope: ...
    @property
    def credited(self) -> bool:
        """True for surrogates, which importance weights multiply; False for penalties such as KL and entropy."""
        ...

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch, /) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        """Values, and metrics as (n, t) tensors that are averaged with the shares."""
        ...


@runtime_checkable
class PromptSampler(Protocol):
    """Which prompts next. The same on every rank."""

    def draw(self, num_prompts: int) -> list[Prompt]: ...
    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        """Total rewards of each prompt's samples, for samplers that learn from them."""
        ...

    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...
