"""Reasons why log-probabilities may differ, for any network, each with the reading under one change that would show it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmrl.core.protocols import Hypothesis
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts
from mmrl.policies.shared.compiled import PolicyNet, uncompiled
from mmrl.policies.shared.holding import holding
from mmrl.policies.shared.lora import adapter_layers, casting_layers, scale_adapters, switch_adapters
from mmrl.policies.shared.weights import Weights

Read = Callable[[], Tensor]
RANDOM = 0.05
"""Readings that are further apart than this are random, and not only rounded otherwise."""
FITS, STARTS, LARGEST, FAR = 12, (0.0, math.log(2), -math.log(2)), 3.0, 1e6
"""Of a factor that is fitted: readings, and in its logarithm the first ones and the end; the error of what cannot be read."""
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@contextmanager
def without_dropout(net: nn.Module) -> Iterator[None]:
    """A block in which every module is in evaluation mode and nothing is dropped."""
    modules, nothing = list(net.modules()), holding([nn.functional], "dropout", lambda x, *args, **kwargs: x)
    dropping = [module for module in modules if isinstance(module, nn.modules.dropout._DropoutNd)]
    with holding(modules, "training", False), holding(dropping, "p", 0.0), nothing:
        yield


@contextmanager
def in_precision(net: PolicyNet, name: str) -> Iterator[None]:
    """A block in which `net` computes under autocast to this dtype; in float32 without autocast and without TF32."""
    matmul, is_whole = torch.get_float32_matmul_precision(), name == "float32"
    # Without autocast nothing else brings bfloat16 to the adapters' float32.
    casts = holding(casting_layers(net.modules()), "cast_input_dtype_enabled", True)
    if is_whole:
        torch.set_float32_matmul_precision("highest")
    cast = torch.autocast(net.device.type, PRECISIONS["bfloat16" if is_whole else name], enabled=not is_whole)
    convolutions = holding([torch.backends.cudnn] if is_whole else [], "allow_tf32", False)
    try:
        with holding([net], "half_precision", False), casts, convolutions, cast:
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)


def distance(one: Tensor, two: Tensor, noted: Tensor, mask: Tensor) -> float:
    """How far two readings are apart, over how far the first is from what was noted."""
    known = mask & noted.isfinite() & one.isfinite()
    gap = torch.where(known, (one - noted).abs(), 0.0).max()
    return float(torch.where(known, (one - two).abs(), 0.0).max() / gap.clamp(min=1e-12))


def nearest_reading(readings: Sequence[Read], noted: Tensor, mask: Tensor) -> Tensor:
    """(n, t): every row from the reading that is nearest to what was noted of it."""
    values = torch.stack([read() for read in readings])
    known = mask & noted.isfinite()
    gaps = torch.where(known, (values - noted).abs().nan_to_num(torch.inf, torch.inf), 0.0).amax(2)
    return values[gaps.argmin(0), torch.arange(len(noted))]


def fit_reading(read_at: Callable[[float], Tensor], noted: Tensor, mask: Tensor) -> tuple[float, Tensor]:
    """The factor under which readings come nearest to what was noted, and that reading; 1 changes nothing.

    Gauss-Newton in the factor's logarithm, whose slopes are those between two readings; FITS readings, whatever they give.
    """
    known = mask & noted.isfinite()

    def off(place: float) -> tuple[Tensor, Tensor]:
        values = read_at(math.exp(place))
        return values, (values - noted)[known].double().nan_to_num(FAR, FAR, -FAR)

    (place, (values, error)), *others = sorted(((start, off(start)) for start in STARTS), key=lambda one: float(one[1][1].norm()))
    there, (_, left) = others[0]
    for _ in range(FITS - len(STARTS)):
        slope = (left - error) / (there - place or 1.0)
        wanted = -float(error @ slope) / max(float(slope @ slope), 1e-30)
        there = min(max(place + math.copysign(min(max(abs(wanted), 1e-7), 1.0), wanted), -LARGEST), LARGEST)
        moved, left = off(there)
        if float(left.norm()) < float(error.norm()):
            place, there, values, error, left = there, place, moved, left, error
    return math.exp(place), values


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

    net: PolicyNet
    weights: Weights
    rollouts: Rollouts
    read: Read
    """As the policy reads the rows."""
    remedies: Mapping[str, str]

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
        net, own = self.net, "bfloat16" if self.net.half_precision else "float32"
        yield self(REPEAT, "with nothing changed", self.read, control=True)
        if net.compiled:
            change = "with its blocks as they are written"
            yield self(COMPILED, change, lambda: self.under(uncompiled(net.compiled)), must_equal="reading")
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
        drops = nn.modules.dropout._DropoutNd
        if dropping := [name for name, module in self.net.named_modules() if isinstance(module, drops) and module.p > 0]:
            what = f"{len(dropping)} layers drop something in training mode, such as {dropping[0]}; loading leaves none"
            yield self(DROPOUT, what, None)

    def of_columns(self, read: Read, known: Bool[Tensor, "n t"]) -> Iterator[Hypothesis]:
        """Columns that shifted against each other; `read` reads all that are `known`."""
        for by in SHIFTS:
            yield self(SHIFT, f"with columns moved by {by:+d}", lambda by=by: move_columns(read(), known, by))

    def rounding(self, name: str, read: Read) -> Hypothesis:
        """Rounding to this dtype."""
        change = f"in {name} {'without autocast' if name == 'float32' else 'autocast'}"
        return self(PRECISION, change, lambda: self.under(in_precision(self.net, name), read), shrinks=3.0)


def move_columns(values: Tensor, known: Tensor, by: int) -> Tensor:
    """(n, t) with every known value `by` columns later; NaN where none came from."""
    moved = values.masked_fill(~known, torch.nan).roll(by, 1)
    moved[:, slice(by) if by > 0 else slice(by, None)] = torch.nan
    return moved
