"""Teachers: adapters beside the one that trains, each for the prompts that name it (DiffusionOPD, arXiv:2605.15055)."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool
from safetensors import safe_open
from torch import Tensor

from mmrl.policies.flow.adapters import adapter_file, load_adapter
from mmrl.policies.flow.families.base import FlowFamily, Pipeline, networks_of
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.settings import TeacherSettings
from mmrl.policies.flow.trace import FlowTrace
from mmrl.policies.shared.lora import adapter_layers, with_adapter
from mmrl.policies.shared.teachers import TEACHER, adapter_of, beside_the_trained
from mmrl.runtime.pretrained import readable

Read = Callable[[Bool[Tensor, "n t"], float | None], dict[str, Tensor]]
"""Quantities of the actions in a mask, under the adapter that is active, with a guidance."""


def add_teachers(pipeline: Pipeline, family: type[FlowFamily], teachers: Sequence[TeacherSettings]) -> None:
    """Load the adapters of teachers, in float32 and frozen, beside the one that trains, which stays the active one.

    Raises FileNotFoundError for an adapter that is not there, ValueError for one that is broken, not whole or of another model.
    """
    if not teachers:
        return
    for name, network in networks_of(pipeline, family).items():
        with beside_the_trained(network):
            for number, one in enumerate(teachers):
                load_adapter(pipeline, family, one.adapter, name, adapter_of(number), f"policy.teachers.{number}.adapter")


def teacher_bytes(teachers: Sequence[TeacherSettings], networks: Sequence[str]) -> int:
    """Bytes that the adapters of teachers take in memory, read from their files' headers; `networks` are those that train.

    Raises FileNotFoundError for an adapter that is not there.
    """
    total = 0
    for number, one in enumerate(teachers):
        key = f"policy.teachers.{number}.adapter"
        for file in (adapter_file(one.adapter, "" if name == networks[0] else name, key) for name in networks):
            with readable(f"{key} {one.adapter!r}", str(file)), safe_open(file, "pt") as saved:
                shapes = [saved.get_slice(name).get_shape() for name in saved.keys()]  # noqa: SIM118 - it is no mapping
            total += 4 * sum(map(math.prod, shapes))
    return total


def read_teachers(
    host: FlowHost, trace: FlowTrace, mask: Bool[Tensor, "n t"], guidance: float | None, read: Read
) -> dict[str, Tensor]:
    """Quantities under the teacher of every row, with its own guidance or else this one; without a gradient.

    Raises ValueError for rows without a teacher.
    """
    if bool((mask.any(1) & (trace.teachers < 0)).any()):
        raise ValueError(f"rows are read under the model {TEACHER!r}, and prompts of theirs name none of policy.teachers")
    layers, found = adapter_layers(host.net.modules()), dict[str, Tensor]()
    for number, one in enumerate(host.config.teachers):
        # Every process reads under every teacher, whether or not it has rows of it.
        with with_adapter(layers, adapter_of(number)), torch.no_grad():
            own = read(mask & (trace.teachers == number)[:, None], guidance if one.guidance is None else one.guidance)
        found = {name: found[name] + value if name in found else value for name, value in own.items()}
    return found
