"""`policy.compile`: the blocks that a network repeats are compiled one by one, for any number of rows and tokens.

Text: readings and updates; a sampler's forwards have a cache that grows, so they stay as they are, unless completions share their
prompts in storage that does not: a token is one graph then. The ratio gate compares both. Generators: all forwards, as one that
draws and one that trains must round alike.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import TypeVar

import torch
from torch import nn

from mmrl.policies.shared.holding import holding
from mmrl.runtime.blame import refuse_where

log = logging.getLogger("mmrl")
VARIANTS = 64
"""Most programs of one kind of block: with adapters on and off, with gradients and without, by which inputs have some."""
T = TypeVar("T")


class PolicyNet(nn.Module):
    """The one module that every forward of a policy goes through."""

    half_precision: bool
    """Compute under autocast to bfloat16?"""
    compiled: Sequence[nn.Module] = ()
    """Its blocks that are compiled."""

    @property
    def device(self) -> torch.device:
        raise NotImplementedError

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.half_precision else nullcontext()


def blocks_of(parts: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """The entries of the outermost lists of modules, where these are made of others."""
    for part in parts:
        if isinstance(part, nn.ModuleList):
            yield from (one for one in part if any(one.children()))
        else:
            yield from blocks_of(part.children())


def compile_blocks(parts: Sequence[nn.Module], name: str) -> tuple[nn.Module, ...]:
    """Have the blocks of a network compiled when they are first called; ValueError where there are none."""
    blocks = tuple(blocks_of(parts))
    if not blocks:
        raise ValueError(f"policy.compile is true, and {name} repeats no blocks that could be compiled: leave it out")
    import torch._dynamo as dynamo

    # Beyond its limit dynamo computes as without it, or stops.
    dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, VARIANTS)
    for block in blocks:
        call = compiled(block._call_impl, type(block).__name__)
        block._compiled_call_impl = call  # type: ignore[assignment] - torch calls it so
    kinds = sorted({type(block).__name__ for block in blocks})
    log.info("policy.compile: %d blocks of %s (%s) are compiled at their first call", len(blocks), name, ", ".join(kinds))
    return blocks


def compiled(function: Callable[..., T], name: str, whole: bool = False) -> Callable[..., T]:
    """A function that is compiled for all sizes when it is first called; ValueError then where it is not, or not in one graph.

    whole: as one graph, in which two sizes that happen to be equal, as of prompts and heads, stay two.
    """
    from torch._dynamo.exc import TorchDynamoException
    from torch.fx.experimental import _config as shapes

    program = torch.compile(function, dynamic=True, fullgraph=whole)
    sizes = partial(shapes.patch, use_duck_shape=False) if whole else nullcontext  # type: ignore[attr-defined] - torch puts it there

    def call(*args: object, **kwargs: object) -> T:
        try:
            with sizes():
                return program(*args, **kwargs)
        except TorchDynamoException as error:
            said = str(error).strip().splitlines()[0][:200]
            raise ValueError(f"policy.compile is true, and {name} does not compile ({said}): leave it out") from error

    return call


def refuse_computed_twice(compiled: bool, twice: bool) -> None:
    """Raise ValueError for blocks that are compiled and computed again for the backward pass."""
    if compiled and twice:
        raise ValueError(
            "policy.compile is true, and policy.gradient_checkpointing computes blocks where nothing is compiled: leave one out"
        )


def uncompiled(blocks: Sequence[nn.Module]) -> AbstractContextManager[None]:
    """A block in which modules compute as they were written."""
    return holding(blocks, "_compiled_call_impl", None)


def as_written(forward: Callable[..., T], blocks: Sequence[nn.Module]) -> Callable[..., T]:
    """A forward whose blocks are not compiled."""

    def call(*args: object, **kwargs: object) -> T:
        with uncompiled(blocks):
            return forward(*args, **kwargs)

    return call


def refuse_uncompilable(device: torch.device | None, alone: bool, coded: bool) -> None:
    """Raise ValueError where nothing here can compile, weights rest in codes, or the process does not train `alone`."""
    kind = "cpu" if device is None else device.type
    compilers = [os.environ.get("CXX") or "g++", "clang++"] if kind == "cpu" else [os.environ.get("CC") or "gcc", "clang"]
    reasons = {
        "it is for one process, without FSDP and DeepSpeed, whose hooks compiled blocks may leave out: start one": not alone,
        "weights in 4 bits are decoded in steps of their own at every layer, which are not compiled: take whole weights": coded,
        f"torch compiles for CPUs and NVIDIA cards, and this run is on {kind!r}": kind not in ("cpu", "cuda"),
        f"there is no compiler here ({' or '.join(compilers)}): install one": not any(map(shutil.which, compilers)),
        "triton, which compiles for cards, is not installed: pip install triton": kind == "cuda" and not find_spec("triton"),
    }
    refuse_where("policy.compile is true, and ", reasons, ", or leave policy.compile out")
