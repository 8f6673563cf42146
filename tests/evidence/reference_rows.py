"""A method whose reward is the policy's own probability of the true answer, where no verifier scores an answer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.presets import PRESETS
from mmrl.core.readings import BASE_PROBABILITY, REFERENCE_PROBABILITY
from mmrl.core.types import Group, Reading, Trace
from tests.evidence.task import Counted, Listening, Row, TextTask, mean, text_of
from tests.evidence.text_tasks import largest, prompts_of
from tests.support.fakes import LETTERS, Steps

OWN = {REFERENCE_PROBABILITY.quantity, BASE_PROBABILITY.quantity}
ANSWER = 1
"""The place of the answer; the letter before it is the thought."""


class Concluding(Listening):
    """A net that tends to answer with the letter it thought: it can conclude, and has to learn what to think."""

    def __init__(self, others: int, start: Sequence[float]) -> None:
        super().__init__(others, start)
        self.habit = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        previous, position = x[..., 3 + len(LETTERS) :].split([len(LETTERS), x.shape[-1] - 3 - 2 * len(LETTERS)], -1)
        return super().forward(x) + self.habit * previous * position[..., ANSWER : ANSWER + 1]


@dataclass
class Reasoner(Counted):
    """The policy of letters that concludes, and can tell how likely it finds the true answer behind a thought."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.offers = self.offers | OWN
        for name in self.nets:
            torch.manual_seed(self.seed)
            self.nets[name] = Concluding(len(LETTERS) + self.length, self.start)

    def read(self, trace: Trace, readings: Iterable[Reading], mask: Tensor) -> dict[Reading, Tensor]:
        asked = list(readings)
        found = super().read(trace, [reading for reading in asked if reading.quantity not in OWN], mask)
        assert isinstance(trace, Steps)
        for reading in asked:
            if reading.quantity in OWN:
                value = self.truth_probability(trace, reading.quantity == REFERENCE_PROBABILITY.quantity)
                found[reading] = value[:, None].expand(mask.shape)
        return found

    @torch.no_grad()
    def truth_probability(self, trace: Steps, thought: bool) -> Tensor:
        """How likely the true letter is in the place of the answer, behind the row's thought or none; -1 without an answer."""
        tokens, seen = trace.tensors["tokens"], trace.tensors["plain"][:, ANSWER]
        previous = nn.functional.one_hot(tokens[:, ANSWER - 1], len(LETTERS)).to(seen) * thought
        logits = self.nets["policy"](torch.cat([seen, previous, trace.tensors["position"][:, ANSWER]], -1))
        truth = seen[:, :3].argmax(-1)
        answers = (tokens[:, : ANSWER + 1] != len(LETTERS) - 1).all(1)
        return torch.where(answers, logits.softmax(-1).gather(-1, truth[:, None])[:, 0], -1.0)


@dataclass(frozen=True)
class ReferenceTask(TextTask):
    """A task for the policy that concludes."""

    def policy(self, algorithm: Algorithm, seed: int) -> Counted:
        return Reasoner(length=self.length, views=algorithm.views, start=self.start, seed=seed)


def has_answer(group: Group) -> list[float]:
    """0.1 where there is a thought and an answer, right or wrong."""
    return [0.1 * (len(text_of(sample).rstrip(".")) > ANSWER) for sample in group.samples]


def rightness(groups: Sequence[Group]) -> float:
    return mean([float(text_of(s)[ANSWER : ANSWER + 1] == group.prompt.answer) for group in groups for s in group.samples])


UNVERIFIED = ReferenceTask(
    "no_verifier",
    "nothing scores an answer but its format, and a right thought makes the right answer likely",
    "share right",
    prompts_of(largest),
    (("format", has_answer),),
    rightness,
    samples=6_000,
)
FILTERED = replace(UNVERIFIED, name="no_verifier_filter")
RLPR = PRESETS["rlpr"]
ROWS = [
    Row("rlpr", RLPR, replace(RLPR, shaping=()), "the reward for the format alone", UNVERIFIED, short=True),
    Row("rlpr", RLPR, replace(RLPR, advantage=GroupNorm()), "no filter of prompts by spread", FILTERED),
]
"""The preset rlpr."""
