"""Runs that can be repeated bit for bit."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mmrl.runtime.repeating import bit_for_bit

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = (":4096:8", ":16:8")
"""With these, cuBLAS gives the same sums every time."""


@contextmanager
def deterministic(wanted: bool = True) -> Iterator[None]:
    """Let the same program on the same machine compute the same bits; to be entered before a GPU is used.

    PyTorch takes deterministic kernels and refuses operations that have none, cuBLAS gets a fixed workspace, cuDNN does not try
    out kernels, TF32 is off, and the CPU uses one thread, since sums depend on how they are split.

    Not promised: the same bits on other hardware, with other versions of packages or another number of processes, and nothing
    for rewards that answer from elsewhere or run out of time.

    Raises:
        ValueError: the GPU is in use already, without a fixed workspace.
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
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    flags = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = True, False, False, False
    try:
        with bit_for_bit():
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = flags
