"""Reasons why log-probabilities may differ, for any network, each with the reading that would show it.

A policy brings what differs: how it reads its rows, a few other ways to read them, its remedies, and reasons that only it has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmrl.core.protocols import Hypothesis
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts
from mmrl.policies.shared.compiled import uncompiled
from mmrl.policies.shared.interventions import (
    PRECISIONS,
    RANDOM,
    Half,
    Read,
    distance,
    dropout_layers,
    fit_reading,
    in_precision,
    nearest_reading,
    without_dropout,
)
from mmrl.policies.shared.lora import adapter_layers, scale_adapters, switch_adapters
from mmrl.policies.shared.weights import Weights

COMPILED = "compiled blocks (policy.compile)"
REPEAT, GRADIENT, DROPOUT, SHIFT = "reading is not repeatable", "gradient mode", "dropout or training mode", "mask shift"
PRECISION, BATCH, WEIGHTS = "precision (dtype or autocast)", "batch-size dependence", "EMA or adapter state"
SCALE, ROWS = "adapter scale", "exchanged rows"
REMEDIES = {
    COMPILED: "The compiler of this torch, card or CPU computes these blocks wrongly: leave policy.compile out",
    REPEAT: "Look for code around policy.read that changes what it is asked or answers",
    GRADIENT: "Look for code that asks whether gradients are on: checkpointing, hooks, autocast, wrapped modules",
    DROPOUT: "Set every dropout of the network to 0 and keep it in evaluation mode while sampling and reading",
    SHIFT: "Look for code that cuts, pads or rolls masks, steps, tokens or recorded log-probabilities",
    PRECISION: "Sample and train with the same policy.dtype, autocast and TF32 settings, and keep records in float32",
    BATCH: "Remove what mixes rows (batch statistics, attended padding), use float32, or set policy.equal_forwards = true",
    WEIGHTS: "Sample with the live weights: put averaged, reference or switched-off ones back before reading, and update copies",
    SCALE: "An adapter must add the same on both sides: look for another alpha or rank, and for one merged and active at once",
    ROWS: "Every row must keep its prompt, its sample and its record: look for code that sorts, gathers or concatenates rows",
}
"""Cause -> what to do."""
SHIFTS = (1, -1, 2, -2)


class Options(TypedDict, total=False):
    """The further fields of a hypothesis."""

    must_equal: Literal["rollout", "reading"]
    shrinks: float
    control: bool


@dataclass(frozen=True)
class Suspects:
    """Makes hypotheses about some rows of one policy."""

    net: nn.Module
    weights: Weights
    rollouts: Rollouts
    read: Read
    """As the policy reads the rows."""
    remedies: Mapping[str, str]

    @property
    def half(self) -> Half:
        assert isinstance(self.net, Half)
        return self.net

    @property
    def mask(self) -> Bool[Tensor, "n t"]:
        return self.rollouts.action_mask

    @property
    def noted(self) -> Float[Tensor, "n t"]:
        return self.rollouts.recorded[ROLLOUT_LOGPROBS]

    def __call__(self, cause: str, change: str, read: Read | None, **more: Unpack[Options]) -> Hypothesis:
        return Hypothesis(cause, change, self.remedies[cause], read, **more)

    def under(self, change: AbstractContextManager[object], read: Read | None = None) -> Float[Tensor, "n t"]:
        """Log-probabilities read while something is changed."""
        with change:
            return (read or self.read)()

    def nearest(self, cause: str, change: str, reads: Sequence[Read]) -> Hypothesis:
        """A hypothesis about the one of several readings that suits each row best."""
        return self(cause, change, lambda: nearest_reading(reads, self.noted, self.mask))

    def fit(
        self, cause: str, change: str, read_at: Callable[[float], Tensor], at: Bool[Tensor, "n t"] | None = None
    ) -> Iterator[Hypothesis]:
        """The factor that suits the record best, or its actions `at`, if rows can be read with any; `change` holds {factor}."""
        try:
            factor, values = fit_reading(read_at, self.noted, self.mask if at is None else at)
        except (RuntimeError, ValueError):
            return
        yield self(cause, change.format(factor=f"{factor:.3g}"), lambda: values)

    def of_model(
        self,
        one_by_one: Read,
        single: str,
        *,
        sampled: Read | None = None,
        still: Callable[[], AbstractContextManager[object]] = nullcontext,
        others: Iterable[Hypothesis] = (),
    ) -> Iterator[Hypothesis]:
        """Reasons within the model: repetition, dropout, gradients, precision, batches, weights, adapters.

        Args:
            one_by_one: reads every row in a forward of its own, which `single` says in words.
            sampled: reads as sampling computes, for lower precision; None: as `read`.
            still: a block in which reading leaves training mode alone.
            others: reasons in the ways of reading that this policy has.
        """
        net, own = self.net, "bfloat16" if self.half.half_precision else "float32"
        yield self(REPEAT, "with nothing changed", self.read, control=True)
        if blocks := getattr(net, "compiled", ()):
            change = "with its blocks as they are written"
            yield self(COMPILED, change, lambda: self.under(uncompiled(blocks)), must_equal="reading")
        yield from self.of_dropout(still)
        yield self.rounding("float32", self.read)
        if torch.is_grad_enabled():
            # Readings under other weights have no gradient, and would get the credit for that.
            yield self(GRADIENT, "without a gradient", lambda: self.under(torch.no_grad()))
        yield from others
        for name in ("bfloat16", "float16"):
            if name != own:
                yield self.rounding(name, sampled or self.read)
            yield self(PRECISION, f"and rounded to {name}", lambda name=name: self.read().to(PRECISIONS[name]).float())
        for change, read in ((single, one_by_one), ("all together", self.read)):
            yield self(BATCH, change, read, must_equal="reading")
        for name in sorted(self.weights.shadows):
            yield self(WEIGHTS, f"under the {name} weights", lambda name=name: self.under(self.weights.swapped_in(name)))
        adapted = adapter_layers(net.modules())
        for on in (False, True):
            change = f"with the adapter switched {'on' if on else 'off'}"
            yield self(WEIGHTS, change, lambda on=on: self.under(switch_adapters(adapted, on)))
        if adapted:
            change = "with the adapter's output times {factor}"
            yield from self.fit(SCALE, change, lambda factor: self.under(scale_adapters(adapted, factor)))

    def of_dropout(self, still: Callable[[], AbstractContextManager[object]]) -> Iterator[Hypothesis]:
        """Dropout, by a reading without it and by how far two readings are apart."""

        def calm() -> Tensor:
            with still(), without_dropout(self.net):
                return self.read()

        yield self(DROPOUT, "in evaluation mode and with every dropout off", calm)
        moves, quiet = (distance(read(), read(), self.noted, self.mask) for read in (self.read, calm))
        if moves > RANDOM and quiet <= RANDOM:
            yield self(DROPOUT, "two readings of the same rows differ; with every dropout off they do not", None)

    def of_layers(self) -> Iterator[Hypothesis]:
        """The fact that a layer would drop something in training mode."""
        dropping = dropout_layers(self.net)
        if dropping:
            what = f"{len(dropping)} layers drop something in training mode, such as {dropping[0]}; loading leaves none"
            yield self(DROPOUT, what, None)

    def of_columns(self, read: Read, known: Bool[Tensor, "n t"]) -> Iterator[Hypothesis]:
        """Columns that shifted against each other; `read` reads all that are `known`."""
        for by in SHIFTS:
            yield self(SHIFT, f"with columns moved by {by:+d}", lambda by=by: move_columns(read(), known, by))

    def rounding(self, name: str, read: Read) -> Hypothesis:
        """Rounding to this dtype."""
        change = f"in {name} {'without autocast' if name == 'float32' else 'autocast'}"
        return self(PRECISION, change, lambda: self.under(in_precision(self.half, name), read), shrinks=3.0)


def move_columns(values: Tensor, known: Tensor, by: int) -> Tensor:
    """(n, t) with every known value `by` columns later; NaN where none came from."""
    moved = values.masked_fill(~known, torch.nan).roll(by, 1)
    moved[:, slice(by) if by > 0 else slice(by, None)] = torch.nan
    return moved
