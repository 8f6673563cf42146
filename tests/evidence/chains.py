"""Chains of stages at an equal cost of network calls: GRPO against DPO, and recipes against themselves without what they add.

The policy of letters runs them with the real trainer, miners and kinds of stages.
"""

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import DPO, SFT
from mmrl.algorithms.miners import BestAndWorst, Difficulty, Miner
from mmrl.algorithms.objectives.given import Preference
from mmrl.algorithms.planners.base import one_request_each
from mmrl.algorithms.planners.taught import Taught
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Group, Prompt, Reading, Request, Rollouts, Trace
from tests.evidence.planner_rows import LETTERS
from tests.evidence.task import (
    BACKWARD,
    Counted,
    Ended,
    LetterTask,
    MakeSampler,
    Row,
    Score,
    adding,
    mean,
    mean_of,
    of_text,
    text_of,
    trainer_of,
    weights_of,
)
from tests.evidence.text_tasks import GUESS, first_letter, largest, prompts_of

TAG = "d"
"""The letter that stands for <think> and for </think>."""


@dataclass
class Costly(Counted):
    """The policy of letters, which counts the rows that pass its network."""

    cost: int = 0

    def rollout(self, requests: Sequence[Request], sampling: Any = None) -> Rollouts:
        self.cost += sum(request.count for request in requests if not request.is_written)
        return super().rollout(requests, sampling)

    def read(self, trace: Trace, readings: Iterable[Reading], mask: Tensor) -> dict[Reading, Tensor]:
        wanted = list(readings)
        for model, _ in {(one.model, one.view) for one in wanted}:
            self.cost += len(mask) * (BACKWARD if torch.is_grad_enabled() and model == LOGPROBS.model else 1)
        return super().read(trace, wanted, mask)


@dataclass(frozen=True)
class InLetters(Taught):
    """Taught, with a thought's tags as letters."""

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        found = super().first(prompts, group_size, first_id, seed)
        return [replace(request, written=spelled(request.text)) for request in found]


def spelled(text: str) -> str:
    return text.replace("<think>", TAG).replace("</think>", TAG).replace("\n", "")


@dataclass
class Run:
    """A chain under way: its stages are calls, each on the weights that the one before left, with an optimizer of its own."""

    task: "ChainTask"
    policy: Costly
    prompts: Sequence[Prompt]
    seed: int
    lr: float
    stages: int = field(default=0, init=False)

    def train(
        self, algorithm: Algorithm, prompts: Sequence[Prompt], *, steps: int = 0, until: float = 1.0, faster: float = 1.0
    ) -> None:
        """Take steps, or with 0 until this share of the whole cost is reached; without prompts nothing is left to learn."""
        if not prompts:
            return
        self.stages += 1
        self.policy.end_step(rebase=True)
        seed = self.seed + 1_000 * self.stages
        own, lr = algorithm.with_length(self.policy.length), self.lr * faster / algorithm.updates
        settings = {"lr": lr, "prompts_per_step": self.task.prompts_per_step}
        trainer = trainer_of(self.policy, own, Shuffled(prompts, seed), self.task.rewards, seed, **settings)
        taken, most = 0, until * self.task.cost
        while taken < steps if steps else self.policy.cost < most:
            trainer.step()
            taken += 1

    def sft(
        self, prompts: Sequence[Prompt], *, steps: int = 0, until: float = 1.0, dropout: float = 0.0, column: str = ""
    ) -> None:
        """Teach the completions of a column."""
        planner = InLetters(column=column, thought_dropout=dropout)
        self.train(replace(SFT, planner=planner), prompts, steps=steps, until=until, faster=0.5)

    def dpo(self, prompts: Sequence[Prompt], *, steps: int = 0, until: float = 1.0, loss: Preference | None = None) -> None:
        """Learn from the pairs in the columns chosen and rejected."""
        term = loss or Preference(beta=0.1)
        self.train(replace(DPO, objective=((1.0, term),)), prompts, steps=steps, until=until)

    def mine(self, miner: Miner, *rewards: Score, prompts: Sequence[Prompt] = ()) -> list[Prompt]:
        """The rows that a stage of the kind filter or pairs finds, by these rewards or the task's own."""
        self.stages += 1
        asked = one_request_each(prompts or self.prompts, miner.num_samples, 0, self.seed + 1_000 * self.stages)
        used = rewards or tuple(function for _, function in self.task.rewards)
        rows: list[Prompt] = []
        for group in self.policy.rollout(asked).groups:
            totals = [sum(values) for values in zip(*(score(group) for score in used), strict=True)]
            found = miner(group.samples, totals).rows
            rows += [adding(group.prompt, **row) for row in found]
        return rows


Chain = Callable[[Run], None]
"""The stages of a recipe, one call each."""


@dataclass(frozen=True)
class ChainTask(LetterTask[Chain]):
    """A task for chains, and what one may cost."""

    cost: int = 30_000
    """Rows that pass the network: sampled or read 1, trained `BACKWARD`."""
    rates: tuple[float, ...] = (1e-2, 3e-2)
    """Learning rates of the stages that reinforce: a run is the best of them, for a method as for its twin."""
    measured_on: Callable[[int], Sequence[Prompt]] | None = None
    """The prompts that the figure is of, from the seed; None: those that trained."""

    def run(self, algorithm: Chain, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Go through the chain at each learning rate, and measure; the best run."""
        return max((self.run_at(lr, algorithm, seed) for lr in self.rates), key=lambda ended: ended.figure)

    def run_at(self, lr: float, chain: Chain, seed: int) -> Ended:
        policy, prompts = Costly(length=self.length, start=self.start, seed=seed), self.prompts(seed)
        chain(Run(self, policy, prompts, seed, lr))
        asked = self.measured_on(seed) if self.measured_on is not None else prompts
        return Ended(self.measure(policy.fresh(asked, seed)), weights_of(policy))


GROUP = 8
GRPO = replace(PRESETS["grpo"], group_size=GROUP)
PAIRS = BestAndWorst(num_samples=GROUP)


def reinforce(algorithm: Algorithm = GRPO) -> Chain:
    """The one stage that most runs are."""

    def chain(run: Run) -> None:
        run.train(algorithm, run.prompts)

    return chain


ROUNDS = 8
BEST = Difficulty(num_samples=GROUP, low=0.0, high=1.0, column="completion")
"""Each prompt's best right sample."""


def dpo_once(run: Run) -> None:
    """Pairs of the model as it begins, trained on to the end."""
    run.dpo([row for _ in range(4) for row in run.mine(PAIRS)])


def dpo_in_rounds(run: Run) -> None:
    """Pairs of the model as it is, mined anew in every round."""
    for k in range(ROUNDS):
        run.dpo(run.mine(PAIRS), until=(k + 1) / ROUNDS)


def best_of_n(run: Run) -> None:
    """The best right samples of the model as it is, mined anew in every round."""
    for k in range(ROUNDS):
        run.sft(run.mine(BEST), until=(k + 1) / ROUNDS)


GRPO_OR_DPO = ChainTask(
    "grpo_or_dpo", GUESS.claim, "share right", GUESS.prompts, GUESS.rewards, GUESS.figure, cost=25_000, rates=(1e-2, 3e-2, 1e-1)
)


def thought_and_answer(text: str) -> tuple[str, str] | None:
    """The letters between the two tags and the one behind them; None for another form."""
    found = re.fullmatch(r"d([abc]*)d([abc])\.?", text)
    return None if found is None else (found[1], found[2])


def answered(group: Group) -> list[float]:
    """1 for the right letter behind a thought, which may be empty."""
    found = [thought_and_answer(text_of(sample)) for sample in group.samples]
    return [float(one is not None and one[1] == group.prompt.answer) for one in found]


in_form = of_text(lambda text, prompt: 0.2 * (thought_and_answer(text) is not None))


def thinking(answer: Callable[[torch.Tensor, int], str], count: int = 24) -> Callable[[int], list[Prompt]]:
    """Prompts with a completion that thinks three letters before it answers."""

    def made(seed: int) -> list[Prompt]:
        return [adding(one, completion=f"<think>{one.answer}ab</think>{one.answer}.") for one in prompts_of(answer, count)(seed)]

    return made


def idle_thought(groups: Sequence[Group]) -> float:
    """Minus the letters of thoughts, as a share of the most; wrong answers count as the longest thought."""

    def cost(group: Group, text: str) -> float:
        found = thought_and_answer(text)
        return 1.0 if found is None or found[1] != group.prompt.answer else len(found[0]) / 3

    return -mean([cost(group, text_of(sample)) for group in groups for sample in group.samples])


THINK_OR_NOT = ChainTask(
    "think_or_not",
    "no thought is needed, demonstrations have one of three letters, and no reward counts letters",
    "minus the letters of the thought, as a share of the most; a wrong answer counts as the most",
    thinking(largest),
    (("answer", answered), ("form", in_form)),
    idle_thought,
    length=7,
    cost=30_000,
)


def taught_to_think(dropout: float) -> Chain:
    def chain(run: Run) -> None:
        run.sft(run.prompts, steps=60, dropout=dropout)
        run.train(GRPO, run.prompts)

    return chain


last_letter = of_text(lambda text, prompt: text[2:3] == prompt.answer)
"""1 where the third letter is right, however it was found."""


def follows(group: Group) -> list[float]:
    """1 where the two letters before lead to the answer that stands behind them."""
    return [float(text[:3] == 3 * text[2:3]) for text in map(text_of, group.samples)]


def right_and_reasoned(groups: Sequence[Group]) -> float:
    return mean([r * f for group in groups for r, f in zip(last_letter(group), follows(group), strict=True)])


VERIFIED = ChainTask(
    "verified_thoughts",
    "the reward sees whether the answer is right, and a verifier whether the thought before leads to it",
    "share right by a thought that leads there",
    prompts_of(largest),
    (("answer", last_letter),),
    right_and_reasoned,
    cost=40_000,
)


def veripo(run: Run) -> None:
    """Reinforcement, pairs of a verifier and DPO on them, twice."""
    for k in range(1, 3):
        run.train(GRPO, run.prompts, until=k / 2 - 0.3)
        for part in range(1, 7):
            run.dpo(run.mine(replace(PAIRS, most=2), last_letter, follows), until=k / 2 - 0.3 + 0.05 * part)


def unsure_traces(seed: int) -> list[Prompt]:
    """Traces of another model, right in three of four, with thoughts that the policy does not need."""
    draw = random.Random(seed)
    made = prompts_of(largest, 48)(seed)
    told = [one.answer if draw.random() < 0.75 else draw.choice("abc") for one in made]
    return [adding(one, completion=f"<think>cab</think>{t}.") for one, t in zip(made, told, strict=True)]


def either_form(group: Group) -> list[float]:
    """1 for the right letter, at once or behind a thought."""
    texts = [text_of(sample).rstrip(".") for sample in group.samples]
    found = [thought_and_answer(text) for text in texts]
    return [float((text if one is None else one[1]) == group.prompt.answer) for text, one in zip(texts, found, strict=True)]


TRACES = ChainTask(
    "traces_of_another",
    "the policy answers at once, right one time in four; traces of another model think first, wrong one time in five",
    "share right",
    unsure_traces,
    (("answer", either_form),),
    start=(1, 1, 1, 0.1, 1.5),
    length=7,
    cost=20_000,
)
LONG_TRACES = replace(TRACES, name="traces_of_another_long", claim=f"{TRACES.claim}; three times the cost", cost=60_000)


def sft_then_rl(run: Run) -> None:
    run.sft(run.prompts, steps=40)
    run.train(GRPO, run.prompts)


def which_is_larger(vector: torch.Tensor, _: int) -> str:
    """The judge's verdict on a pair: the first number or the second."""
    return "a" if vector[0] > vector[1] else "b"


JUDGE = ChainTask(
    "judging_pairs",
    "verdicts on pairs, of which six have a written judgement; measured on pairs that no stage saw",
    "agreement on held-out pairs",
    thinking(which_is_larger, 64),
    (("answer", answered), ("form", in_form)),
    length=7,
    cost=25_000,
    measured_on=lambda seed: thinking(which_is_larger, 64)(seed + 1_000),
)


def judge(rejection: bool) -> Chain:
    """A cold start on six judgements, then with `rejection` the model's own right ones, then reinforcement."""

    def chain(run: Run) -> None:
        run.sft(run.prompts[:6], steps=20)
        if rejection:
            kept = run.mine(Difficulty(num_samples=GROUP, success_at=1.0, low=0.01, high=1.0, column="own"))
            run.sft(kept, steps=20, column="own")
        run.train(GRPO, run.prompts)

    return chain


def graded_pairs(seed: int) -> list[Prompt]:
    """Pairs of a right and a wrong letter with a margin; of those below 1 two in five are the wrong way round."""
    draw, found = random.Random(seed), list[Prompt]()
    for one in prompts_of(largest, 96)(seed):
        margin, wrong = draw.uniform(0, 4), draw.choice([letter for letter in "abc" if letter != one.answer])
        texts = [f"{one.answer}.", f"{wrong}."]
        if margin < 1 and draw.random() < 0.4:
            texts.reverse()
        found.append(adding(one, chosen=texts[0], rejected=texts[1], margin=margin))
    return found


GRADED = ChainTask(
    "graded_pairs",
    "of pairs that people found close two in five are the wrong way round, and the data say which were close",
    "share right",
    graded_pairs,
    (("letter", first_letter),),
    cost=20_000,
)


def preferred(loss: Preference) -> Chain:
    def chain(run: Run) -> None:
        run.dpo(run.prompts, loss=loss)

    return chain


FRAMES = "abc"


def frame_and_box(group: Group) -> list[float]:
    """Of `d`, a frame and a box: the mask's area in that frame, and what the box covers there; else 0."""
    best, box = group.prompt.answer
    areas = [1 - abs(FRAMES.index(best) - k) / 2 for k in range(len(FRAMES))]
    found = [re.fullmatch(r"d([abc])([abcd])\.?", text_of(sample)) for sample in group.samples]
    return [0.0 if one is None else (area := areas[FRAMES.index(one[1])]) + area * (one[2] == box) for one in found]


box_in_form = of_text(lambda text, prompt: 0.5 * bool(re.fullmatch(r"d[abc][abcd]\.?", text)))


def clips(seed: int) -> list[Prompt]:
    """The clip's best frame and the box in it, with the answer as a demonstration of the first half."""
    made = prompts_of(lambda vector, i: largest(vector, i) + "abcd"[int(vector[0] > 0) + 2 * int(vector[1] > 0)], 32)(seed)
    return [adding(one, completion=f"d{one.answer}.") for one in made]


KEYFRAME = ChainTask(
    "frame_and_box",
    "a key frame by the area of the mask, then a box in it, in a form that one sample in three hundred has",
    "mean reward for frame and box, of 2",
    clips,
    (("frame and box", frame_and_box), ("form", box_in_form)),
    mean_of(frame_and_box),
    start=(3, 1, 1, 0.1, 0.3),
    cost=30_000,
)


def cold_start_of_half(run: Run) -> None:
    run.sft(run.prompts[: len(run.prompts) // 2], steps=15)
    run.train(GRPO, run.prompts)


whole = of_text(lambda text, prompt: text[:3] == prompt.answer)
"""1 for the three letters of the solution."""


def solved(seed: int) -> list[Prompt]:
    """Three letters that follow from the numbers, with an expert's solution, and rules that tell it."""
    made = prompts_of(lambda vector, i: "".join("abcd"[int(x > 0) * 2 + int(abs(x) > 0.7)] for x in vector), 48)(seed)
    rules = [{"solution": f"{one.answer}.", "policy": LETTERS.replace("{hint}", one.answer)} for one in made]
    return [adding(one, **row) for one, row in zip(made, rules, strict=True)]


SOLUTIONS = ChainTask(
    "expert_solutions",
    "three letters to find, an expert's solution for every prompt, of which a quarter is taught first",
    "share right",
    solved,
    (("whole", whole),),
    cost=60_000,
)
RULES = replace(
    SOLUTIONS,
    name="rules_told",
    claim="three letters to find, a quarter of the solutions is taught first, and half of a group reads the rule",
)
PLAIN = replace(PRESETS["ahpo"], planner=GRPO.planner, advantage=GRPO.advantage, objective=GRPO.objective, group_size=GROUP)


def taught_a_quarter(algorithm: Algorithm) -> Chain:
    def chain(run: Run) -> None:
        run.sft(run.prompts[: len(run.prompts) // 4], steps=20, column="solution")
        run.train(algorithm, run.prompts)

    return chain


ALONE = "GRPO at the same cost"
RL, LEARNS = reinforce(), taught_a_quarter(PLAIN)
ROWS = [
    *(Row(chain.__name__, chain, RL, ALONE, GRPO_OR_DPO) for chain in (dpo_once, dpo_in_rounds, best_of_n)),
    Row("ton_geoqa", taught_to_think(0.5), taught_to_think(0.0), "every demonstration has its thought", THINK_OR_NOT),
    Row("veripo_video", veripo, RL, "GRPO alone at the same cost", VERIFIED),
    *(Row("vlaa_thinker", RL, sft_then_rl, "supervised training on the traces first, at the same cost", task)
      for task in (TRACES, LONG_TRACES)),
    Row("unified_reward_think", judge(True), judge(False), "no rejection sampling, at the same cost", JUDGE),
    Row("mm_rlhf", preferred(Preference(margin="margin")), preferred(Preference()), "the same beta for all pairs", GRADED),
    Row("veason_r1", cold_start_of_half, RL, "GRPO alone at the same cost", KEYFRAME),
    Row("mm_helix", taught_a_quarter(PRESETS["ahpo"]), LEARNS, "GRPO in place of AHPO, at the same cost", SOLUTIONS),
    Row("trimpi", taught_a_quarter(replace(PRESETS["policy_rollout"], group_size=GROUP)), LEARNS,
        "GRPO without the rules, at the same cost", RULES),
]  # fmt: skip
"""Chains: the kinds of stages, and the recipes made of them."""
