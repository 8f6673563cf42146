"""The score that a published test set gives an answer: see "Published test sets" on the site.

Prompts are those of the data set `suite`. The scorer of every test set equals its official code on stored answers, as the page
says in detail.

Modality: text
Range: [0, 1]
Source: the official code of each test set, named in its file in datasets/suites
Licence: own code Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Group, Need, Scored, find_suite
from mmrl.answers.boxes.attempts import AnySpace, named_space


@dataclass(frozen=True)
class PublishedScore:
    """The scorer of one test set; answers that it cannot read are counted as unparsed."""

    suite: str = ""
    """The test set's name: refcoco, charades_sta, ..., or a file of your own, ./mine.py."""
    space: AnySpace | None = None
    """Where answers are boxes or points, the space in which the model writes; auto = the one of the policy's family."""
    needs = Need(setup="the data set suite")

    def __call__(self, group: Group) -> list[float | Scored | None]:
        suite = find_suite(self.suite)
        if suite.score is None:
            raise ValueError(f"suite {suite.name} is scored by the reward {suite.reward['use']!r}: use that one")
        space = named_space(self.space or "norm1")
        return [suite.score(group.prompt, sample, space) for sample in group.samples]
