"""Planners that show hints of the data, or of the policy itself: to groups in which all fail, or to half of every group."""

import json
import math
import re
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, cast

from mmrl.algorithms.beside import Beside, Parts
from mmrl.algorithms.planners.base import Once, Remembering, right_ones, seed_of
from mmrl.algorithms.planners.video import answer_text, finite
from mmrl.algorithms.views import Hint
from mmrl.core.protocols import State
from mmrl.core.types import Group, Prompt, Request, Revision, Shown
from mmrl.runtime.ranges import Count, Number, Range, Share, check_ranges

TrainView = Literal["plain", "same"]


def hints_of(prompt: Prompt, column: str) -> tuple[str, ...]:
    """The hints in a column, the weakest first: a text is one hint, a missing column none; ValueError for anything else."""
    found: Any = prompt.columns.get(column) or ()
    hints = cast(Sequence[Any], (found,) if isinstance(found, str) else found)
    if not isinstance(hints, list | tuple) or not all(isinstance(hint, str) for hint in hints):
        raise ValueError(
            f"prompt {prompt.id!r} has {found!r} in the column {column!r}: give a text or a list of texts, the weakest hint first"
        )
    return tuple(hints)


def check_column(part: object, prompts: Sequence[Prompt], column: str, holds: str) -> None:
    """Raise ValueError if no prompt has the column, or if it holds anything but texts."""
    found = [prompt for prompt in prompts if hints_of(prompt, column)]
    if prompts and not found:
        known = sorted({name for prompt in prompts for name in prompt.columns})
        raise ValueError(
            f"{type(part).__name__} reads the column {column!r}, {holds}, and none of the {len(prompts)} prompts that were "
            f"looked at has it (their columns: {', '.join(known) or 'none'}): add it to the data, or name another one with "
            "algorithm.planner.column"
        )


def with_hint(prompt: Prompt, template: str, hint: str) -> Prompt:
    """The prompt with a hint under it."""
    return Hint(template.replace("{hint}", hint))(prompt, 0)


def check_template(part: object, setting: str, template: str, *marks: str) -> None:
    """Raise ValueError for a template without its placeholders."""
    missing = [mark for mark in marks if mark not in template]
    if missing:
        raise ValueError(f"{type(part).__name__}.{setting} is {template!r}: write {' and '.join(missing)} where it goes")


def fails_altogether(rewards: Sequence[float], success_at: float) -> bool:
    """True if no sample with a reward is right; False if none has a reward."""
    return not all(map(math.isnan, rewards)) and not any(right_ones(rewards, success_at))


@dataclass
class Climb:
    """A group on its way up a ladder of hints."""

    hints: tuple[str, ...]
    rung: int = 0
    """Number of hints tried so far."""
    newest: int = 0
    """The index in the group of the first sample under the latest hint."""


@dataclass(frozen=True)
class Hinted(Remembering, ABC):
    """The base of planners that show hints to groups in which every sample fails."""

    samples_plainly = False
    column: str = "hints"
    """The column with a prompt's hints, the weakest first, or with one text."""
    train_view: TrainView = "same"
    """same: training reads what was sampled, the hint included; plain: the prompt without it, with old log-probabilities read
    again."""
    hint_text: str = "Here is a hint to help you:\n{hint}"
    """Goes under the prompt."""
    success_at: Number = 0.5

    def __post_init__(self) -> None:
        check_ranges(self)
        check_template(self, "hint_text", self.hint_text, "{hint}")

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError where no prompt has hints."""
        check_column(self, prompts, self.column, "hints, the weakest first")

    def under(self, prompt: Prompt, hint: str) -> Shown:
        """The prompt with a hint under it, and whether it trains so."""
        return Shown(with_hint(prompt, self.hint_text, hint), self.train_view == "same")


@dataclass(frozen=True)
class HintLadder(Hinted):
    """A group in which every sample fails is sampled again under hint 1, 2, ... until a sample is right (GHPO, SAGE, NuRL).

    arXiv:2507.10628, arXiv:2602.03143, arXiv:2509.25666. The samples under the last hint that was tried replace the group.
    Prompts without hints stay as they are.
    """

    rungs: Count = 3
    """The most hints to try in one step."""
    cut: bool = False
    """True: the column holds one text, of which hint k shows the first k / (rungs + 1): 25, 50 and 75 % of a solution."""
    plain: Annotated[int, Range(0, 2**20)] = 0
    """How many samples of a group sampled again see no hint."""
    climbing: dict[int, Climb] = field(default_factory=dict[int, Climb], init=False, compare=False, repr=False)
    """Group -> how far up the ladder it is in this step."""

    @property
    def max_rounds(self) -> int:
        return 1 + self.rungs

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError where no prompt has hints, or a solution."""
        check_column(self, prompts, self.column, "the solution" if self.cut else "hints, the weakest first")

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Move failing groups up the ladder, and settle the others."""
        if round_index == 0:
            self.climbing.clear()
            for group in groups:
                hints = self.ladder(self.requests[group.id].prompt)
                if hints and fails_altogether(rewards[group.id], self.success_at):
                    self.climbing[group.id] = Climb(hints)
        return self.climb(rewards, round_index)

    def ladder(self, prompt: Prompt) -> tuple[str, ...]:
        """The hints of a prompt, the weakest first."""
        hints = hints_of(prompt, self.column)
        if self.cut and hints:
            text = "\n".join(hints)
            hints = tuple(text[: len(text) * k // (self.rungs + 1)] for k in range(1, self.rungs + 1))
        return tuple(hint for hint in hints if hint)[: self.rungs]

    def climb(self, rewards: Mapping[int, Sequence[float]], round_index: int) -> Revision:
        """Requests under the next hint for groups that still fail; of the others only the last hint's samples are kept."""
        requests, dropped = list[Request](), set[tuple[int, int]]()
        for group_id, climb in list(self.climbing.items()):
            solved = climb.rung > 0 and any(right_ones(rewards[group_id][climb.newest :], self.success_at))
            if solved or climb.rung == len(climb.hints) or round_index + 1 >= self.max_rounds:
                dropped |= {(group_id, i) for i in range(climb.newest)}
                del self.climbing[group_id]
                continue
            requests += self.anew(group_id, climb.hints[climb.rung], round_index)
            self.climbing[group_id] = Climb(climb.hints, climb.rung + 1, len(rewards[group_id]))
        return Revision(requests, drop_samples=frozenset(dropped))

    def anew(self, group_id: int, hint: str, round_index: int) -> list[Request]:
        """Requests for the group again under a hint, with a few samples without it."""
        first = self.requests[group_id]
        plain, draw = min(self.plain, first.count), 2 * round_index + 1
        hinted = self.again(group_id, first.count - plain, draw, shown=self.under(first.prompt, hint))
        return [one for one in (hinted, self.again(group_id, plain, draw + 1)) if one.count]

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.climbing.clear()


@dataclass(frozen=True)
class Scaffold(Hinted):
    """One sample per hint for a group in which every sample fails; the right one under the weakest hint is put in (Scaf-GRPO).

    arXiv:2510.19807. It replaces the group's first sample. Hints are ordered from the weakest: knowledge, plan and steps of a
    solution, each in parts that build on each other.
    """

    max_rounds = 2
    after: Annotated[int, Range(0, 2**20)] = 50
    """Number of steps at the start without hints, so that prompts which training solves by itself get none."""
    seen: dict[str, int] = field(default_factory=lambda: {"steps": 0}, init=False, compare=False, repr=False)

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Try every hint, then keep the weakest that helped."""
        if round_index:
            return self._settle(groups, rewards)
        self.seen["steps"] += 1
        if self.seen["steps"] <= self.after:
            return Revision()
        failing = [group.id for group in groups if fails_altogether(rewards[group.id], self.success_at)]
        return Revision([request for group_id in failing for request in self._every_hint(group_id)])

    def _every_hint(self, group_id: int) -> list[Request]:
        prompt = self.requests[group_id].prompt
        hints = enumerate(hints_of(prompt, self.column), 1)
        return [self.again(group_id, 1, k, shown=self.under(prompt, hint)) for k, hint in hints]

    def _settle(self, groups: Sequence[Group], rewards: Mapping[int, Sequence[float]]) -> Revision:
        dropped: set[tuple[int, int]] = set()
        for group in groups:
            own = self.requests[group.id].count
            right = [own + k for k, is_right in enumerate(right_ones(rewards[group.id][own:], self.success_at)) if is_right]
            kept = set(range(1, own)) | {right[0]} if right else set(range(own))
            dropped |= {(group.id, i) for i in range(len(group.samples)) if i not in kept}
        return Revision(drop_samples=frozenset(dropped))

    def state_dict(self) -> State:
        return {**self.seen}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.seen.update(state)


@dataclass(frozen=True)
class BesideHint(Once):
    """Half of every group sees a text from a column, and all of it trains on the plain prompt (PolicyRollout, arXiv:2510.09474).

    Samples under the text count as if they had been sampled without it: their old log-probabilities are read after the plain
    prompt. A prompt without the text is sampled as it is.
    """

    samples_plainly = False
    column: str = "policy"
    """The column with the text: rules that the answer follows from, not available at inference."""
    hint_text: str = "{hint}"
    """Goes under the prompt of half of the samples."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_template(self, "hint_text", self.hint_text, "{hint}")

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError where no prompt has the text."""
        check_column(self, prompts, self.column, "a text that helps to answer")

    def asked(self, request: Request) -> Sequence[Request]:
        """Raises ValueError for a group of one."""
        if request.count < 2:
            raise ValueError("BesideHint shows its text to half of a group: set algorithm.group_size to 2 or more")
        hints, half = hints_of(request.prompt, self.column), request.count // 2
        if not hints:
            return (request,)
        shown = Shown(with_hint(request.prompt, self.hint_text, "\n".join(hints)))
        helped = replace(request, count=half, seed=seed_of(request.seed, 1), shown=shown)
        return replace(request, count=request.count - half), helped


@dataclass(frozen=True)
class AskedHalves(Once, Beside):
    """The first half of every group is asked to use a tool, the other half not to; both train as they were asked (GeometryZero).

    arXiv:2506.07160, from summaries; the words are ours. Of an odd group one sample more is asked to do without. Take the shaping
    WhereToolsHelp(asked = true) with it.
    """

    with_text: str = "Use the tool before you answer."
    """Goes under the prompt of the first half."""
    without_text: str = "Answer without the tool."
    """Goes under the prompt of the other half."""

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError for a group of one."""
        if algorithm.group_size < 2:
            raise ValueError("AskedHalves compares two halves of a group: set algorithm.group_size to 2 or more")

    def asked(self, request: Request) -> Sequence[Request]:
        halves = ((self.with_text, request.count // 2), (self.without_text, request.count - request.count // 2))
        shown = [Shown(Hint(text)(request.prompt, 0), trained=True) for text, _ in halves]
        return [
            replace(request, count=count, seed=seed_of(request.seed, draw), shown=shown[draw])
            for draw, (_, count) in enumerate(halves)
        ]


WRITING = (
    "The solution is:\n{solution}\n\nWrite {levels} hints for somebody who shall find it alone, the first vague, the last close "
    'to the way of the solution, none with the answer itself. Answer with JSON alone: {{"level_1": "...", "level_2": "..."}}'
)


def solution_of(prompt: Prompt, column: str) -> str:
    """The solution in a column, or else the answer as a text; ValueError if neither can be written down."""
    found = prompt.columns.get(column)
    return found if isinstance(found, str) and found else answer_text(prompt)


def read_hints(text: str, levels: int) -> tuple[str, ...]:
    """The hints of a JSON object with the keys level_1, level_2, ..., which other text may surround; none if one is missing."""
    start, end = text.find("{"), text.rfind("}")
    try:
        found: Any = json.loads(text[start : end + 1]) if 0 <= start < end else {}
    except (ValueError, RecursionError):
        return ()
    table = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    hints = [hint for k in range(1, levels + 1) if isinstance(hint := table.get(f"level_{k}"), str) and hint.strip()]
    return tuple(hints) if len(hints) == levels else ()


def tells_answer(hint: str, prompt: Prompt) -> bool:
    """True if the hint contains the prompt's answer as separate words. Only an answer that is a text or a number can be found."""
    if not isinstance(prompt.answer, str | int | float):
        return False
    answer = answer_text(prompt).strip()
    return bool(answer) and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", hint, re.IGNORECASE) is not None


def next_level(level: int, accuracy: float | None, most: int = 3, low: float = 0.1, high: float = 0.35) -> int:
    """level + [accuracy <= low] - [accuracy > high], within 0 and `most`; 0 where the accuracy is not known (SAGE-light)."""
    if accuracy is None:
        return 0
    return min(max(level + (accuracy <= low) - (accuracy > high), 0), most)


@dataclass(frozen=True)
class SelfHints(HintLadder):
    """A ladder whose hints the policy writes for a prompt that it fails, seeing the solution (SAGE, arXiv:2602.03143).

    Hints that hold the answer are left out. A prompt for which no hint can be read keeps its samples.
    """

    column: str = "solution"
    """The column with the solution that is shown to write hints; the answer where there is none."""
    tries: Count = 3
    """How many times hints are requested; the first ones that can be read are used."""
    writing_text: str = WRITING
    """Goes under the prompt; {solution} and {levels} are put in, and doubled braces become single ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_template(self, "writing_text", self.writing_text, "{solution}")

    @property
    def max_rounds(self) -> int:
        return 2 + self.rungs

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without a solution whose answer cannot be written down."""
        for prompt in prompts:
            solution_of(prompt, self.column)

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Have hints written, then climb."""
        if round_index == 0:
            self.climbing.clear()
            failing = [group.id for group in groups if fails_altogether(rewards[group.id], self.success_at)]
            return Revision([self.writing(group_id) for group_id in failing])
        if round_index == 1:
            read = {group.id: self.hints_in(group) for group in groups}
            self.climbing.update({group_id: Climb(hints) for group_id, hints in read.items() if hints})
        return self.climb(rewards, round_index)

    def writing(self, group_id: int) -> Request:
        """The request to write hints."""
        prompt = self.requests[group_id].prompt
        text = self.writing_text.replace("{{", "{").replace("}}", "}")
        text = text.replace("{levels}", str(self.rungs)).replace("{solution}", solution_of(prompt, self.column))
        return self.again(group_id, self.tries, 1, role="note", shown=Shown(Hint(text)(prompt, 0)))

    def hints_in(self, group: Group) -> tuple[str, ...]:
        """The hints that were written for a group and may be shown."""
        found = next((hints for note in group.notes if (hints := read_hints(note, self.rungs))), ())
        return tuple(hint for hint in found if not tells_answer(hint, group.prompt))


@dataclass
class LatestHints:
    """Prompt -> its level and the latest hints that were written for it."""

    levels: dict[str, int] = field(default_factory=dict[str, int])
    hints: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True)
class KeptHints(SelfHints):
    """level + [accuracy <= low] - [accuracy > high] per prompt; its samples see the hint of that level (SAGE-light).

    arXiv:2602.03143. Levels stay from visit to visit, 0 shows no hint. Hints are written anew at the end of a visit after which
    the level is above 0, for the next one.
    """

    low: Share = 0.1
    """Share of right samples up to which the level goes up."""
    high: Share = 0.35
    """Share of right samples above which it goes down."""
    kept: LatestHints = field(default_factory=LatestHints, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ValueError(f"KeptHints.low is {self.low}, above high = {self.high}: set low below high")

    @property
    def max_rounds(self) -> int:
        return 2

    def asked(self, request: Request) -> Sequence[Request]:
        level, hints = self.kept.levels.get(request.prompt.id, 0), self.kept.hints.get(request.prompt.id, ())
        if not level or not hints:
            return (request,)
        return (replace(request, shown=self.under(request.prompt, hints[min(level, len(hints)) - 1])),)

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Move levels by what a visit gave, and have hints written for the next one."""
        if round_index:
            self.kept.hints.update({group.prompt.id: hints for group in groups if (hints := self.hints_in(group))})
            return Revision()
        for group in groups:
            known, level = finite(rewards[group.id]), self.kept.levels.get(group.prompt.id, 0)
            accuracy = sum(right_ones(known, self.success_at)) / len(known) if known else None
            self.kept.levels[group.prompt.id] = next_level(level, accuracy, self.rungs, self.low, self.high)
        return Revision([self.writing(group.id) for group in groups if self.kept.levels[group.prompt.id]])

    def state_dict(self) -> State:
        return {"levels": dict(self.kept.levels), "hints": {name: list(hints) for name, hints in self.kept.hints.items()}}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.kept.levels = dict(state["levels"])
        self.kept.hints = {name: tuple(hints) for name, hints in state["hints"].items()}
