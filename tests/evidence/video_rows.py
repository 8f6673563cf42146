"""Methods for video and pictures: clips are numbers in an order, pictures three patches of grey, hints letters that are told."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from PIL import Image

from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.presets import PRESETS
from mmrl.core.types import Group, Prompt, Video
from tests.evidence.task import Row, TextTask, against, mean_of, of_text, text_of, unclipped
from tests.evidence.text_tasks import GUESS, NOISY, first_letter, largest, mean_first_letter, prompts_of

fourth_letter = of_text(lambda text, prompt: text[3:4] == prompt.answer)
IDLE = TextTask(
    "idle_tokens",
    "the fourth of ten letters is the answer, and the others are idle",
    "share right",
    prompts_of(largest),
    (("letter", fourth_letter),),
    start=(1, 1, 1, 0.3, 0.1),
    length=10,
    samples=6_000,
)
whole = of_text(lambda text, prompt: text.startswith(prompt.answer))
"""1 where the answer stands whole at the beginning."""
HINTS = TextTask(
    "unsolvable_alone",
    "half of the prompts want three letters in a row, which one sample in a hundred or fewer finds",
    "share right of these prompts, without any hint",
    prompts_of(lambda vector, i: "dcb" if vector[0] > 0 else "a"),
    (("whole", whole),),
    mean_of(whole, lambda prompt: len(prompt.answer) > 1),
    start=(3, 1, 1, 1, 0.5),
    samples=6_000,
)


def clips(made: Callable[[int], Sequence[Prompt]]) -> Callable[[int], list[Prompt]]:
    """The same prompts with a clip each, whose frames are the three numbers."""
    return lambda seed: [replace(prompt, media=(Video("clip.mp4", fps=2.0),)) for prompt in made(seed)]


def with_habit(group: Group) -> list[float]:
    """Half for the right letter, half for a second letter that needs no look at the clip."""
    return [
        0.5 * right + 0.5 * (text_of(sample)[1:2] == "b")
        for sample, right in zip(group.samples, first_letter(group), strict=True)
    ]


ORDER = TextTask(
    "order_of_frames",
    "half of the reward needs the order of the frames, half of it a habit",
    "share that reads the order right",
    clips(prompts_of(largest)),
    (("answer", with_habit),),
    mean_first_letter,
    samples=8_000,
)


def pictures(seed: int) -> list[Prompt]:
    """The numbers as the greys of three patches; the answer is the lightest one."""
    return [replace(prompt, media=(picture(prompt.columns["vector"]),)) for prompt in prompts_of(largest)(seed)]


def picture(values: Sequence[float]) -> Image.Image:
    image = Image.new("L", (42, 14))
    for i, value in enumerate(values):
        image.paste(int(min(max(128 + 50 * value, 0), 255)), (14 * i, 0, 14 * (i + 1), 14))
    return image.convert("RGB")


LOOK = TextTask(
    "look_at_it",
    "one letter is right for half of the prompts, and which ones only the picture tells",
    "share right",
    pictures,
    (("letter", first_letter),),
    start=(3, 1, 1, 0.3, 0.3),
    samples=6_000,
)


def planned(name: str, **changes: Any) -> Any:
    """The preset with a planner of these settings."""
    preset: Any = PRESETS[name]
    return replace(preset, planner=replace(preset.planner, **changes))


TRUTHFUL = planned("temp_samp_r1", template="{answer}")
"""Given answers are the letters alone."""
WATCHFUL = planned("deepvideo_r1", window=64)
"""It remembers a third of a step."""
ROWS = [
    against("tw_grpo", "all tokens alike", IDLE, importance=()),
    Row("reg_grpo", PRESETS["reg_grpo"], unclipped(PRESETS["reg_grpo"]), "REINFORCE, four updates per step as here", GUESS),
    Row("deepvideo_r1", WATCHFUL, PRESETS["reg_grpo"], "reg_grpo on the prompts as they are", HINTS),
    against("t_grpo", "no probes and no bonus", ORDER, shaping=(), planner=Once()),
    Row("temp_samp_r1", TRUTHFUL, replace(PRESETS["temp_samp_r1"], planner=Once(), shaping=()), "no given answer", HINTS),
    against("grpo_care", "no bonus", NOISY, shaping=()),
    against("papo", "the clip and the KL alone", LOOK, objective=PRESETS["papo"].objective[:2]),
]
ELSEWHERE = {"urpa": "without labels better than at the start, three seeds: tests/learning/test_unlabelled.py"}
