"""The same bits every time, on a CPU."""

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def bit_for_bit() -> Generator[None]:
    """Let PyTorch compute the same bits from the same numbers, whatever OMP_NUM_THREADS says.

    One thread works, for sums depend on how they are shared out; gradients that several threads add up in one place
    (`index_put` with accumulation) differ from run to run even with a fixed number of them. Operations that have no repeatable
    kernel are refused.
    """
    before, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_num_threads(threads)
