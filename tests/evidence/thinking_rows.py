"""Methods about right and wrong, and about how long or what to think, each against the same without its idea."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.regression import ValueFit
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.begun import BudgetCuts, Budgets, ThinkOrNot
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.presets.baselines import CLIPPED
from mmrl.algorithms.samplers.learned import NearestValue
from mmrl.algorithms.shaping.thinking import BudgetReward, LengthBudget, ModePays
from mmrl.algorithms.weights.aggregate import FirstApart, TokenMean
from mmrl.core.readings import BASE_PROBABILITY, REFERENCE_PROBABILITY, VALUE
from mmrl.core.types import Group, Prompt, Reading, Trace
from tests.evidence import text_tasks as tasks
from tests.evidence.planner_rows import IDLE, SEGMENTS, THOUGHT
from tests.evidence.task import Counted, Listening, Row, TextTask, adding, against, mean, mean_of, of_text, text_of
from tests.evidence.text_tasks import largest, prompts_of
from tests.support.fakes import LETTERS, Steps


def half_hard(seed: int) -> list[Prompt]:
    """Answers b or c; every other prompt needs a thought, and one answer in four of the start weights that think is right."""
    made = tasks.prompts_of(lambda vector, i: "bc"[int(vector[0] > 0)] + ("!" if vector[1] > 0 else ""))(seed)
    return [adding(prompt, reference_accuracy=0.25) for prompt in made]


def after_thinking(group: Group) -> list[float]:
    """1 for the answer behind an a, or behind a thought: a d and two letters. Hard prompts want the thought."""
    letter, hard = group.prompt.answer[0], len(group.prompt.answer) > 1
    texts = [text_of(sample) for sample in group.samples]
    short = [not hard and text[:2] == f"a{letter}" for text in texts]
    return [float(one or (text[:1] == "d" and text[3:4] == letter)) for one, text in zip(short, texts, strict=True)]


def right_less_thoughts(groups: Sequence[Group]) -> float:
    thinks = mean([float(text_of(sample)[:1] == "d") for group in groups for sample in group.samples])
    return mean([mean(after_thinking(group)) for group in groups]) - thinks / 4


HALF_HARD = TextTask(
    "half_need_a_thought",
    "half of the prompts need a thought, and the start weights think nearly always",
    "share right, less a quarter of the share that thinks",
    half_hard,
    (("answer", after_thinking),),
    right_less_thoughts,
    start=(0.02, 1, 1, 2, 0.3),
    samples=30_000,
)
MODES = replace(
    HALF_HARD,
    name="two_modes",
    claim="half of the prompts need a thought; the letter that begins one is the first of ten",
    start=(1, 1, 1, 1, 0.1),
    length=10,
    samples=12_000,
)
THINKLESS = replace(PRESETS["thinkless"], shaping=(ModePays("a", "d"),), aggregation=FirstApart(alpha=1.0))
"""Of answers of four letters the first is no thousandth."""
behind_the_mark = of_text(lambda text, prompt: text.partition("d")[2][:1] == prompt.answer)
"""1 for the answer behind the first d, which ends the thought."""


def whenever_stopped(groups: Sequence[Group]) -> float:
    """Of thoughts that ended, wherever, those whose answer is right."""
    pairs = [pair for group in groups for pair in zip(group.samples, behind_the_mark(group), strict=True)]
    return mean([right for sample, right in pairs if "d" in text_of(sample)[:9]])


STOPPED = TextTask(
    "stopped_anywhere",
    "the answer stands behind the end of a thought, which may be stopped anywhere",
    "share right of thoughts that ended",
    tasks.prompts_of(tasks.largest),
    (("answer", behind_the_mark),),
    whenever_stopped,
    start=(1, 1, 1, 0.2, 0.05),
    length=12,
    samples=12_000,
)


def short_or_long(group: Group) -> list[float]:
    """Easy prompts want their letter first, the harder half three times an a."""
    hard = group.prompt.columns["difficulty"] >= 12
    return tasks.counted(group) if hard else tasks.first_letter(group)


def right_less_idle(groups: Sequence[Group]) -> float:
    """Share right, less the letters of easy prompts as a share of the most."""
    easy = [len(text_of(sample)) / 10 for group in groups if group.prompt.columns["difficulty"] < 12 for sample in group.samples]
    return mean([mean(short_or_long(group)) for group in groups]) - mean(easy)


EASY_OR_HARD = TextTask(
    "long_where_hard",
    "half of the prompts want one letter, the others three of ten",
    "share right, less the letters of easy answers as a share of the most",
    tasks.prompts_of(tasks.largest),
    (("answer", short_or_long),),
    right_less_idle,
    start=(1, 1, 1, 1, 0.3),
    length=10,
)
TOKENS = LengthBudget(unit="tokens", hard=12, medium=12, hard_budget=9, easy_budget=2, per_uncertainty=1, slope=8)


@dataclass
class Expecting(Counted):
    """With a head that expects something of a prompt by its three numbers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.offers |= {VALUE.quantity}
        for net in self.nets.values():
            net.expects = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def read(self, trace: Any, readings: Iterable[Reading], mask: Tensor) -> dict[Reading, Tensor]:
        asked = list(readings)
        found = super().read(trace, [one for one in asked if one.quantity != VALUE.quantity], mask)
        heads: Any = self.nets["policy"]
        return found | {
            one: heads.expects(trace.tensors["plain"][..., :3])[..., 0] for one in asked if one.quantity == VALUE.quantity
        }


class ValuedTask(TextTask):
    """With the policy that expects something of prompts."""

    def policy(self, algorithm: Algorithm, seed: int) -> Counted:
        return Expecting(length=self.length, views=algorithm.views, start=self.start, seed=seed)


VALUED = ValuedTask(**{**vars(tasks.TOO_EASY), "prompts_per_step": 12})


def thirds(seed: int) -> list[Prompt]:
    """A third of 120 prompts wants what is written anyway, a third a rarer letter, a third none; the first number tells."""
    found = tasks.prompts_of(lambda vector, i: "abx"[i % 3], 120)(seed)
    return [adding(prompt, vector=[2.0 * (i % 3) - 2, *prompt.columns["vector"][1:]]) for i, prompt in enumerate(found)]


THIRDS = ValuedTask(
    "a_third_teaches",
    "a third of the prompts is solved at two of three, a third one time in four, a third never",
    "share right of those solved one time in four",
    thirds,
    (("letter", tasks.first_letter),),
    tasks.of_answer("b"),
    start=(20, 8, 1, 1, 0.3),
    samples=2_000,
    prompts_per_step=12,
)
PCL = replace(PRESETS["grpo"], objective=(*PRESETS["grpo"].objective, (0.5, ValueFit(group=True))))
STOPPED_STEPS = replace(
    STOPPED, name="stopped_steps", claim=f"{STOPPED.claim}; compared after as many steps, not samples", steps=8
)
ANYTIME = replace(PRESETS["anytime"], planner=BudgetCuts(mark="d", forced="d"))
GROUPS = "advantages of grpo"
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


has_answer = of_text(lambda text, prompt: 0.1 * (len(text.rstrip(".")) > ANSWER))
"""0.1 where there is a thought and an answer, right or wrong."""
rightness = mean_of(of_text(lambda text, prompt: text[ANSWER : ANSWER + 1] == prompt.answer))
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
    *(Row(name, PRESETS[name], CLIPPED, GROUPS, tasks.MANY) for name in ("w_reinforce", "nsr", "psr")),
    Row("w_reinforce", PRESETS["w_reinforce"], CLIPPED, GROUPS, tasks.HARD),
    Row("tempo", PRESETS["tempo"], CLIPPED, GROUPS, tasks.PAIRS, changes={"lr": 2e-2}),
    Row("tempo", PRESETS["tempo"], CLIPPED, GROUPS, tasks.GUESS),
    against("kimi_k15", "no reward for length", tasks.SHORT, shaping=()),
    Row("adapt_think", replace(PRESETS["adapt_think"], planner=ThinkOrNot("a", "d")), replace(CLIPPED, group_size=16),
        "grpo, whatever answers begin with", HALF_HARD, short=True),
    Row("thinkless", THINKLESS, replace(THINKLESS, aggregation=TokenMean()), "all tokens alike", MODES, short=True),
    Row("hbpo", replace(PRESETS["hbpo"], planner=Budgets(text="{budget}"), shaping=(BudgetReward(mark=""),)),
        CLIPPED, "grpo, without budgets", THOUGHT, short=True),
    Row("pixelthink", replace(PRESETS["pixelthink"], shaping=(TOKENS,)),
        replace(PRESETS["pixelthink"], shaping=()), "no price for length", EASY_OR_HARD),
    *(Row("NearestValue", PCL, PRESETS["grpo"], "prompts in shuffled epochs", task, NearestValue)
      for task in (VALUED, THIRDS)),
    Row("anytime", ANYTIME, CLIPPED, "grpo: whole answers alone", STOPPED),
    Row("anytime", ANYTIME, CLIPPED, "grpo: whole answers alone", STOPPED_STEPS, short=True),
    *(against("treerl", "no branches, one advantage for all tokens of an answer", task, planner=Once(), advantage=GroupNorm())
      for task in (SEGMENTS, IDLE)),
    Row("rlpr", RLPR, replace(RLPR, shaping=()), "the reward for the format alone", UNVERIFIED, short=True),
    Row("rlpr", RLPR, replace(RLPR, advantage=GroupNorm()), "no filter of prompts by spread", FILTERED),
]  # fmt: skip
