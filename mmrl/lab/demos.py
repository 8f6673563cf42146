"""`mmrl demo`: complete jobs on this machine, without downloads: a tiny model is pretrained, then improved by its rewards.

A demo is an entry of DEMOS, a config whose models are `tiny:<name>`, and those names in mmrl.lab.tiny.taught.
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
    short: tuple[str, ...] = ("evaluation.num_samples=1", "prompts_per_step=2")
    """Overrides of `--short`, besides a few steps."""
    painter: str = ""
    """The taught model that draws for the one that is trained."""
    twin: tuple[str, ...] = ()
    """Overrides of a second run, which the first one is compared with."""
    without: str = ""
    """Printed before the third part, the second run."""


FEW = ("evaluation.num_prompts=8", "evaluation.data.size=8", "data.size=64", "prompts_per_step=4")
DEMOS = {
    "grounding": Demo(
        config="tiny/grounding",
        summary="Teach a tiny Qwen3-VL to draw tight boxes around digits; ends with numbers before and after, and a report.",
        imitation="a Qwen3-VL of 0.9 M parameters learns from boxes that are too large, half of them round the wrong digit",
        reinforcement="it is rewarded for the overlap of its boxes with the right ones",
        short=FEW,
    ),
    "look-twice": Demo(
        config="tiny/look_twice",
        summary="Teach a tiny Qwen3-VL to zoom in before it answers; ends with dialogues, next to a twin without the tool.",
        imitation="a Qwen3-VL of 0.9 M parameters learns to read a digit in a part of a picture and to point at it, then from "
        "people who seldom look, and often at the wrong place",
        reinforcement="it is rewarded for right answers, and may zoom in before it gives one",
        short=FEW,
        twin=("environment.limits.turns=1",),
        without="the same model is rewarded in the same way, and must answer at once",
    ),
    "video": Demo(
        config="tiny/video",
        summary="Teach a tiny Qwen3-VL to say when and which digits appear in mp4 files; ends with film strips.",
        imitation="a Qwen3-VL of 0.8 M parameters learns from spans that are too long, half of them another digit's, and from "
        "answers that name one digit of two",
        reinforcement="it is rewarded for the overlap of its spans with the right ones, and for right letters",
        short=FEW,
    ),
    "beeps": Demo(
        config="tiny/beeps",
        summary="Teach a tiny Qwen2.5-Omni to say when a tone is heard in a sound; ends with sounds beside their waveforms.",
        imitation="a Qwen2.5-Omni thinker of 0.9 M parameters learns from spans that begin too early and end too late",
        reinforcement="it is rewarded for the overlap of its spans with the right ones",
        short=FEW,
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
    "writer": Demo(
        config="tiny/writing",
        summary="Teach a tiny Qwen3-VL which words a tiny Stable Diffusion 3 understands; ends with wishes, words and pictures.",
        imitation="a Stable Diffusion 3 of 2.4 M parameters learns to draw from captions, and a Qwen3-VL of 0.9 M to say a wish "
        "in other words, of which the captions have one in three",
        reinforcement="the writer is rewarded for what is drawn from its words",
        short=FEW,
        painter="clean_shapes",
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
        short=("evaluation.num_samples=1", "prompts_per_step=2", "policy.height=16", "policy.width=16"),
    ),
    "tones": Demo(
        config="tiny/tones",
        summary="Teach a tiny Stable Audio 3 to draw the asked tone at the asked time; ends with sounds before and after.",
        imitation="a Stable Audio 3 of 0.3 M parameters learns from tones of which half ring on and 1 in 5 have a wrong caption",
        reinforcement="it is rewarded for energy in the asked band, and for ringing when it is asked to and only then",
    ),
}


def run(name: str, output: Path | None = None, seed: int = 0, overrides: Sequence[str] = (), short: bool = False) -> "RunDir":
    """Teach the demo's model by imitation (once; then it is cached), and train it as the demo's config says.

    `seed` decides the imitation, the data and the training. With another `policy.model` among the overrides the first part is
    left out. `short`: every part is a few steps long, which shows that it runs, and not that it learns. Raises ValueError for an
    unknown demo, or overrides that the config does not take.
    """
    from mmrl.app.commands.train import run_training
    from mmrl.app.config import run as configs
    from mmrl.app.run.context import console

    demo = demo_of(name)
    words = [f"{key}={seed}" for key in SEEDS]
    if short:
        words += ["steps=3", "evaluate_every=0", "samples_every=1", *demo.short]
    if output is not None:
        words.append(f"output={str(output)!r}")
    words += overrides
    configs.load(demo.config, words)
    if not any(word.startswith("policy.model=") for word in words):
        console.print(f"1. imitation: {demo.imitation}")
        words.append(f"policy.model={str(taught_model(name, seed, short))!r}")
        if demo.painter:
            words.append(f"reward.0.painter.model={str(teach_aloud('flow', demo.painter, seed, short))!r}")
    console.print(f"2. reinforcement: {demo.reinforcement}")
    trained = run_training(configs.load(demo.config, words))
    if demo.twin:
        console.print(f"3. its twin: {demo.without}")
        run_training(configs.load(demo.config, [*words, *demo.twin, f"output={str(twin_of(trained.path))!r}"]))
    if short:
        console.print("--short: each part ran for a few steps, which teach nothing; leave it out to see the rewards rise")
    return trained


def twin_of(run: Path) -> Path:
    """The folder of the second run, next to the first one's."""
    return run.with_name(f"{run.name}-twin")


def demo_of(name: str) -> Demo:
    if name not in DEMOS:
        raise ValueError(f"there is no demo {name!r}: choose one of {', '.join(DEMOS)}")
    return DEMOS[name]


def taught_model(name: str, seed: int, short: bool = False) -> Path:
    """The folder of the model that imitation made for a demo."""
    from mmrl.app.config import run as configs
    from mmrl.app.modality.registry import modality_of
    from mmrl.app.plugins.lab import TINY

    policy = configs.load(demo_of(name).config).config.policy
    return teach_aloud(modality_of(policy).name, policy.model.removeprefix(TINY), seed, short)


def teach_aloud(kind: str, model: str, seed: int, short: bool) -> Path:
    """The folder of a taught model; says how far it is while it is made."""
    from rich.progress import Progress, TextColumn, TimeRemainingColumn

    from mmrl.app.errors import Lines, Wait
    from mmrl.app.run.context import console
    from mmrl.lab.models import teach_once

    bar = Progress(
        TextColumn("  part {task.fields[part]}, step {task.completed:.0f}/{task.total:.0f}  {task.description}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    wait, lines = Wait("drawing what it learns from"), Lines(console)
    with bar:
        task = bar.add_task("", total=1, part=1, visible=False)

        seen = [1, 0]

        def note(step: int, steps: int, loss: float) -> None:
            wait.end()
            # a training that begins again at its first step is the next one
            seen[:] = seen[0] + (step < seen[1]), step
            bar.update(task, completed=step, total=steps, description=f"loss {loss:.2f}", part=seen[0], visible=True)
            lines.say(f"  part {seen[0]}, step {step}/{steps}  loss {loss:.2f}", step == steps)

        wait.begin()
        try:
            return teach_once(kind, model, seed, note, short)
        finally:
            wait.end()
