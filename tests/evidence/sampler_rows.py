"""Samplers that learn against shuffled epochs, and methods that weigh prompts or tokens by what is known of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.learned import Bandit, Curriculum, Prioritized, Thompson, VarianceAware
from mmrl.algorithms.shaping.combine import Unlikeliness
from mmrl.answers.boxes.box import Box
from mmrl.core.protocols import PromptSampler
from mmrl.core.types import Group, Prompt
from tests.evidence.task import MakeSampler, Row, TextTask, mean, text_of
from tests.evidence.text_tasks import RARE, TOO_EASY, mean_first_letter, prompts_of

GRPO = PRESETS["grpo"]
CLIPPED = replace(GRPO, objective=((1.0, Clip()),), minibatches=4)
EPOCHS = "shuffled epochs"


def by_kind(prompts: Sequence[Prompt], seed: int, **settings: Any) -> PromptSampler:
    """A bandit over two kinds of prompts, SEC's unless told otherwise: those that want the usual answer, and the others."""
    kinds = ["easy" if prompt.answer == "a" else "hard" for prompt in prompts]
    marked = [replace(prompt, columns={**prompt.columns, "category": kind}) for prompt, kind in zip(prompts, kinds, strict=True)]
    return Bandit(marked, seed, **settings)


def ladder(seed: int) -> list[Prompt]:
    """Of 48 prompts, a third each wants one letter, a pair and three letters, all told by the same numbers."""
    found = prompts_of(lambda vector, i: "abc"[int(vector.argmax())] * (1 + i % 3), 48)(seed)
    return [replace(prompt, columns={**prompt.columns, "difficulty": len(prompt.answer)}) for prompt in found]


def whole_word(group: Group) -> list[float]:
    return [float(text_of(sample).startswith(group.prompt.answer)) for sample in group.samples]


def hardest(groups: Sequence[Group]) -> float:
    """The mean of `whole_word` over the prompts that want three letters."""
    return mean([mean(whole_word(group)) for group in groups if len(group.prompt.answer) == 3])


LADDER = TextTask(
    "ladder",
    "what hard prompts want begins with what easy ones want, and is hardly ever found by chance",
    "share right of the hard prompts",
    ladder,
    (("word", whole_word),),
    hardest,
    start=(1, 1, 1, 1, 0.3),
    samples=8_000,
)


def targets(seed: int) -> list[Prompt]:
    """Half of the prompts have a tiny box, and want a letter that is rare at the start; the others have a large one."""

    def box(vector: torch.Tensor, i: int) -> Box:
        return Box(0.1, 0.1, 0.12, 0.12, "norm1") if i % 2 else Box(0.1, 0.1, 0.9, 0.9, "norm1")

    return [
        replace(
            prompt, columns={"vector": [3.0 if i % 2 else -3.0, *prompt.columns["vector"][1:]], "letter": "d" if i % 2 else "a"}
        )
        for i, prompt in enumerate(prompts_of(box)(seed))
    ]


def named_letter(group: Group) -> list[float]:
    return [float(text_of(sample)[:1] == group.prompt.columns["letter"]) for sample in group.samples]


SMALL_TARGETS = TextTask(
    "small_targets",
    "prompts with small targets are rarely solved at the start, those with large ones half of the time",
    "share right where the target is small",
    targets,
    (("letter", named_letter),),
    lambda groups: mean([mean(named_letter(group)) for group in groups if group.prompt.columns["letter"] == "d"]),
    start=(2, 1, 1, 0.05, 0.3),
    samples=1_000,
)
ANCHORED = TextTask(
    "anchored",
    "later letters look at the first one, which alone is the answer",
    "share right",
    prompts_of(lambda vector, i: "abc"[int(vector.argmax())]),
    (("letter", lambda group: [float(text_of(s)[:1] == group.prompt.answer) for s in group.samples]),),
    mean_first_letter,
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
    Row("gui_g1", PRESETS["gui_g1"], replace(PRESETS["gui_g1"], importance=()), "all prompts alike", SMALL_TARGETS,
        short=True),
    Row("attention_rhythm", PRESETS["attention_rhythm"], replace(PRESETS["attention_rhythm"], importance=()), "all tokens alike",
        ANCHORED),
]  # fmt: skip
"""Samplers, and presets that weigh tokens or prompts."""
