"""Reasons for other log-probabilities that hold for any network, each with the reading that would show it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from mmrl.core.protocols import Hypothesis
from mmrl.policies.shared.interventions import RANDOM, Read, dropout_layers
from mmrl.policies.shared.lora import adapter_layers, switch_adapters

REPEAT, DROPOUT, SHIFT = "reading is not repeatable", "dropout or training mode", "mask shift"
PRECISION, BATCH, WEIGHTS = "precision (dtype or autocast)", "batch-size dependence", "EMA or adapter state"
CALM = "Set every dropout of the network to 0 and keep it in evaluation mode while sampling and reading"
LIVE = "Sample with the live weights: put averaged, reference or switched-off ones back before reading, and update copies"


def repetition(read: Read) -> Hypothesis:
    """The control: the same rows, read again."""
    remedy = "Look for code around policy.read that changes what it is asked or answers"
    return Hypothesis(REPEAT, "with nothing changed", remedy, read, control=True)


def dropout(read: Read, noise: Callable[[], tuple[float, float]]) -> Iterator[Hypothesis]:
    """Dropout, by a reading without it and by how far two readings are apart.

    Args:
        read: in evaluation mode and with every dropout off.
        noise: how far readings are apart that nothing was changed for, and those with every dropout off.
    """
    yield Hypothesis(DROPOUT, "in evaluation mode and with every dropout off", CALM, read)
    moves, still = noise()
    if moves > RANDOM and still <= RANDOM:
        yield Hypothesis(DROPOUT, "two readings of the same rows differ; with every dropout off they do not", CALM)


def layers_that_drop(net: nn.Module) -> Iterator[Hypothesis]:
    """The fact that a layer would drop something in training mode."""
    dropping = dropout_layers(net)
    if dropping:
        what = f"{len(dropping)} layers drop something in training mode, such as {dropping[0]}; loading leaves none"
        yield Hypothesis(DROPOUT, what, CALM)


def precision(name: str, read: Read) -> Hypothesis:
    """Rounding to this dtype."""
    change = f"in {name} {'without autocast' if name == 'float32' else 'autocast'}"
    return Hypothesis(
        PRECISION, change, "Sample and train with the same policy.dtype, autocast and TF32 settings", read, shrinks=3.0
    )


def adapters(net: nn.Module, under: Callable[[AbstractContextManager[object]], Tensor]) -> Iterator[Hypothesis]:
    """Adapters switched off and on; `under` reads while something is changed."""
    for on in (False, True):
        change = f"with the adapter switched {'on' if on else 'off'}"
        yield Hypothesis(WEIGHTS, change, LIVE, lambda on=on: under(switch_adapters(adapter_layers(net.modules()), on)))


def move_columns(values: Tensor, known: Tensor, by: int) -> Tensor:
    """(n, t) with every known value `by` columns later; NaN where none came from."""
    moved = values.masked_fill(~known, torch.nan).roll(by, 1)
    moved[:, 0 if by > 0 else -1] = torch.nan
    return moved
