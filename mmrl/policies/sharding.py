"""What weights spread over several processes need beyond accelerate."""

from typing import Any

from torch import nn


def reshard(net: nn.Module) -> None:
    """Sharded modules keep weights gathered from a forward to its backward pass; the optimizer and shadows write to shards."""
    modules: list[Any] = [module for module in net.modules() if hasattr(module, "reshard")]
    for module in modules:
        module.reshard()
