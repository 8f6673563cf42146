"""Memory that the models inside rewards take beside the policy, as far as rewards say which models they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mmrl.app.config.plug_ins import has_reward, reward_of
from mmrl.app.config.run import Resolved, WatchedReward
from mmrl.app.planning.memory import Memory
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins import resolve as plugins
from mmrl.app.plugins.python_objects import PREFIX
from mmrl.app.plugins.resolve import shipped_folder
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.serving.reward_client import is_url
from mmrl.serving.sizes import HoldsModels, ModelSize

HALF, WHOLE = 2, 4
"""Bytes of a number on a card and elsewhere, as `mmrl.serving.models.hold` keeps them."""


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

    Args:
        on_card: rewards whose device is auto are on a card.
    """
    config, table = resolved.config, resolved.table
    listed = [(("reward", str(i)), one) for i, one in enumerate(config.reward)]
    listed += [(("evaluation", "reward", str(i)), one) for i, one in enumerate(config.evaluation.reward)]
    held, unknown = dict[tuple[str, str], tuple[str, ModelSize]](), list[str]()
    for path, reward in listed:
        sizes, hidden = held_by(reward.use, reward.args, path, table)
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


def label_of(reward: WatchedReward) -> str:
    return f"reward {reward.label}"


def held_by(use: str, args: Mapping[str, object], path: KeyPath, table: Table) -> tuple[Sequence[ModelSize], list[str]]:
    """The models that a reward and the rewards inside it hold, and phrases about those that nobody knows."""
    inside = {key: value for key, value in args.items() if has_reward(value)}
    sizes, unknown = list[ModelSize](), list[str]()
    for key, value in inside.items():
        for name, own in tables_with_use(value):
            more, hidden = held_by(name, own, (*path, key), table)
            sizes += more
            unknown += hidden
    if is_url(use):
        return sizes, unknown
    style, plug_in = adapters.split(use)
    function = plugins.load(plug_in, "rewards")
    if not style and isinstance(function, type) and hasattr(function, "models"):
        made = reward_of(use, {key: value for key, value in args.items() if key not in inside}, path, table)()
        if isinstance(made, HoldsModels):
            sizes += made.models()
    elif not is_shipped(plug_in):
        unknown.append(f"what {use} may load, which does not say so (a method `models`)")
    return sizes, unknown


def tables_with_use(value: object) -> list[tuple[str, Mapping[str, object]]]:
    """Name and settings of every reward in a setting, at any depth; those inside of these come by themselves."""
    if isinstance(value, Mapping) and isinstance(value.get("use"), str):
        return [(value["use"], {key: item for key, item in value.items() if key != "use"})]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [found for item in items for found in tables_with_use(item)]


def is_shipped(plug_in: str) -> bool:
    """Does a reward come with mmrl? Those that hold models say so."""
    return not plug_in.startswith(PREFIX) and plugins.locate(plug_in, "rewards")[0].parent == shipped_folder("rewards").resolve()


def add_rewards(memory: Memory, rewards: RewardMemory) -> Memory:
    """The memory of a process whose rewards hold models, too."""
    return replace(memory, stays={**memory.stays, **rewards.stays}, host={**memory.host, **rewards.host})
