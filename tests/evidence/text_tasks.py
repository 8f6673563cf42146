"""Methods for text, each on a task of letters made for its claim, against the same without its idea.

What a prompt wants follows from three numbers, and the odds at the start make the situation of a claim.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from mmrl.algorithms.advantages.group import GroupNorm, Halves, ReinforcePlusPlus, Strata
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip, Reinforce
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.aggregate import SequenceMean
from mmrl.core.types import Group, Prompt
from tests.evidence.task import (
    FRESH,
    Row,
    Task,
    TextTask,
    adding,
    against,
    mean,
    mean_of,
    of_text,
    text_of,
    unclipped,
    uncompared,
)
from tests.support.presets import DISTILLED

NUM_PROMPTS = 24


def prompts_of(answer: Callable[[torch.Tensor, int], Any], count: int = NUM_PROMPTS) -> Callable[[int], list[Prompt]]:
    """Prompts with three normal numbers each; `answer` makes the truth from these and the prompt's place."""

    def made(seed: int) -> list[Prompt]:
        vectors = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
        return [
            Prompt(str(i), f"prompt {i}", answer=answer(vector, i), columns={"vector": vector.tolist(), "difficulty": float(i)})
            for i, vector in enumerate(vectors)
        ]

    return made


def largest(vector: torch.Tensor, _: int) -> str:
    return "abc"[int(vector.argmax())]


first_letter = of_text(lambda text, prompt: text[:1] in tuple(prompt.answer))
"""1 where a sample begins with one of the letters that the prompt wants."""
mean_first_letter = mean_of(first_letter)


def of_answer(*letters: str) -> Callable[[Sequence[Group]], float]:
    """The mean of `first_letter` over the prompts that want one of these letters."""
    return mean_of(first_letter, lambda prompt: prompt.answer in letters)


GUESS = TextTask(
    "guess", "a letter to find, all equally likely at the start", "share right", prompts_of(largest), (("letter", first_letter),)
)
FEW_SAMPLES = replace(GUESS, name="few_samples", claim=f"{GUESS.claim}; few samples may be drawn", samples=1_500)
ALL_WRONG = TextTask(
    "all_wrong",
    "one sample in three hundred is right, so that nearly all groups are wrong altogether",
    "share right",
    prompts_of(lambda vector, i: "d"),
    (("letter", first_letter),),
    start=(1, 1, 1, 0.01, 0.3),
    samples=5_000,
)
HARD = TextTask(
    "hard_prompts",
    "half of the prompts are solved half of the time, half of them one time in fifty",
    "share right of the hard prompts",
    prompts_of(lambda vector, i: "d" if vector[0] > 0 else "a"),
    (("letter", first_letter),),
    of_answer("d"),
    start=(2, 1, 1, 0.08, 0.3),
    samples=5_000,
)
HARD_STEPS = replace(HARD, name="hard_prompts_steps", claim=f"{HARD.claim}; compared after as many steps, not samples", steps=20)
TOO_EASY = TextTask(
    "too_easy",
    "nine prompts of ten are solved already",
    "share right of the others",
    lambda seed: mostly_easy(seed),
    (("letter", first_letter),),
    of_answer("b", "c", "d"),
    start=(20, 1, 1, 1, 0.3),
    samples=10_000,
)


def mostly_easy(seed: int) -> list[Prompt]:
    """Of 120 prompts, 108 want the letter that is written anyway; the others have a first number of 3."""
    found = prompts_of(lambda vector, i: "bcd"[int(vector[1:].argmax())] if i % 10 == 0 else "a", 120)(seed)
    return [
        adding(prompt, vector=[3.0 if i % 10 == 0 else -1.0, *prompt.columns["vector"][1:]]) for i, prompt in enumerate(found)
    ]


def rarest(groups: Sequence[Group]) -> float:
    """How often the right answer is given that is given least, mean over the prompts."""
    return mean([min(mean([float(text_of(s)[:1] == letter) for s in g.samples]) for letter in g.prompt.answer) for g in groups])


RARE = TextTask(
    "rare_answer",
    "two letters are right, one of them ten times as likely at the start",
    "share of the rarer right answer",
    prompts_of(lambda vector, i: "ab"),
    (("letter", first_letter),),
    rarest,
    start=(3, 0.3, 2, 2, 0.3),
    samples=6_000,
)
BEST_OF_MANY = TextTask(
    "best_of_a_group",
    "a sure answer worth 0.4, and a gamble worth 1 one time in four",
    "mean of the best of eight samples",
    prompts_of(lambda vector, i: "abcd"[int(vector.argmax()) + 1]),
    (("gamble", lambda group: gamble(group)),),
    lambda groups: mean([best_of(gamble(group), 8) for group in groups]),
    start=(2, 1, 1, 1, 0.3),
)


def gamble(group: Group) -> list[float]:
    """0.4 for a; 1 for the prompt's own letter if another follows that the prompt does not tell."""
    coin = "abcd"[int(group.prompt.id) * 7 % 4]
    return [
        0.4 if (text := text_of(sample))[:1] == "a" else float(text[:2] == f"{group.prompt.answer}{coin}")
        for sample in group.samples
    ]


def best_of(values: Sequence[float], count: int) -> float:
    return mean([max(values[i : i + count]) for i in range(0, len(values), count)])


def right_pairs(_: torch.Tensor, i: int) -> tuple[str, ...]:
    """Eight of the sixteen pairs of letters."""
    return tuple(sorted(random.Random(i).sample(["".join(pair) for pair in product("abcd", repeat=2)], 8)))


pair = of_text(lambda text, prompt: text[:2] in prompt.answer)


def coverage(groups: Sequence[Group]) -> float:
    """Share of a prompt's right answers that are among its fresh samples."""
    found = [len({text_of(s)[:2] for s in group.samples} & set(group.prompt.answer)) for group in groups]
    return mean([count / len(group.prompt.answer) for count, group in zip(found, groups, strict=True)])


MANY = TextTask(
    "many_answers",
    "eight pairs of letters are right, and all of them should be kept",
    f"share of the right answers among {FRESH} samples",
    prompts_of(right_pairs),
    (("pair", pair),),
    coverage,
    samples=12_000,
    lr=4e-2,
)
PAIRS = TextTask(
    "many_updates",
    "eight pairs of letters are right, and weights move far on one step's samples",
    "share right",
    prompts_of(right_pairs),
    (("pair", pair),),
    samples=12_000,
    lr=2e-1,
)


def wrong_length(groups: Sequence[Group]) -> float:
    """Minus the letters of wrong answers, as a share of the most."""
    return -mean([len(text_of(s)) / 10 for g in groups for s, r in zip(g.samples, first_letter(g), strict=True) if not r])


UNSOLVABLE = TextTask(
    "wrong_answers",
    "a third is right, and nothing but the first letter matters",
    "minus the length of wrong answers, as a share of the most",
    prompts_of(lambda vector, i: "abc"[i * 7 % 3]),
    (("letter", first_letter),),
    wrong_length,
    start=(1, 1, 1, 0.5, 1),
    length=10,
)
SHORT = TextTask(
    "short_answers",
    "the first letter is the answer, and all that follows is idle",
    "minus the mean length, as a share of the most",
    prompts_of(largest),
    (("letter", first_letter),),
    mean_of(of_text(lambda text, prompt: -len(text) / 10)),
    start=(1, 1, 1, 1, 0.6),
    length=10,
    lr=4e-2,
)
OVERLONG = TextTask(
    "cut_answers",
    "most answers are cut at the limit of letters",
    "share that stops in time",
    prompts_of(largest),
    (("letter", first_letter),),
    mean_of(lambda group: [float(not sample.truncated) for sample in group.samples]),
    start=(1, 1, 1, 1, 0.3),
    length=10,
)
counted = of_text(lambda text, prompt: text.count("a") >= 3)
LONG = TextTask(
    "long_answers",
    "right is what holds three times a letter, and most answers stop before",
    "share right",
    prompts_of(largest),
    (("count", counted),),
    start=(1, 1, 1, 1, 1.5),
    length=10,
    samples=2_500,
)
second_letter = of_text(lambda text, prompt: text[1:2] == "d")
TWO = TextTask(
    "two_rewards",
    "one reward is earned half of the time, the other one time in twenty",
    "share that earns the rare reward",
    prompts_of(lambda vector, i: "ab" if vector[0] > 0 else "bc"),
    (("often", first_letter), ("seldom", second_letter)),
    mean_of(second_letter),
    start=(1, 1, 1, 0.1, 0.3),
    samples=1_500,
)


def noisy_letter(group: Group) -> list[float]:
    """The first letter's reward, wrong one time in four."""
    flips = random.Random(group.id)
    return [reward if flips.random() < 0.75 else 1 - reward for reward in first_letter(group)]


NOISY = TextTask(
    "noisy_rewards",
    "one reward in four is wrong",
    "share right",
    prompts_of(largest),
    (("letter", noisy_letter),),
    mean_first_letter,
    samples=12_000,
)


def with_calls(group: Group) -> list[float]:
    """Every call of a tool (a d behind the first letter) brings 0.3, and the right first letter 1."""
    return [
        0.5 * right + 0.15 * min(text_of(sample)[1:].count("d"), 3)
        for sample, right in zip(group.samples, first_letter(group), strict=True)
    ]


CALLS = TextTask(
    "tool_calls",
    "calls of a tool lift the reward besides whether the answer is right",
    "share right",
    prompts_of(largest),
    (("calls", with_calls),),
    mean_first_letter,
)
STALE = 16
"""Updates per step where a method is made for weights that have moved away from those that sampled."""
GROUP = GroupNorm()
FEW = {"samples": 2_000}


def many(name: str) -> Algorithm:
    """The preset with STALE updates per step."""
    return replace(PRESETS[name], epochs=STALE // 4, minibatches=4)


def in_place_of_the_clip(name: str) -> Row:
    """A surrogate of its own against no limit at all, with many updates on the same samples."""
    return Row(name, many(name), unclipped(many(name)), f"REINFORCE, {STALE} updates per step as here", PAIRS)


def advantage_row(name: str, task: Task, **more: Any) -> Row:
    """An advantage of its own against that of grpo."""
    return against(name, "advantages of grpo", task, advantage=GROUP, **more)


TRUST = ("gspo", "gspo_token", "cispo", "sapo", "vespo", "gmpo", "dppo", "dro", "rec", "r2vpo", "disco", "nft_text")
ROWS = [
    Row("grpo", PRESETS["grpo"], uncompared(PRESETS["grpo"]), "rewards compared with nothing", GUESS),
    against("dr_grpo", "division by the deviation and by the length", UNSOLVABLE, aggregation=SequenceMean(), advantage=GROUP),
    against("dapo", "no penalty for length", OVERLONG, shaping=()),
    against("dapo", "every prompt sampled once", TOO_EASY, planner=Once(), changes={"prompts_per_step": 12}),
    Row("rloo", PRESETS["rloo"], uncompared(PRESETS["rloo"]), "rewards compared with nothing", NOISY),
    advantage_row("opo", NOISY),
    advantage_row("d3s", MANY),
    Row("luspo", PRESETS["luspo"], PRESETS["gspo"], "rollouts averaged over their actions", LONG),
    advantage_row("gpg", HARD),
    *(in_place_of_the_clip(name) for name in TRUST),
    Row("kl_cov", PRESETS["kl_cov"], unclipped(PRESETS["kl_cov"]), "no penalty", MANY),
    against("clip_cov", "the clip alone", MANY, objective=((1.0, Clip()),)),
    against("high_entropy", "all tokens", MANY, importance=()),
    Row("reinforce_pp", PRESETS["reinforce_pp"], uncompared(PRESETS["reinforce_pp"]), "plain rewards", NOISY,
        changes={"prompts_per_step": 192}),
    advantage_row("reinforce_pp_baseline", NOISY),
    Row("pass_at_k", PRESETS["pass_at_k"], PRESETS["grpo"], "advantages of grpo", BEST_OF_MANY),
    advantage_row("gdpo", TWO),
    Row("mc_grpo", replace(PRESETS["mc_grpo"], group_size=5), replace(PRESETS["grpo"], group_size=5), "the group's mean",
        NOISY, changes={"prompts_per_step": 40}),
    advantage_row("ngrpo", ALL_WRONG),
    advantage_row("bnpo", HARD),
    Row("canon", replace(PRESETS["canon"], advantage=Halves(by="length", cross=1.0, favour=0.5)), PRESETS["dr_grpo"],
        "one mean for the whole group", SHORT),
    Row("stratified_grpo", replace(PRESETS["stratified_grpo"], advantage=Strata(pattern="d")),
        replace(PRESETS["stratified_grpo"], advantage=GROUP), "one mean for the whole group", CALLS),
    advantage_row("a_grae", HARD),
    advantage_row("seed_grpo", NOISY),
    advantage_row("copo", HARD),
    advantage_row("polychromic", RARE),
    advantage_row("adora", LONG),
    Row("drpo", PRESETS["drpo"], PRESETS["disco"], "all right answers alike", SHORT),
    Row("llds", many("llds"), replace(many("llds"), objective=((1.0, Clip()),)), "no penalty", PAIRS),
    against("reinforce_ada", "every prompt sampled once", HARD, planner=Once(), advantage=GROUP),
    against("reinforce_ada", "every prompt sampled once", HARD_STEPS, planner=Once(), advantage=GROUP),
    against("dars", "every prompt sampled once", HARD_STEPS, planner=Once()),
    against("dars", "every prompt sampled once", HARD, planner=Once()),
    against("xrpo", "every prompt sampled once, no bonus", RARE, planner=Once(), advantage=GROUP),
    advantage_row("gtpo", MANY, importance=()),
    against("spo", "the mean of the step for a baseline", NOISY, advantage=ReinforcePlusPlus(),
        changes={"prompts_per_step": 96, **FEW}),
    advantage_row("riskpo", HARD),
    against("hapo", "one clip and one temperature for all tokens, advantages of grpo", MANY,
        advantage=GROUP, planner=Once(), objective=((1.0, Clip()),), changes=FEW),
    advantage_row("dcpo", MANY),
    against("hart", "advantages and KL of grpo", HARD, advantage=GROUP, objective=((1.0, Reinforce()), (0.04, ReferenceKL()))),
    against("aepo", "nothing sampled hotter", MANY, advantage=GROUP, planner=Once()),
    advantage_row("ares", HARD, changes=FEW),
    Row("remix", PRESETS["remix"], replace(PRESETS["remix"], planner=Once(), objective=((1.0, Clip()), (0.04, ReferenceKL()))),
        "rows of this step alone, KL to the base", FEW_SAMPLES),
    against("ssr", "rows of this step alone", TOO_EASY, planner=Once(), changes={"prompts_per_step": 12, **FEW}),
]  # fmt: skip
"""Presets for text of most ideas."""
ELSEWHERE = {
    "mm_upt": "without labels better than at the start, three seeds: tests/learning/test_unlabelled.py",
    **dict.fromkeys(DISTILLED, "they compare distributions of real models: python -m tests.evidence.teachers"),
}
"""Presets whose evidence is a test of another room."""
