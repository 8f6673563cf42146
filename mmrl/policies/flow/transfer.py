"""Between the host's memory and the device's: latents that a trace keeps, and embeddings that forwards share."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mmrl.policies.flow.families.base import Condition
from mmrl.runtime.tensors import to_device


def send_home(x: Tensor) -> Tensor:
    """The tensor in the host's memory, which CUDA writes while other work goes on: wait for the device before reading it."""
    if x.device.type != "cuda" or not torch.cuda.is_available():
        return x.cpu()
    home = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    return home.copy_(x, non_blocking=True)


class Uploads:
    """The embeddings of prompts on the network's device, each sent there once between two calls of `clear`."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[Condition, Condition]] = {}
        """By `id`: the embeddings, kept alive so that no other object gets their id, and their copy."""

    def clear(self) -> None:
        """Free the copies, before other prompts come."""
        self.sent.clear()

    def __call__(self, conditions: Sequence[Condition], device: torch.device) -> list[Condition]:
        """The same embeddings on this device."""
        if device.type == "cpu":
            return list(conditions)
        for condition in conditions:
            if id(condition) not in self.sent:
                self.sent[id(condition)] = condition, {name: to_device(value, device) for name, value in condition.items()}
        return [self.sent[id(condition)][1] for condition in conditions]


class LateCheck:
    """Questions to the device whose answers can wait: they are asked all at once at the end."""

    def __init__(self) -> None:
        self.bad: list[Tensor] = []
        self.explain: list[Callable[[list[int]], Exception]] = []

    def refuse(self, bad: Tensor, explain: Callable[[list[int]], Exception]) -> None:
        """Have `explain(places)` raised if any entry of `bad` is True."""
        self.bad.append(bad)
        self.explain.append(explain)

    def look(self) -> None:
        """Wait for the answers; raise the first error if there is one."""
        if not self.bad:
            return
        found = torch.cat(self.bad).tolist()
        start = 0
        for bad, explain in zip(self.bad, self.explain, strict=True):
            places = [i for i, is_bad in enumerate(found[start : start + len(bad)]) if is_bad]
            if places:
                raise explain(places)
            start += len(bad)
