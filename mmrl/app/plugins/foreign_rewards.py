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
from typing import Any

from mmrl.answers.needs import Need
from mmrl.app.plugins.resolve import PREFIX, PlugIn
from mmrl.app.toml.reader import BY_NAME, instance, refuse_missing, settings
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.core.samples import Group, Prompt, Scored
from mmrl.runtime.blame import by_name
from mmrl.runtime.pictures import open_upright
from mmrl.serving.media import pictures_of

STYLES = ("trl", "flow_grpo")
Answers = list[list[object]]


def split(use: str) -> tuple[str, str]:
    """Style and plug-in of a reward's `use`; the style of mmrl's own is empty."""
    style, colon, rest = use.partition(":")
    return (style, rest) if colon and style in STYLES else ("", use)


def adapt(
    style: str, function: PlugIn, given: Mapping[str, object], path: KeyPath, table: Table, beside: Sequence[str] = ()
) -> PlugIn:
    """The function as a reward, with the other keys of its table; a class for TRL is made an object first, with those it takes.

    Raises ValueError, naming the table, for a key that is unknown, missing or of another type, and for no reward of this style.
    """
    if style == "flow_grpo":
        return FlowGrpoReward(*scorer_of(function, given, path, table, beside))
    is_class = inspect.isclass(function)
    taken = [p.name for p in inspect.signature(function).parameters.values() if p.kind in BY_NAME] if is_class else []
    own = {key: value for key, value in given.items() if key in taken}
    rest = {key: value for key, value in given.items() if key not in taken}
    asked = arguments_of(function, table.at(path))
    if not any(p.name in ("completions", "completion_ids") or p.kind is p.VAR_KEYWORD for p in asked):
        raise ValueError(
            f"{table.at(path)}: the reward takes {', '.join(p.name for p in asked)} and no `completions` as TRL's do: leave trl: "
            "out if it is one of a group"
        )
    values = settings(TrlReward, rest, path, table, skip=1, beside=[*beside, *taken])
    if is_class:
        refuse_missing(function, own, path, table)
        function = instance(function, own, path, table)
    return instance(TrlReward, {"function": function, **values}, path, table)


def arguments_of(function: PlugIn, where: str) -> list[inspect.Parameter]:
    """The arguments with which a function, or an object of a class, is called; ValueError where such objects cannot be."""
    if not inspect.isclass(function):
        return [*inspect.signature(function).parameters.values()]
    call = function.__call__
    if getattr(call, "__self__", None) is function and (call := getattr(function, "score_all", None)) is None:
        raise ValueError(
            f"{where}: objects of the class {function.__name__} cannot be called: write a method __call__ that scores"
        )
    return [*inspect.signature(call).parameters.values()][1:]


def refuse_foreign(function: PlugIn, use: str, where: str) -> None:
    """ValueError for what another trainer would call, which needs its prefix or a wrapper, or for what cannot be called."""
    names = [p.name for p in arguments_of(function, where)]
    style = "trl" if "completions" in names else "flow_grpo" if names[:2] == ["images", "prompts"] else ""
    write = f'give {{"use": ..., "style": "{style}"}}' if use.startswith(PREFIX) else f'write use = "{style}:{use}"'
    if style:
        raise ValueError(f"{where}: {use} takes {', '.join(names)} as rewards of {style} do: {write}")
    if names in ([], ["device"]) and not inspect.isclass(function):
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

    def __post_init__(self) -> None:
        # an object that remembers is saved with the run; a network's weights do not move
        memory = {name: getattr(self.function, name, None) for name in ("state_dict", "load_state_dict")}
        vars(self).update(memory if all(memory.values()) and not hasattr(self.function, "named_parameters") else {})
        if taken := sorted({*self.columns} & {*GIVEN}):
            raise ValueError(f"columns.{taken[0]} would take the place of what every reward for TRL is given: leave it out")

    @property
    def needs(self) -> Need:
        """The columns that it is given, each in one prompt at least: those without it give None."""
        seen, wanted = {"answer"}, self._wanted

        def reads(prompt: Prompt, reward: object, output: str) -> object:
            seen.update(prompt.columns)
            return prompt if wanted <= seen else None

        return Need(f'the columns {", ".join(sorted(wanted))} (or one of another name: columns = {{ theirs = "answer" }})', reads)

    @property
    def _wanted(self) -> set[str]:
        """Our names of the columns that the function cannot do without, or that somebody names."""
        parameters = inspect.signature(self.function).parameters.values()
        needed = {p.name for p in parameters if p.default is p.empty and p.kind not in VARIADIC} - {*GIVEN, *self.columns}
        return needed | {*self.columns.values()}

    def __call__(self, group: Group) -> object:
        return then(self.score_all([group]), itemgetter(0))

    def score_all(self, groups: Sequence[Group]) -> object:
        """Raises ValueError for a column the function needs and no prompt has."""
        pairs = [(group.prompt, sample) for group in groups for sample in group.samples]
        log = Log([{} for _ in pairs])
        tables: list[dict[str, object]] = [{"answer": prompt.answer, **prompt.columns} for prompt, _ in pairs]
        known = {name: name for table in tables for name in table}
        if missing := sorted(self._wanted - {*known}):
            theirs = next((theirs for theirs, ours in self.columns.items() if ours == missing[0]), missing[0])
            raise ValueError(
                f"the function needs the column {missing[0]!r}, and the prompts have {', '.join(sorted(known))}: "
                f'name the one it means, columns = {{ {theirs} = "answer" }}'
            )
        names = {**known, **self.columns}
        # a column of the data called as one of these is not what TRL gives, either
        given: Mapping[str, object] = {theirs: [table.get(ours) for table in tables] for theirs, ours in names.items()} | {
            "prompts": [self._prompt(prompt) for prompt, _ in pairs],
            "completions": [self._completion(sample.text or "") for _, sample in pairs],
            "completion_ids": [list(sample.token_ids or ()) for _, sample in pairs],
            "log_extra": log.extra,
            "log_metric": log.metric,
        }
        parameters = inspect.signature(self.function).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            given = {name: value for name, value in given.items() if name in parameters}
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


GIVEN = ("prompts", "completions", "completion_ids", "log_extra", "log_metric")
"""Arguments of a reward for TRL that are no columns."""
NUM_GIVEN = 3
"""Arguments of a reward for flow_grpo that it is always given: images, prompts and metadata."""
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


def scorer_of(
    function: PlugIn, given: Mapping[str, object], path: KeyPath, table: Table, beside: Sequence[str] = ()
) -> tuple[PlugIn, dict[str, object]]:
    """The scorer and the settings it is called with; a function that takes no images makes it, as flow_grpo's do.

    Such a factory is given the keys it takes, and the process's device as its `device`; the scorer is given the others.
    Raises ValueError for an unknown key, or one that is missing.
    """
    parameters, own, scorer = inspect.signature(function).parameters, dict[str, object](), function
    is_factory = [*parameters][:1] != ["images"]
    if is_factory:
        own = {key: value for key, value in given.items() if key in parameters}
        if "device" in parameters and "device" not in own and parameters["device"].default is inspect.Parameter.empty:
            own["device"] = process_device()
        refuse_missing(function, own, path, table)
        scorer = instance(function, own, path, table)
    if not callable(scorer):
        raise ValueError(f"{table.at(path)}: what takes no images makes a scorer in flow_grpo, and this makes {scorer!r}")
    rest = {key: value for key, value in given.items() if key not in own}
    rest = settings(scorer, rest, path, table, skip=NUM_GIVEN, beside=[*beside, *(parameters if is_factory else ())])
    refuse_missing(scorer, rest, path, table, NUM_GIVEN)
    return scorer, rest


def process_device() -> Any:
    """The device that this process computes on."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return (
        torch.device("cpu") if accelerator is None else torch.device(accelerator.type, torch.accelerator.current_device_index())
    )


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
