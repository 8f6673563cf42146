"""The arguments of `mmrl.fit` and `mmrl.evaluate` as the tables of a config; what has no name there is lent to it by name."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.config.algorithm import Assembly, algorithm_table, as_plain, presets
from mmrl.app.config.slots import SLOTS, kinds
from mmrl.app.config.tasks import parse_reward
from mmrl.app.modality.registry import MODALITIES, PolicyConfig, modality_of
from mmrl.app.plugins.foreign_rewards import STYLES
from mmrl.app.plugins.lab import TINY, small_models
from mmrl.app.plugins.resolve import PREFIX
from mmrl.app.toml.tables import Values
from mmrl.core.samples import Prompt
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.settings import TextPolicyConfig

PolicyInput = str | Path | Mapping[str, object] | TextPolicyConfig | FlowPolicyConfig
"""A folder, a name on the hub, `tiny:<family>`, a `[policy]` table, or its settings as an object."""
AlgorithmInput = str | Mapping[str, object] | Algorithm
"""A preset's name, an `[algorithm]` table, or an algorithm made in Python."""
RewardInput = str | Mapping[str, object] | Callable[..., object]
"""`"iou"`, `"iou=0.5"`, `"./mine.py:short"`, a `[[reward]]` table whose `use` may be a function, or a function."""
PromptsInput = str | Mapping[str, object] | Iterable[Prompt] | Iterable[str]
"""Prompts, texts (for image generators), the name of a data set, or a `[data]` table."""


@dataclass
class Lent:
    """Python objects by the names that the config calls them."""

    objects: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def lend(self, function: Callable[..., Any], name: str) -> str:
        """The word of `use` for this object; a second one of the same name gets a number."""
        name = re.sub(r"\W+", "_", name).strip("_") or "object"
        number, free = 1, name
        while free in self.objects:
            number += 1
            free = f"{name}_{number}"
        self.objects[free] = function
        return PREFIX + free

    def reward(self, reward: object) -> Values:
        """A `[[reward]]` table; TypeError for no reward, ValueError for another trainer's function that does not say so."""
        if isinstance(reward, str):
            return parse_reward(reward)
        given: Values = dict(reward) if isinstance(reward, Mapping) else {"use": reward}
        use, style = given.get("use"), given.pop("style", "")
        if style and style not in STYLES:
            raise ValueError(f"style of the reward {use!r} is {style!r}: choose one of {', '.join(STYLES)}")
        prefix = f"{style}:" if style else ""
        if callable(use):
            given["use"] = prefix + self.lend(use, name_of(use))
        elif isinstance(use, str):
            given["use"] = prefix + use
        else:
            raise TypeError(
                f"a reward is {reward!r}: give a function of a group, a name from `mmrl ls rewards`, or a table with `use`"
            )
        return {key: as_plain(value) for key, value in given.items()}

    def data(self, prompts: PromptsInput, name: str) -> Values:
        """A `[data]` table; TypeError if among the prompts is something else, ValueError if there are none."""
        if isinstance(prompts, str):
            return {"use": prompts}
        if isinstance(prompts, Mapping):
            return {str(key): as_plain(value) for key, value in prompts.items()}
        # a sequence that makes its prompts when they are looked at, as data sets do, is left as it is
        is_lazy = isinstance(prompts, Sequence) and not isinstance(prompts, list | tuple)
        own = prompts if is_lazy else as_prompts(prompts, name)
        return {"use": self.lend(lambda: own, name)}

    def algorithm(self, algorithm: AlgorithmInput) -> Values:
        """An `[algorithm]` table: the preset's name, or every part of one made in Python."""
        if isinstance(algorithm, str):
            return {"preset": algorithm}
        if isinstance(algorithm, Mapping):
            return {key: as_plain(value) for key, value in algorithm.items()}
        name = nearest_preset(algorithm)
        if presets()[name] == algorithm:
            return {"preset": name}
        return algorithm_table(Assembly(name, algorithm, "", self.own_parts(algorithm)))

    def own_parts(self, algorithm: Algorithm) -> dict[str, str]:
        """Place -> `python:<class>` of the parts that mmrl does not ship."""
        found: dict[str, str] = {}
        for f in fields(algorithm):
            if f.name not in SLOTS:
                continue
            value = getattr(algorithm, f.name)
            parts = [item[1] if isinstance(item, tuple) else item for item in value] if isinstance(value, tuple) else value
            many = isinstance(parts, list)
            for i, part in enumerate(parts if many else [parts]):
                if part is not None and kinds(f.name).get(type(part).__name__) is not type(part):
                    made = type(part) if is_dataclass(part) else part
                    path = f"algorithm.{f.name}.{i}" if many else f"algorithm.{f.name}"
                    found[path] = self.lend(made, name_of(made))
        return found


def nearest_preset(algorithm: Algorithm) -> str:
    """The preset that differs in the fewest fields; one whose empty slots are empty here too, for tables cannot empty a slot."""

    def distance(preset: Algorithm) -> tuple[bool, int]:
        pairs = [(getattr(preset, f.name), getattr(algorithm, f.name)) for f in fields(algorithm)]
        return any((a is None) != (b is None) for a, b in pairs), sum(a != b for a, b in pairs)

    return min(presets(), key=lambda name: distance(presets()[name]))


def as_prompts(prompts: Iterable[object], name: str) -> list[Prompt]:
    """Prompts as they are, texts as prompts of that text, numbered."""
    found: list[Prompt] = []
    for i, item in enumerate(prompts):
        if not isinstance(item, Prompt | str):
            raise TypeError(f"{name}[{i}] is {type(item).__name__}: give mmrl.Prompt objects, or texts")
        found.append(Prompt(str(i), item) if isinstance(item, str) else item)
    if not found:
        raise ValueError(f"{name} is empty: give at least one mmrl.Prompt")
    return found


def name_of(thing: object) -> str:
    """The name of a function or class, or of an object's class; of a lambda, `reward`."""
    name = str(getattr(thing, "__name__", type(thing).__name__))
    return "reward" if name == "<lambda>" else name


def policy_table(policy: PolicyInput, usual_kind: str) -> Values:
    """A `[policy]` table; a name alone is a model of `usual_kind`."""
    if isinstance(policy, Mapping):
        return {"kind": usual_kind} | {key: as_plain(value) for key, value in policy.items()}
    if isinstance(policy, PolicyConfig):
        return {"kind": modality_of(policy).name} | as_plain(policy)
    return {"kind": usual_kind, "model": str(policy)}


def kind_for(algorithm: AlgorithmInput) -> str:
    """The kind of policy that an algorithm is for: those with a schedule of denoising steps are for image generators."""
    if isinstance(algorithm, Algorithm):
        return "text" if algorithm.schedule is None else "flow"
    table = {"preset": algorithm} if isinstance(algorithm, str) else algorithm
    known = presets().get(str(table.get("preset", "grpo")))
    return "flow" if "schedule" in table or (known is not None and known.schedule is not None) else "text"


def kind_of_model(policy: PolicyInput) -> str:
    """The kind by the folder's index file or the tiny family; names on the hub, and what may be several, count as text."""
    name = str(policy)
    if name.startswith(TINY):
        return small_models().kind_of(name.removeprefix(TINY)) or "text"
    found = [kind for kind, modality in MODALITIES.items() if (Path(name).expanduser() / modality.index_file).is_file()]
    return "flow" if "flow" in found else "text"


def merge(table: Values, more: Mapping[str, object]) -> Values:
    """Tables inside tables laid over each other; `more` wins."""
    merged = dict(table)
    for key, value in more.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else as_plain(value)
    return merged
