"""Teachers, as models that write and models that draw have them: which reads what, and adapters beside the one that trains."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings, filterwarnings

import torch
from jaxtyping import Int
from torch import Tensor

from mmrl.core.types import Prompt
from mmrl.policies.shared.lora import ADAPTER

TEACHER = "teacher"
"""The column of prompts that names their teacher, and the model of readings under it."""


def adapter_of(number: int) -> str:
    """How peft knows the teacher of this place in policy.teachers."""
    return f"teacher_{number}"


@contextmanager
def beside_the_trained(network: Any) -> Iterator[None]:
    """A block that loads adapters of teachers: they end up frozen and in float32, beside the one that trains and stays active."""
    trained = {key for key, weight in network.named_parameters() if weight.requires_grad}
    with catch_warnings():
        filterwarnings("ignore", "Already found a `peft_config`")  # one is there on purpose
        yield
    network.set_adapter(ADAPTER)
    for key, weight in network.named_parameters():
        weight.requires_grad_(key in trained)
        if "lora_" in key:
            weight.data = weight.data.float()
    network.eval()


def numbers_of(prompts: Sequence[Prompt], names: Sequence[str], alone: bool = False) -> Int[Tensor, " n"]:
    """The place of every prompt's teacher among these names; -1 of a prompt that names none of them.

    `alone`: a single teacher has all prompts that name nobody.
    """
    places: dict[object, int] = {name: i for i, name in enumerate(names)}
    if alone and len(names) == 1:
        places[None] = 0
    named = [prompt.columns.get(TEACHER) for prompt in prompts]
    return torch.tensor([places.get(None if name is None else str(name), -1) for name in named], dtype=torch.long)


def refuse_missing_teachers(prompts: Sequence[Prompt], names: Sequence[str], alone: bool = False) -> None:
    """Raise ValueError for a prompt that names none of the teachers."""
    lost = (numbers_of(prompts, names, alone) < 0).nonzero()[:, 0].tolist()
    if lost:
        named, known = prompts[lost[0]].columns.get(TEACHER), ", ".join(map(repr, names))
        what = f"has no column {TEACHER!r}" if named is None else f"names the teacher {named!r}"
        raise ValueError(
            f"prompt {prompts[lost[0]].id!r} {what} ({len(lost)} of {len(prompts)} prompts have none of policy.teachers): give "
            f"each one of {known} in the column {TEACHER!r}"
        )


def refuse_no_teachers(teachers: int, label: str, kind: str) -> None:
    """Raise ValueError where an algorithm follows teachers, and there are none; `kind`: what a table of one names."""
    if not teachers:
        raise ValueError(
            f"algorithm {label} follows teachers, and policy.teachers is empty: add a table [[policy.teachers]] with name and "
            f"{kind} for each"
        )
