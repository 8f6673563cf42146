"""`mmrl demo`: complete jobs on this machine, without downloads: a tiny model is pretrained, then improved by its rewards.

A demo is an entry of DEMOS, a config whose `policy.model` is `tiny:<name>`, and that name in mmrl.tiny.taught.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrl.app.run.folder import RunDir

SEEDS = ("seed", "data.seed", "evaluation.data.seed")


@dataclass(frozen=True)
class Demo:
    """One demo."""

    config: str
    summary: str
    """For `mmrl demo --help`."""
    imitation: str
    """Printed before the first part."""
    reinforcement: str
    """Printed before the second part."""


DEMOS = {
    "grounding": Demo(
        config="tiny/grounding",
        summary="Teach a tiny Qwen3-VL to draw tight boxes around digits; ends with numbers before and after, and a report.",
        imitation="a Qwen3-VL of 0.9 M parameters learns from boxes that are too large, half of them round the wrong digit",
        reinforcement="it is rewarded for the overlap of its boxes with the right ones",
    ),
    "video": Demo(
        config="tiny/video",
        summary="Teach a tiny Qwen3-VL to say when and which digits appear in mp4 files; ends with film strips.",
        imitation="a Qwen3-VL of 0.8 M parameters learns from spans that are too long, half of them another digit's, and from "
        "answers that name one digit of two",
        reinforcement="it is rewarded for the overlap of its spans with the right ones, and for right letters",
    ),
    "t2i": Demo(
        config="tiny/t2i",
        summary="Teach a tiny Stable Diffusion 3 to draw what captions ask for; ends with numbers and pictures before and after.",
        imitation="a Stable Diffusion 3 of 2.4 M parameters learns from pictures of which half are stained and half have a wrong "
        "caption",
        reinforcement="it is rewarded for the right colour, side and shape, and for clean paper",
    ),
    "t2i-text": Demo(
        config="tiny/t2i_text",
        summary="Teach a tiny Stable Diffusion 3 to draw the number in its caption, judged by a real text recognizer.",
        imitation="a Stable Diffusion 3 of 2.4 M parameters learns from prints of which half are smeared and half have a wrong "
        "caption",
        reinforcement="it is rewarded for what a text recogniser reads in its pictures",
    ),
    "edit": Demo(
        config="tiny/edit",
        summary="Teach a tiny FLUX.1-Kontext to edit pictures as asked; ends with numbers and source, before and after.",
        imitation="a FLUX.1-Kontext of 2.2 M parameters learns from edits of which half are stained and half follow another "
        "instruction",
        reinforcement="it is rewarded for doing what the instruction says, times what it keeps of the rest",
    ),
    "t2v": Demo(
        config="tiny/t2v",
        summary="Teach a tiny Wan to draw clips of shapes that move as captions ask; ends with film strips before and after.",
        imitation="a Wan of 3.1 M parameters learns from clips of which half flicker and half have a wrong caption",
        reinforcement="it is rewarded for the right direction, times colour, shape, smoothness and clean paper",
    ),
}


def run(name: str, output: Path | None = None, seed: int = 0, overrides: Sequence[str] = ()) -> "RunDir":
    """Teach the demo's model by imitation (once; then it is cached), and train it as the demo's config says.

    `seed` decides the imitation, the data and the training. With another `policy.model` among the overrides the first part is
    left out. Raises ValueError for an unknown demo, or overrides that the config does not take.
    """
    from mmrl.app.commands.train import run_training
    from mmrl.app.config import run as configs
    from mmrl.app.run.context import console

    demo = demo_of(name)
    words = [f"{key}={seed}" for key in SEEDS]
    if output is not None:
        words.append(f"output={str(output)!r}")
    words += overrides
    configs.load(demo.config, words)
    if not any(word.startswith("policy.model=") for word in words):
        console.print(f"1. imitation: {demo.imitation}")
        words.append(f"policy.model={str(taught_model(name, seed))!r}")
    console.print(f"2. reinforcement: {demo.reinforcement}")
    return run_training(configs.load(demo.config, words))


def demo_of(name: str) -> Demo:
    if name not in DEMOS:
        raise ValueError(f"there is no demo {name!r}: choose one of {', '.join(DEMOS)}")
    return DEMOS[name]


def taught_model(name: str, seed: int) -> Path:
    """The folder of the model that imitation made; says how far it is while it is made."""
    from rich.progress import Progress, TextColumn, TimeRemainingColumn

    from mmrl.app.config import run as configs
    from mmrl.app.errors import Lines, Wait
    from mmrl.app.modality.registry import modality_of
    from mmrl.app.run.build import TINY
    from mmrl.app.run.context import console
    from mmrl.tiny.taught import TAUGHT

    policy = configs.load(demo_of(name).config).config.policy
    bar = Progress(
        TextColumn("  step {task.completed:.0f}/{task.total:.0f}  {task.description}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    wait, lines = Wait("drawing what it learns from"), Lines(console)
    with bar:
        task = bar.add_task("", total=1, visible=False)

        def note(step: int, steps: int, loss: float) -> None:
            wait.end()
            bar.update(task, completed=step, total=steps, description=f"loss {loss:.2f}", visible=True)
            lines.say(f"  step {step}/{steps}  loss {loss:.2f}", step == steps)

        wait.begin()
        try:
            return TAUGHT[modality_of(policy).name][policy.model.removeprefix(TINY)](seed, note)
        finally:
            wait.end()
