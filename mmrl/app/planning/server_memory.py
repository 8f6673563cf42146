"""Bytes of a card that an engine's server takes from the trainer beside it."""

from dataclasses import replace

import torch

from mmrl.app.config.run import RunConfig
from mmrl.app.planning.memory import CONTEXT, Memory, size_text
from mmrl.policies.text.engine_settings import EngineConfig
from mmrl.policies.text.settings import TextPolicyConfig

SERVER, SERVER_WRITES = "the engine's server", "the engine's server writes"
"""What stays, and the phase of one that sleeps otherwise."""
SMALL_CACHE_MB = 1024


def engine_beside(config: RunConfig) -> EngineConfig | None:
    """The engine whose server lies on the trainer's card, if there is one; `mmrl launch` gives servers cards of their own."""
    engine = config.policy.engine if isinstance(config.policy, TextPolicyConfig) else None
    return engine if engine is not None and engine.shares_card and not config.cluster.engines else None


def server_bytes(parameters: int, config: RunConfig, engine: EngineConfig, card: int) -> int:
    """Bytes of such a server, which holds the model whole, whatever the policy's weights rest in.

    Raises ValueError where its part of a card does not hold the model.
    """
    dtype = config.policy.dtype if engine.dtype == "auto" else engine.dtype
    model = parameters * getattr(torch, dtype).itemsize
    if engine.cache_mb:
        return model + CONTEXT + (engine.cache_mb << 20)
    held = int(engine.memory_share * card)
    if held < model + CONTEXT:
        raise ValueError(
            f"policy.engine.memory_share is {engine.memory_share:g}, which gives the server {size_text(held)} of the card, and "
            f"{config.policy.model} takes {size_text(model)} there in {dtype}, with {size_text(CONTEXT)} for CUDA: raise it, or "
            'give the server another card (policy.engine.devices = "1")'
        )
    return held


def add_server(memory: Memory, config: RunConfig, card: int | None) -> Memory:
    """The memory of a process on a card of this size in bytes, with the server that shares it. Raises as `server_bytes`."""
    engine = engine_beside(config)
    if engine is None or card is None:
        return memory
    held = server_bytes(memory.parameters, config, engine, card)
    if engine.sleep:
        return replace(memory, phases={**memory.phases, SERVER_WRITES: held})
    return replace(memory, stays={**memory.stays, SERVER: held})


def without_server(memory: Memory) -> Memory:
    """The same without it."""
    stays = {name: size for name, size in memory.stays.items() if name != SERVER}
    return replace(memory, stays=stays, phases={name: size for name, size in memory.phases.items() if name != SERVER_WRITES})
