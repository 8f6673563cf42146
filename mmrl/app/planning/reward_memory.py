"""Memory of the models inside rewards, as far as rewards say which models they use."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mmrl.app.config.reward_models import models_of
from mmrl.app.config.run import Resolved, UnweightedReward
from mmrl.app.planning.memory import Memory
from mmrl.serving.scorers.sizes import ModelSize

HALF, WHOLE = 2, 4
"""Bytes of a number on a card and elsewhere, as `mmrl.serving.scorers.models.hold` keeps them."""


@dataclass(frozen=True)
class RewardMemory:
    """Bytes of models inside rewards, equal models counted once."""

    stays: Mapping[str, int] = field(default_factory=dict[str, int])
    """`reward pick_score: yuvalkirstain/PickScore_v1` -> bytes where the policy's weights lie."""
    host: Mapping[str, int] = field(default_factory=dict[str, int])
    """The same of those that a run with a card keeps in the memory of the host."""
    unknown: tuple[str, ...] = ()
    """Phrases about what is not counted, such as `./mine.py:short, which does not say what it holds`."""


def reward_memory(resolved: Resolved, on_card: bool) -> RewardMemory:
    """The memory of a run's rewards, to train on and to watch; none of their models is loaded.

    With `on_card`, rewards whose device is auto are on a card.
    """
    config, table = resolved.config, resolved.table
    listed = [(("reward", str(i)), one) for i, one in enumerate(config.reward)]
    listed += [(("evaluation", "reward", str(i)), one) for i, one in enumerate(config.evaluation.reward)]
    held, unknown = dict[tuple[str, str], tuple[str, ModelSize]](), list[str]()
    for path, reward in listed:
        sizes, hidden = models_of(reward.use, reward.args, path, table)
        unknown += hidden
        for size in sizes:
            held.setdefault((size.name, size.device), (label_of(reward), size))
    stays, host = dict[str, int](), dict[str, int]()
    for label, size in held.values():
        name = f"{label}: {size.name}"
        if size.weights is None:
            unknown.append(f"{size.name} of {label} ({size.why})")
        elif on_card and size.device.partition(":")[2] not in ("", "0"):
            unknown.append(f"{size.name} of {label}, on {size.device}")
        elif on_card and size.device != "cpu":
            stays[name] = HALF * size.weights
        else:
            host[name] = WHOLE * size.weights
    return RewardMemory(stays if on_card else {**stays, **host}, host if on_card else {}, tuple(dict.fromkeys(unknown)))


def label_of(reward: UnweightedReward) -> str:
    return f"reward {reward.label}"


def add_rewards(memory: Memory, rewards: RewardMemory) -> Memory:
    """The memory of a process whose rewards hold models, too."""
    return replace(memory, stays={**memory.stays, **rewards.stays}, host={**memory.host, **rewards.host})
