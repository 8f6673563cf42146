"""Samplers that learn against shuffled epochs, and methods that weigh prompts or tokens by what is known of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.learned import Bandit, Curriculum, Prioritized, Thompson, VarianceAware
from mmrl.algorithms.shaping.combine import Unlikeliness
from mmrl.answers.boxes.box import Box
from mmrl.core.protocols import PromptSampler
from mmrl.core.types import Prompt
from tests.evidence.task import MakeSampler, Row, TextTask, adding, against, mean_of, of_text
from tests.evidence.text_tasks import RARE, TOO_EASY, first_letter, prompts_of
from tests.evidence.video_rows import whole

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
"""Samplers, and presets that weigh tokens or prompts."""
