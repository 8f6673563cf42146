"""Methods whose idea is what is sampled, samplers that learn, and methods that weigh prompts or tokens by what is known."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.begun import Wordings
from mmrl.algorithms.planners.helped import SerialExits
from mmrl.algorithms.planners.segments import SegmentValues
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.learned import Bandit, Curriculum, Prioritized, Thompson, VarianceAware
from mmrl.algorithms.shaping.combine import Unlikeliness
from mmrl.algorithms.shaping.reference import Agreement
from mmrl.answers.boxes.box import Box
from mmrl.core.protocols import PromptSampler
from mmrl.core.types import Group, Prompt
from tests.evidence.task import MakeSampler, Row, TextTask, adding, against, mean, mean_of, of_text, text_of
from tests.evidence.text_tasks import ALL_WRONG, RARE, TOO_EASY, first_letter, prompts_of
from tests.evidence.video_rows import IDLE, whole

LETTERS = "The first letters: {hint}"
"""Words that the policy of letters follows."""


def with_columns(seed: int) -> list[Prompt]:
    """Prompts that want ddd, with a vague and a plain hint, the solution, and rules that tell it."""
    made = prompts_of(lambda vector, i: "ddd")(seed)
    added = {"hints": ["look well", "ddd"], "hint": "ddd", "solution": "ddd.", "policy": LETTERS.replace("{hint}", "ddd")}
    return [adding(prompt, **added) for prompt in made]


UNSOLVABLE = TextTask(
    "unsolvable",
    "one sample in twenty thousand is right, so that hardly any group has a right one by itself",
    "share right, without any hint",
    with_columns,
    (("whole", whole),),
    start=(3, 1, 1, 0.2, 0.5),
    samples=6_000,
)
THOUGHT = TextTask(
    "idle_thoughts",
    "every answer is right, however long the thought before the first d",
    "minus the letters of the thought, as a share of the most",
    prompts_of(lambda vector, i: "d"),
    (("answer", lambda group: [1.0] * len(group.samples)),),
    lambda groups: -mean([len(text_of(one).partition("d")[0]) / 12 for group in groups for one in group.samples]),
    start=(1, 1, 1, 0.3, 0.02),
    length=12,
    samples=3_000,
)
SEGMENTS = replace(IDLE, name="idle_tokens_steps", claim=f"{IDLE.claim}; compared after as many steps, not samples", steps=25)


def told(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The same with an answer that hints may hold."""
    return [replace(prompt, answer=(prompt.answer,)) for prompt in prompts]


SELF_HINTS = replace(
    UNSOLVABLE,
    name="unsolvable_told",
    claim=f"{UNSOLVABLE.claim}; who writes hints sees the solution",
    prompts=lambda seed: told(with_columns(seed)),
)
WORDS = ("Some say it is b", "Some say it is c")


def worded(seed: int) -> list[Prompt]:
    """Every prompt twice, side by side: each time in one of two wordings, and with the other one in its column."""
    return [
        replace(adding(one, paraphrases=f"{one.text}\n{other}"), id=f"{one.id}.{k}", text=f"{one.text}\n{words}")
        for one in prompts_of(lambda vector, i: "bc", count=12)(seed)
        for k, (words, other) in enumerate((WORDS, WORDS[::-1]))
    ]


def agreeing(groups: Sequence[Group]) -> float:
    """How often answers to both wordings begin with the same right letter."""
    first = [[text_of(sample)[:1] for sample in group.samples] for group in groups]
    pairs = [(a, b, group.prompt.answer) for one, other, group in zip(first[::2], first[1::2], groups[::2], strict=True)
             for a, b in zip(one, other, strict=True)]  # fmt: skip
    return mean([float(a == b != "" and a in right) for a, b, right in pairs])


WORDED = TextTask(
    "two_wordings",
    "two letters are right, and either wording of a prompt suggests another one of them",
    "share of pairs of answers, one to each wording, that begin with the same right letter",
    worded,
    (("letter", first_letter),),
    agreeing,
    length=1,
    samples=4_000,
)
ASKED = replace(PRESETS["grpo"], planner=Wordings())
CLIP = replace(PRESETS["ghpo"], planner=Once())
ALONE = "every prompt sampled once, alone"
WRITING = "The solution is {solution}\nWrite {levels} hints."


def with_planner(name: str, task: TextTask = UNSOLVABLE, *, short: bool = False, **changes: object) -> Row:
    """A planner with words that the policy follows, against every prompt once."""
    preset = PRESETS[name]
    return Row(name, replace(preset, planner=replace(preset.planner, **changes)), CLIP, ALONE, task, short=short)  # type: ignore[arg-type, type-var]


GRPO = PRESETS["grpo"]
CLIPPED = replace(GRPO, objective=((1.0, Clip()),), minibatches=4)
EPOCHS = "shuffled epochs"


def by_kind(prompts: Sequence[Prompt], seed: int, **settings: Any) -> PromptSampler:
    """A bandit over two kinds of prompts, SEC's unless told otherwise: those that want the usual answer, and the others."""
    kinds = ["easy" if prompt.answer == "a" else "hard" for prompt in prompts]
    marked = [adding(prompt, category=kind) for prompt, kind in zip(prompts, kinds, strict=True)]
    return Bandit(marked, seed, **settings)


def ladder(seed: int) -> list[Prompt]:
    """Of 48 prompts, a third each wants one letter, a pair and three letters, all told by the same numbers."""
    found = prompts_of(lambda vector, i: "abc"[int(vector.argmax())] * (1 + i % 3), 48)(seed)
    return [adding(prompt, difficulty=len(prompt.answer)) for prompt in found]


hardest = mean_of(whole, lambda prompt: len(prompt.answer) == 3)
LADDER = TextTask(
    "ladder",
    "what hard prompts want begins with what easy ones want, and is hardly ever found by chance",
    "share right of the hard prompts",
    ladder,
    (("word", whole),),
    hardest,
    start=(1, 1, 1, 1, 0.3),
    samples=8_000,
)


def targets(seed: int) -> list[Prompt]:
    """Half of the prompts have a tiny box, and want a letter that is rare at the start; the others have a large one."""

    made = prompts_of(lambda vector, i: Box(0.1, 0.1, *((0.12, 0.12) if i % 2 else (0.9, 0.9)), "norm1"))(seed)
    numbers = [[3.0 if i % 2 else -3.0, *prompt.columns["vector"][1:]] for i, prompt in enumerate(made)]
    return [adding(one, vector=own, letter="d" if own[0] > 0 else "a") for one, own in zip(made, numbers, strict=True)]


named_letter = of_text(lambda text, prompt: text[:1] == prompt.columns["letter"])
SMALL_TARGETS = TextTask(
    "small_targets",
    "prompts with small targets are rarely solved at the start, those with large ones half of the time",
    "share right where the target is small",
    targets,
    (("letter", named_letter),),
    mean_of(named_letter, lambda prompt: prompt.columns["letter"] == "d"),
    start=(2, 1, 1, 0.05, 0.3),
    samples=1_000,
)
ANCHORED = TextTask(
    "anchored",
    "later letters look at the first one, which alone is the answer",
    "share right",
    prompts_of(lambda vector, i: "abc"[int(vector.argmax())]),
    (("letter", first_letter),),
    length=10,
    samples=4_000,
)


def sampler_row(method: str, make: Callable[..., Any], task: TextTask = TOO_EASY, **more: Any) -> Row:
    """A sampler of prompts under grpo."""
    drawn: MakeSampler = make
    return Row(method, GRPO, GRPO, EPOCHS, task, sampler=drawn, **more)


ROWS = [
    Row("Wordings", replace(ASKED, shaping=(Agreement(),)), ASKED, "right answers to both wordings alone earn", WORDED),
    with_planner("ghpo", hint_text=LETTERS, short=True),
    with_planner("scaf_grpo", hint_text=LETTERS, after=3, short=True),
    with_planner("nurl", hint_text=LETTERS, short=True),
    with_planner("sage", SELF_HINTS, hint_text=LETTERS, writing_text=WRITING, short=True),
    with_planner("sage_light", SELF_HINTS, hint_text=LETTERS, writing_text=WRITING, short=True),
    with_planner("critique_grpo", refine_text="{sample}\n{critique}", short=True),
    with_planner("policy_rollout", short=True),
    with_planner("ahpo", short=True),
    against("arpo_gui", "nothing comes back", ALL_WRONG, planner=Once(), changes={"samples": 2_500}),
    *(Row("spo_segment", replace(PRESETS["spo_segment"], planner=SegmentValues(interval=2)),
        replace(PRESETS["spo_segment"], planner=Once(), advantage=GroupNorm()), "one advantage for all tokens of an answer", task)
      for task in (SEGMENTS, IDLE)),
    Row("s_grpo", replace(PRESETS["s_grpo"], planner=SerialExits(mark="d", forced="d")),
        replace(PRESETS["s_grpo"], planner=Once(), shaping=()), "whole answers, all right ones alike", THOUGHT, short=True),
    sampler_row("Thompson", Thompson),
    sampler_row("Bandit", by_kind),
    sampler_row("Bandit", partial(by_kind, rule="ucb", temperature=0.1), replace(TOO_EASY, name="too_easy_ucb")),
    sampler_row("VarianceAware", VarianceAware),
    sampler_row("Curriculum", lambda prompts, seed: Curriculum(prompts, seed, edges=(1, 2), draws_per_stage=10), LADDER),
    Row("Prioritized", PRESETS["spo"], PRESETS["spo"], EPOCHS, TOO_EASY, sampler=Prioritized, changes={"prompts_per_step": 96}),
    Row("Unlikeliness", replace(CLIPPED, shaping=(Unlikeliness(),)), CLIPPED, "every right answer earns alike", RARE),
    against("gui_g1", "all prompts alike", SMALL_TARGETS, importance=(), short=True),
    against("attention_rhythm", "all tokens alike", ANCHORED, importance=()),
]  # fmt: skip
