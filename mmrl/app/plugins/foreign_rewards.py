"""Reward functions written for other trainers, unchanged: `use = "trl:./mine.py:fn"`, `use = "flow_grpo:./mine.py:fn"`.

Which trainer a function was written for is said, not guessed; one that looks foreign and says nothing is refused with the remedy.
Imports no torch before pictures are scored.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

from mmrl.app.plugins.resolve import PlugIn
from mmrl.core.samples import Group, Prompt, Scored
from mmrl.runtime.near import did_you_mean
from mmrl.runtime.pictures import open_upright
from mmrl.runtime.ranges import by_name
from mmrl.serving.media import pictures_of

STYLES = ("trl", "flow_grpo")
Answers = list[list[object]]


def split(use: str) -> tuple[str, str]:
    """Style and plug-in of a reward's `use`; the style of mmrl's own is empty."""
    style, colon, rest = use.partition(":")
    return (style, rest) if colon and style in STYLES else ("", use)


def adapt(style: str, function: PlugIn, settings: Mapping[str, Any], where: str) -> PlugIn:
    """The function as a reward, with the other keys of its table; a class for TRL is made an object first, with those it takes.

    Raises ValueError, naming the table, for an unknown key, or one that is missing.
    """
    if style == "flow_grpo":
        return FlowGrpoReward(*scorer_of(function, settings, where))
    taken = inspect.signature(function).parameters if inspect.isclass(function) else {}
    own = {key: value for key, value in settings.items() if key in taken}
    rest = {key: value for key, value in settings.items() if key not in taken}
    refuse_unknown(rest, ("conversational", "columns", *taken), where)
    refuse_gap(function, [*taken.values()], own, where)
    return TrlReward(cast(PlugIn, function(**own)) if inspect.isclass(function) else function, **rest)


def refuse_foreign(function: Any, use: str, where: str) -> None:
    """ValueError for a function that another trainer would call: it needs its prefix, or a wrapper."""
    if inspect.isclass(function):
        return
    names = list(inspect.signature(function).parameters)
    if "completions" in names:
        raise ValueError(f'{where}: {use} takes `completions` as TRL\'s rewards do: write use = "trl:{use}"')
    if names[:2] == ["images", "prompts"]:
        raise ValueError(f'{where}: {use} takes images, prompts, metadata as flow_grpo\'s do: write use = "flow_grpo:{use}"')
    if names in ([], ["device"]):
        raise ValueError(
            f"{where}: {use} takes {'a device' if names else 'nothing'} and no group: if it makes a scorer as flow_grpo's "
            f'functions do, write use = "flow_grpo:{use}"'
        )
    if "solution_str" in names or "reward_inputs" in names:
        raise ValueError(
            f"{where}: {use} is written for verl or EasyR1 (it takes {', '.join(names)}): wrap it in a function of a group, "
            "def mine(group): return [... for sample in group.samples]"
        )


@dataclass(frozen=True)
class TrlReward:
    """fn(prompts, completions, **columns) as TRL calls it: once per step, columns as lists with one entry per completion."""

    function: PlugIn
    conversational: bool = True
    """Prompts and completions as lists of messages, which TRL gives for chat data and for all data with pictures; False: as
    plain texts."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The function's name for a column -> ours: `{ solution = "answer" }`. `answer` is the prompt's ground truth."""

    def __call__(self, group: Group) -> object:
        return then(self.score_all([group]), itemgetter(0))

    def score_all(self, groups: Sequence[Group]) -> object:
        """Raises ValueError for a column the function needs and no prompt has."""
        pairs = [(group.prompt, sample) for group in groups for sample in group.samples]
        log = Log([{} for _ in pairs])
        given: dict[str, object] = {
            "prompts": [self._prompt(prompt) for prompt, _ in pairs],
            "completions": [self._completion(sample.text or "") for _, sample in pairs],
            "completion_ids": [list(sample.token_ids or ()) for _, sample in pairs],
            "log_extra": log.extra,
            "log_metric": log.metric,
            **self._columns([prompt for prompt, _ in pairs]),
        }
        parameters = inspect.signature(self.function).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            given = {name: value for name, value in given.items() if name in parameters}
        missing = [p.name for p in parameters.values() if p.default is p.empty and p.kind not in VARIADIC and p.name not in given]
        if missing:
            known = sorted({"answer", *(name for prompt, _ in pairs for name in prompt.columns)})
            raise ValueError(
                f"the function needs the column {missing[0]!r}, and the prompts have {', '.join(known)}: "
                f'name the one it means, columns = {{ {missing[0]} = "answer" }}'
            )
        try:
            outcome = self.function(**given)
        except (TypeError, AttributeError) as error:
            kind = "lists of messages" if self.conversational else "plain texts"
            other = str(not self.conversational).lower()
            raise type(error)(
                f"{error} (completions were given as {kind}; for the other kind set conversational = {other})"
            ) from error
        return then(outcome, lambda answers: by_group(groups, [log.with_parts(i, x) for i, x in enumerate(answers)]))

    def _prompt(self, prompt: Prompt) -> object:
        if not self.conversational:
            return prompt.text
        pictures: list[dict[str, object]] = [{"type": "image", "image": picture_at(media)} for media in prompt.media]
        content: object = [*pictures, {"type": "text", "text": prompt.text}] if pictures else prompt.text
        return [{"role": "user", "content": content}]

    def _completion(self, text: str) -> object:
        return [{"role": "assistant", "content": text}] if self.conversational else text

    def _columns(self, prompts: Sequence[Prompt]) -> dict[str, list[object]]:
        tables: list[dict[str, object]] = [{"answer": prompt.answer, **prompt.columns} for prompt in prompts]
        names = dict.fromkeys(name for table in tables for name in table)
        found = {name: [table.get(name) for table in tables] for name in names}
        for theirs, ours in self.columns.items():
            if ours not in found:
                raise ValueError(f"columns.{theirs} = {ours!r}, but the prompts have {', '.join(sorted(found))}")
            found[theirs] = found[ours]
        return found


@dataclass(frozen=True)
class FlowGrpoReward:
    """fn(images, prompts, metadata) as flow_grpo calls it: images (n, 3, h, w) from 0 to 1, metadata the prompts' columns."""

    function: PlugIn
    settings: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, group: Group) -> object:
        return then(self.score_all([group]), itemgetter(0))

    def score_all(self, groups: Sequence[Group]) -> object:
        """Raises ValueError for samples without pictures, or of different sizes."""
        prompts = [group.prompt for group in groups for _ in group.samples]
        metadata = [dict(prompt.columns) for prompt in prompts]
        outcome = self.function(image_tensor(groups), [prompt.text for prompt in prompts], metadata, **self.settings)
        return then(outcome, lambda answer: by_group(groups, scores_of(answer)))


VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


@dataclass
class Log:
    """The log that TRL hands a reward; its numbers become named parts."""

    parts: list[dict[str, float]]

    def metric(self, name: str, value: float) -> None:
        self.extra(name, [value] * len(self.parts))

    def extra(self, name: str, values: Sequence[object]) -> None:
        for parts, value in zip(self.parts, values, strict=True):
            if isinstance(value, int | float):
                parts[name] = float(value)

    def with_parts(self, i: int, answer: Any) -> object:
        own = self.parts[i] if i < len(self.parts) else {}
        if not own or isinstance(answer, Scored):
            return answer
        value, parts = by_name(answer)
        return Scored(value, {**parts, **own})


def scorer_of(function: PlugIn, settings: Mapping[str, object], where: str) -> tuple[PlugIn, dict[str, object]]:
    """The scorer and the settings it is called with; a function that takes no images makes it, as flow_grpo's do.

    Such a factory is given the keys it takes, and the process's device as its `device`; the scorer is given the others.
    Raises ValueError for an unknown key, or one that is missing.
    """
    parameters = inspect.signature(function).parameters
    if [*parameters][:1] == ["images"]:
        refuse_unknown(settings, [*parameters][3:], where)
        refuse_gap(function, [*parameters.values()][3:], settings, where)
        return function, dict(settings)
    own = {key: value for key, value in settings.items() if key in parameters}
    if "device" in parameters and "device" not in own and parameters["device"].default is inspect.Parameter.empty:
        own["device"] = process_device()
    refuse_gap(function, [*parameters.values()], own, where)
    scorer = function(**own)
    if not callable(scorer):
        raise ValueError(f"{where}: {function.__name__} takes no images and makes no scorer: it is not a reward of flow_grpo")
    rest = {key: value for key, value in settings.items() if key not in own}
    further = further_parameters(scorer)
    refuse_unknown(rest, [*parameters, *(p.name for p in further)], where)
    refuse_gap(function, further, rest, where)
    return scorer, rest


def further_parameters(scorer: Callable[..., object]) -> list[inspect.Parameter]:
    """The arguments of a scorer after images, prompts and metadata."""
    try:
        return [p for p in inspect.signature(scorer).parameters.values() if p.kind not in VARIADIC][3:]
    except (TypeError, ValueError):
        return []


def refuse_gap(function: PlugIn, parameters: Sequence[inspect.Parameter], given: Mapping[str, object], where: str) -> None:
    """ValueError for a parameter without a default that no key gives."""
    missing = [p.name for p in parameters if p.default is p.empty and p.kind not in VARIADIC and p.name not in given]
    if missing:
        raise ValueError(f"{where}: {function.__name__} needs {missing[0]!r}: set {missing[0]} = ... in the reward's table")


def process_device() -> Any:
    """The device that this process computes on."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return (
        torch.device("cpu") if accelerator is None else torch.device(accelerator.type, torch.accelerator.current_device_index())
    )


def refuse_unknown(settings: Mapping[str, object], known: Sequence[str], where: str) -> None:
    for key in settings:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}: {did_you_mean(key, list(known))}")


def scores_of(answer: object) -> Sequence[object]:
    """The scores of (scores, extras), of GenEval's five values, or bare; of a table of scores its `avg`, others as parts."""
    scores = answer[0] if isinstance(answer, tuple) else answer
    if not isinstance(scores, Mapping):
        return score_list(scores)
    columns: dict[str, list[Any]] = {name: score_list(values) for name, values in scores.items()}
    if "avg" not in columns:
        raise ValueError(f"the function answered scores named {', '.join(columns)} without `avg`, the one that counts")
    names = [name for name in columns if name != "avg"]
    return [Scored(value, {name: float(columns[name][i]) for name in names}) for i, value in enumerate(columns["avg"])]


def score_list(scores: Any) -> list[object]:
    return list(scores.tolist() if hasattr(scores, "tolist") else scores)


def image_tensor(groups: Sequence[Group]) -> Any:
    """The pictures of groups as one tensor."""
    import numpy as np
    import torch

    pictures = [picture for group in groups for picture in pictures_of(group)]
    sizes = {picture.size for picture in pictures}
    if len(sizes) > 1:
        raise ValueError(f"flow_grpo's rewards take pictures of one size, not {', '.join(map(str, sorted(sizes)))}")
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2).float() / 255


def by_group(groups: Sequence[Group], flat: Sequence[object]) -> Answers:
    """Answers of all samples, cut into groups; ValueError unless there is one per sample."""
    count = sum(len(group.samples) for group in groups)
    if len(flat) != count:
        raise ValueError(f"the function answered {len(flat)} values for {count} samples: it must return one per sample, in order")
    rest = iter(flat)
    return [list(islice(rest, len(group.samples))) for group in groups]


def then(outcome: object, read: Callable[[Any], object]) -> object:
    """`read` of the outcome, or of what it will be."""
    return later(outcome, read) if inspect.isawaitable(outcome) else read(outcome)


async def later(outcome: Awaitable[Any], read: Callable[[Any], object]) -> object:
    return read(await outcome)


def picture_at(media: object) -> object:
    """A picture, by path or of PIL, as everybody is shown it; other media as they are."""
    return open_upright(media) if isinstance(media, str | Path) or hasattr(media, "getbands") else media
