"""The models that a config's rewards say they will hold, rewards inside rewards too; none of them is loaded."""

from collections.abc import Mapping, Sequence

from mmrl.app.config.needed_rewards import rewards_in
from mmrl.app.config.plug_ins import reward_of
from mmrl.app.plugins import foreign_rewards as adapters
from mmrl.app.plugins import resolve as plugins
from mmrl.app.plugins.python_objects import PREFIX
from mmrl.app.plugins.resolve import shipped_folder
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.serving.reward_client import is_url
from mmrl.serving.scorers.sizes import HoldsModels, ModelSize


def models_of(use: str, args: Mapping[str, object], path: KeyPath, table: Table) -> tuple[Sequence[ModelSize], list[str]]:
    """The models that a reward and the rewards inside it hold, and phrases about those that are unknown."""
    inside = {key: found for key, value in args.items() if (found := rewards_in(value))}
    sizes, unknown = list[ModelSize](), list[str]()
    for key, found in inside.items():
        for name, own in found:
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


def is_shipped(plug_in: str) -> bool:
    """Does a reward come with mmrl? Those that hold models say so."""
    return not plug_in.startswith(PREFIX) and plugins.locate(plug_in, "rewards")[0].parent == shipped_folder("rewards").resolve()
