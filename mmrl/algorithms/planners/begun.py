"""Planners that ask the parts of every group otherwise: begun with texts of their own, or asked in several words."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from statistics import mean
from typing import Annotated

from mmrl.algorithms.beside import SHARES, Beside, Parts, thought_of
from mmrl.algorithms.planners.base import Once, Remembering, Twice, seed_of
from mmrl.algorithms.planners.hints import check_template, hints_of
from mmrl.algorithms.planners.segments import Values
from mmrl.core.types import Given, Group, Piece, Prefix, Prompt, Request, Revision, Shown
from mmrl.runtime.ranges import Count, PositiveShare, Range, check_ranges


@dataclass(frozen=True)
class BegunParts(Remembering, Beside, ABC):
    """Equal parts of every group begin with texts of their own, the first part with the first text."""

    samples_plainly = False
    max_rounds = 1

    @property
    @abstractmethod
    def beginnings(self) -> Sequence[Piece]:
        """One per part."""

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError for a group that has no equal parts."""
        count = len(self.beginnings)
        if algorithm.group_size % count:
            raise ValueError(
                f"{type(self).__name__} begins {count} equal parts of a group, and algorithm.group_size is "
                f"{algorithm.group_size}: set it to a multiple of {count}"
            )

    def asked(self, request: Request) -> Sequence[Request]:
        count = request.count // len(self.beginnings)
        return [
            replace(request, count=count, seed=seed_of(request.seed, k), written=Given((piece,), whole=False))
            for k, piece in enumerate(self.beginnings)
        ]

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        return Revision()


@dataclass(frozen=True)
class ThinkOrNot(BegunParts):
    """Half of every group begins with the end of a thought, half with a word of one, and both beginnings train (AdaptThink).

    arXiv:2505.13417. For templates that open the thought; of others `without` has to open it as well. Take the advantage
    AboveReference and the term EvenStart with it.
    """

    without: str = "</think>"
    """Begins the first half: nothing is thought."""
    thinking: str = "Alright"
    """Begins the other half."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not (self.without and self.thinking):
            raise ValueError("ThinkOrNot.without and ThinkOrNot.thinking begin the halves of a group: write a text for both")

    @property
    def beginnings(self) -> Sequence[Piece]:
        return (Piece(text=self.without), Piece(text=self.thinking))

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Raises ValueError where the template opens no thought that the beginning could end."""
        opened = {sample.opened for group in groups for sample in group.samples}
        if self.without.startswith("</think>") and opened - {"<think>"}:
            raise ValueError(
                f"algorithm.planner.without is {self.without!r}, and the chat template leaves no <think> open for it to end: set "
                "it to what the model writes where it does not think, such as '<think>\\n\\n</think>\\n\\n', or take a template "
                "that opens a thought"
            )
        return Revision()


@dataclass(frozen=True)
class Budgets(BegunParts):
    """Equal parts of every group begin with a budget of tokens, each a share of the run's longest answer (HBPO).

    arXiv:2507.15844. The text is not trained; its code trains it. Take the shaping BudgetReward and the advantage WithinBudgets
    with it.
    """

    shares: tuple[PositiveShare, ...] = SHARES
    """A budget per part of a group, in shares of the longest answer."""
    length: Count | None = None
    """The longest answer, in tokens. None: the run fills in its max_new_tokens."""
    text: str = "I will answer the question with {budget} tokens"
    """Begins the answers."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_template(self, "text", self.text, "{budget}")
        if not self.shares:
            raise ValueError("Budgets.shares are empty: write one or more, such as [0.25, 0.5]")

    @property
    def beginnings(self) -> Sequence[Piece]:
        budgets = [max(1, round(share * (self.length or 0))) for share in self.shares]
        return tuple(Piece(text=self.text.replace("{budget}", str(one)), who="forced") for one in budgets)


@dataclass(frozen=True)
class BudgetCuts(Twice, Beside):
    """Every answer's thought is cut at each budget, ended by a text, and answered `answers` times from there (BRPO).

    arXiv:2505.13438. A budget is a share of the run's longest answer. A thought trains in the row that wrote it alone, and that
    row's own answer does not. Take the advantage BudgetRelative with it; a prompt costs 1 + budgets x answers samples for one.
    """

    shares: tuple[PositiveShare, ...] = (0.2, 0.4, 0.6, 0.8)
    """The budgets, rising; the rest is for answers."""
    answers: Annotated[int, Range(2, 2**10)] = 4
    """Samples from each cut, which are compared with each other."""
    mark: str = "</think>"
    """The text that ends a thought; cuts lie before it."""
    forced: str = "\nTime is limited: answer now.\n</think>\n"
    """The text that is forced after a cut."""
    length: Count | None = None
    """The longest answer, in tokens. None: the run fills in its max_new_tokens."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if list(self.shares) != sorted(set(self.shares)) or not self.shares:
            raise ValueError(f"BudgetCuts.shares are {list(self.shares)}: write one or more, each larger than the one before")
        if not self.forced:
            raise ValueError("BudgetCuts.forced ends a thought that was cut: write a text, such as the mark of its end")

    advantages = ("BudgetRelative",)  # with another a thought would train in each of the samples from its cuts

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Cut all thoughts; then note of each cut what its answers earned. ValueError where no answer ends its thought."""
        if round_index:
            return Revision(
                values={key: one for group in groups for key, one in self.values_of(group, rewards[group.id]).items()}
            )
        samples = [sample for group in groups for sample in group.samples]
        if not any(sample.truncated or self.mark in (sample.text or "") for sample in samples):
            raise ValueError(
                f"all {len(samples)} answers ended, and none holds {self.mark!r}, which ends a thought: set "
                "algorithm.planner.mark to what this model writes there, or take another planner"
            )
        return Revision([request for group in groups for request in self.cut(group)])

    def places(self, group: Group) -> list[tuple[int, int]]:
        """Sample and budget of a group's cuts, in the order in which they are asked for; none beyond the end of a row."""
        budgets = [max(1, int(share * (self.length or 1))) for share in self.shares]
        rows = [len(sample.token_ids or ()) for sample in group.samples[: self.requests[group.id].count]]
        return [(i, b) for i, row in enumerate(rows) for before, b in zip([0, *budgets], budgets, strict=False) if before < row]

    def cut(self, group: Group) -> list[Request]:
        """Requests for the answers from all cuts of a group."""
        begun = [(group.samples[i].token_ids or ())[:budget] for i, budget in self.places(group)]
        written = [Prefix(tokens, 1.0, self.mark, self.forced, trained=True) for tokens in begun]
        return [self.again(group.id, self.answers, k, written=one) for k, one in enumerate(written, 1)]

    def values_of(self, group: Group, rewards: Sequence[float]) -> Values:
        """Thought -> for every budget its kept tokens and what answers from there earned; beyond its end the last ones again."""
        own, cuts, pools = self.requests[group.id].count, dict[int, list[int]](), dict[tuple[int, int], list[float]]()
        for k, (i, _) in enumerate(self.places(group)):
            answers = range(own + k * self.answers, own + (k + 1) * self.answers)
            kept = thought_of(group.samples[answers[0]])
            cuts.setdefault(i, []).append(kept)
            pools.setdefault((i, kept), []).extend(rewards[j] for j in answers if not isnan(rewards[j]))
        values: Values = {}
        for i, asked in cuts.items():
            if all(pools[i, kept] for kept in asked):
                whole = [*asked, *asked[-1:] * (len(self.shares) - len(asked))]
                values[group.id, i] = tuple((kept, mean(pools[i, kept])) for kept in whole)
        return values


def split_of(size: int, parts: int) -> list[int]:
    """How many of a group's samples answer each wording: as equal as can be, the first ones more."""
    return [size // parts + (i < size % parts) for i in range(parts)]


@dataclass(frozen=True)
class Wordings(Once):
    """A group's samples answer the prompt and its other wordings in turn, and train as they were asked (PS-GRPO).

    Paraphrased-set GRPO, arXiv:2510.04392, from its abstract and reviews. Take the shaping Agreement with it.
    """

    column: str = "paraphrases"
    """The column with the prompt's other wordings: a text or a list of texts."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without another wording."""
        for prompt in prompts:
            if not hints_of(prompt, self.column):
                raise ValueError(
                    f"prompt {prompt.id!r} has no other wording in the column {self.column!r}, and a set of one agrees with "
                    "nothing: add it to the data, or name another column with algorithm.planner.column"
                )

    def asked(self, request: Request) -> Sequence[Request]:
        """Raises ValueError for a prompt with more wordings than a group has samples."""
        texts = (request.prompt.text, *hints_of(request.prompt, self.column))
        if len(texts) > request.count:
            raise ValueError(
                f"prompt {request.prompt.id!r} has {len(texts)} wordings, and algorithm.group_size is {request.count}: set it to "
                f"{len(texts)} or more"
            )
        shown = [Shown(), *(Shown(replace(request.prompt, text=text), trained=True) for text in texts[1:])]
        return [
            replace(request, count=count, seed=seed_of(request.seed, draw), shown=one)
            for draw, (one, count) in enumerate(zip(shown, split_of(request.count, len(texts)), strict=True))
        ]
