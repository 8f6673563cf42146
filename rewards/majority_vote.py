"""Does the completion give the answer that most of its group give? For training without any true answers.

    r = 1 if the sample's answer is the most frequent one of the group (of ties the one seen first), else 0

An answer is the content of the last LaTeX box, else of the last answer tag, else the whole text without its thought; compared as
number, as letters or as text without case and blanks. Texts without a readable answer score 0, are counted, and have no vote: in
MM-UPT's code "nothing found" can win. A wrong majority rewards itself: watch `right`, the share of samples whose answer is the
true one, where the data has one.

Modality: text
Range: {0, 1}
Source: MM-UPT, arXiv:2505.22453
Licence: own code Apache-2.0
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from mmrl import Group, Need, Scored
from mmrl.answers.block import answer_block, completion_text
from mmrl.answers.choices import parse_choices
from mmrl.answers.numbers import parse_number
from mmrl.runtime.ranges import Share, check_ranges

BOX = "\\boxed{"


@dataclass(frozen=True)
class MajorityVote:
    """1 for the group's most frequent answer."""

    kind: Literal["text", "number", "choice"] = "text"
    """How answers are compared: as text, as numbers or as letters."""
    at_least: Share = 0.0
    """If the winner's share of the group's votes is smaller, the whole group gets None."""
    needs = Need(samples=2, alone="1 for any answer that can be read")

    __post_init__ = check_ranges

    def __call__(self, group: Group) -> list[float | Scored | None]:
        votes = [self._read(completion_text(group.prompt, sample)) for sample in group.samples]
        counted = Counter(vote for vote in votes if vote is not None)
        winner, count = counted.most_common(1)[0] if counted else (None, 0)
        if counted and count / len(votes) < self.at_least:
            return [None] * len(votes)
        truth = None if group.prompt.answer is None else self._read(str(group.prompt.answer))
        shared = {"agreement": count / len(votes)}
        return [
            Scored(
                float(vote is not None and vote == winner),
                {"unparsed": float(vote is None), **shared, **({} if truth is None else {"right": float(vote == truth)})},
            )
            for vote in votes
        ]

    def _read(self, text: str) -> Any:
        said = answer_block(text)
        inside = _latex_box(said)
        answer = said if inside is None else inside
        if self.kind == "number":
            number = parse_number(answer)
            return None if number is None else round(number.value, 9)
        if self.kind == "choice":
            return parse_choices(answer) or None
        return "".join(answer.split()).casefold() or None


def _latex_box(text: str) -> str | None:
    """The text in the last complete LaTeX box."""
    start = text.rfind(BOX)
    while start >= 0:
        depth, begin = 1, start + len(BOX)
        for i in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                return text[begin:i]
        start = text.rfind(BOX, 0, start)
    return None
