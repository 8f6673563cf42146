"""Programs that can be repeated bit for bit."""

import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = (":4096:8", ":16:8")
"""With these, cuBLAS gives the same sums every time."""
REFUSED = re.compile(r"(\S+) does not have a deterministic implementation")
"""How PyTorch says that it has no repeatable kernel."""


@dataclass(frozen=True)
class Kernels:
    """Which kernels a process computes with; another one that takes the same computes the same sums."""

    strict: bool
    """Operations without a repeatable kernel are refused."""
    threads: int
    fixed: bool
    """cuDNN takes repeatable kernels."""
    tries: bool
    """cuDNN tries out which kernel is fastest."""
    short: tuple[bool, bool]
    """cuDNN and cuBLAS round float32 to TF32, which leaves 10 bits of its 23."""

    @classmethod
    def now(cls) -> "Kernels":
        cudnn: Any = torch.backends.cudnn
        short = bool(cudnn.allow_tf32), bool(torch.backends.cuda.matmul.allow_tf32)
        strict, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
        return cls(strict, threads, cudnn.deterministic, cudnn.benchmark, short)

    def take(self) -> None:
        """Let this process compute with them."""
        cudnn: Any = torch.backends.cudnn
        torch.use_deterministic_algorithms(self.strict)
        torch.set_num_threads(self.threads)
        cudnn.deterministic, cudnn.benchmark = self.fixed, self.tries
        cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = self.short

    @contextmanager
    def taken(self) -> Generator[None]:
        """A block that computes with them."""
        before = Kernels.now()
        self.take()
        try:
            yield
        finally:
            before.take()


@contextmanager
def bit_for_bit() -> Generator[None]:
    """Let PyTorch compute the same bits on a CPU from the same numbers, whatever OMP_NUM_THREADS says.

    One thread works, for sums depend on how they are shared out; gradients that several threads add up in one place
    (`index_put` with accumulation) differ from run to run even with a fixed number of them. Operations that have no repeatable
    kernel are refused.
    """
    with replace(Kernels.now(), strict=True, threads=1).taken():
        yield


@contextmanager
def deterministic(wanted: bool = True) -> Iterator[None]:
    """Let the same program on the same machine compute the same bits; to be entered before a GPU is used.

    PyTorch takes deterministic kernels and refuses operations that have none, cuBLAS gets a fixed workspace, cuDNN does not try
    out kernels, TF32 is off, and the CPU uses one thread, since sums depend on how they are split.

    Not promised: the same bits on other hardware, with other versions of packages or another number of processes, and nothing
    for rewards that answer from elsewhere or run out of time.

    Raises:
        ValueError: the GPU is in use already, without a fixed workspace; or the block needed an operation without a repeatable
            kernel on its device (that of GLM-4.1V's position embeddings has none on GPUs where the vision tower trains).
    """
    if not wanted:
        yield
        return
    if os.environ.get(WORKSPACE) not in FIXED:
        if torch.cuda.is_initialized():
            raise ValueError(
                f"deterministic = true must come before the GPU is used: set {WORKSPACE}={FIXED[0]} in the environment"
            )
        os.environ[WORKSPACE] = FIXED[0]
    try:
        with Kernels(strict=True, threads=1, fixed=True, tries=False, short=(False, False)).taken():
            yield
    except RuntimeError as error:
        if (found := REFUSED.search(str(error))) is None:
            raise
        raise ValueError(
            f"deterministic = true, and {found[1]}, which this model needs, has no repeatable kernel on this device: set "
            "deterministic = false, or train without the part that needs it (policy.freeze, policy.lora)"
        ) from error
