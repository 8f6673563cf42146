"""Several processes, as a policy sees them: wrapped modules, and what all processes must do equally often."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from mmrl.runtime.accelerator import is_sharded, zero_stage


@runtime_checkable
class Sharded(Protocol):
    """A module of FSDP2."""

    def reshard(self) -> None:
        """Keep only this process's part of the weights."""
        ...


def wrap_module(net: nn.Module, parameters: Iterable[nn.Parameter], accelerator: Any, dead_ends: bool = False) -> nn.Module:
    """The module as accelerate trains it on its processes; ValueError for ways to spread weights that mmrl cannot read through.

    Args:
        dead_ends: some of the parameters may never reach an output, and replicas must not wait for them.
    """
    refuse_unknown(accelerator)
    if zero_stage(accelerator):
        # Shares of the loss are divided by nothing, so this number, which DeepSpeed wants, has no effect.
        accelerator.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 1
        accelerator.deepspeed_engine_wrapped = None
    elif not is_sharded(accelerator):
        if dead_ends:
            from accelerate import DistributedDataParallelKwargs

            accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
        return accelerator.prepare(net)
    # accelerate shards a model only together with an optimizer; the real one is built on the sharded weights.
    return accelerator.prepare(net, torch.optim.SGD(parameters))[0]


def refuse_unknown(accelerator: Any) -> None:
    """Raise ValueError for ways to spread a model that would train something other than what was asked for."""
    kind = accelerator.distributed_type.value
    if kind == "DEEPSPEED":
        refuse_settings(accelerator.deepspeed_plugin.deepspeed_config)
    if kind in ("MEGATRON_LM", "TP", "XLA"):
        raise ValueError(f"mmrl does not train with accelerate's {kind}: start with configs/accelerate/ddp.yaml or fsdp2.yaml")
    if kind == "FSDP" and not accelerator.is_fsdp2:
        raise ValueError(
            "FSDP's first version melts weights together, so mmrl cannot tell which of them train: "
            "set fsdp_version: 2, as configs/accelerate/fsdp2.yaml does"
        )


def refuse_settings(config: Mapping[str, Any]) -> None:
    """Raise ValueError where DeepSpeed would do something other than mmrl's config says, or something that is not tested."""
    zero = config["zero_optimization"]
    if zero["stage"] not in (2, 3):
        raise ValueError(f"DeepSpeed was asked for ZeRO stage {zero['stage']}: mmrl trains with 2 and 3; below, take ddp.yaml")
    for name in ("offload_optimizer", "offload_param"):
        if (zero.get(name) or {}).get("device", "none") not in ("none", None):
            raise ValueError(f"DeepSpeed was asked for {name}, which takes another optimizer than the config's: leave it out")
    for name in ("fp16", "bf16"):
        if (config.get(name) or {}).get("enabled") is True:
            raise ValueError(f"DeepSpeed was asked for {name}, which config.toml would not know of: set policy.dtype instead")
    for name in ("optimizer", "scheduler"):
        if name in config:
            raise ValueError(f"DeepSpeed was given an {name} of its own: leave it out, mmrl's config has [optimizer]")


def reshard(net: nn.Module) -> None:
    """Sharded modules keep weights gathered from a forward to its backward pass; the optimizer and shadows write to shards."""
    for module in net.modules():
        if isinstance(module, Sharded):
            module.reshard()
    engines: list[Any] = [weight for weight in net.parameters() if hasattr(weight, "_z3_optimizer")][:1]
    for weight in engines:
        weight._z3_optimizer.empty_partition_cache()
