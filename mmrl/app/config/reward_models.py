"""The models that a config's rewards say they will hold, rewards inside rewards too; none of them is loaded."""

from collections.abc import Mapping, Sequence

from mmrl.app.config.plug_ins import has_reward, reward_of
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins import resolve as plugins
from mmrl.app.plugins.python_objects import PREFIX
from mmrl.app.plugins.resolve import shipped_folder
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.serving.reward_client import is_url
from mmrl.serving.scorers.sizes import HoldsModels, ModelSize


def models_of(use: str, args: Mapping[str, object], path: KeyPath, table: Table) -> tuple[Sequence[ModelSize], list[str]]:
    """The models that a reward and the rewards inside it hold, and phrases about those that nobody knows."""
    inside = {key: value for key, value in args.items() if has_reward(value)}
    sizes, unknown = list[ModelSize](), list[str]()
    for key, value in inside.items():
        for name, own in tables_with_use(value):
            more, hidden = models_of(name, own, (*path, key), table)
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
