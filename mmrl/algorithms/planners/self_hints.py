"""Planners whose hints are written by the policy itself, from the solution, for prompts that it fails."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from mmrl.algorithms.planners.base import right_ones
from mmrl.algorithms.planners.hints import Climb, HintLadder, check_template, fails_altogether, with_hint
from mmrl.algorithms.planners.video import answer_text, finite
from mmrl.algorithms.views import Hint
from mmrl.core.protocols import State
from mmrl.core.types import Group, Prompt, Request, Revision, Shown
from mmrl.runtime.ranges import Count, Share, check_ranges

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
        check_ranges(self)
        check_template(self, "hint_text", self.hint_text, "{hint}")
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
        shown = with_hint(request.prompt, self.hint_text, hints[min(level, len(hints)) - 1])
        return (replace(request, shown=Shown(shown, self.train_view == "same")),)

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
