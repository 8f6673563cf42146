"""`mmrl demo`: the main job end to end on this machine, with nothing to download."""

from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress, TextColumn, TimeRemainingColumn

from mmrl.app import config as configs
from mmrl.app.jobs import console, run_training
from mmrl.app.rundir import RunDir
from mmrl.tiny.grounding import WarmStart, warm_start


def grounding(output: Path | None = None, seed: int = 0, overrides: Sequence[str] = ()) -> RunDir:
    """Teach a tiny Qwen3-VL by imitation of sloppy boxes (once; then it is cached), and improve it by GRPO on exact IoU.

    `seed` decides the warm start, the scenes and the training; `overrides` are `key=value` of configs/tiny/grounding.toml.
    """
    words = [f"{key}={seed}" for key in ("seed", "data.seed", "evaluation.data.seed")]
    if output is not None:
        words.append(f"output={str(output)!r}")
    configs.load("tiny/grounding", [*words, *overrides])
    console.print(
        "1. imitation: a Qwen3-VL of 0.9 M parameters learns from boxes that are too large, half of them round the wrong digit"
    )
    model = taught(seed)
    console.print("2. reinforcement: it is rewarded for the overlap of its boxes with the right ones")
    return run_training(configs.load("tiny/grounding", [*words, f"policy.model={str(model)!r}", *overrides]))


def taught(seed: int) -> Path:
    """The folder of the model that imitation made, with a progress bar while it is made."""
    bar = Progress(
        TextColumn("  step {task.completed:.0f}/{task.total:.0f}  {task.description}"), TimeRemainingColumn(), console=console
    )
    with bar:
        task = bar.add_task("", total=WarmStart(seed=seed).steps, visible=False)

        def note(step: int, steps: int, loss: float) -> None:
            bar.update(task, completed=step, total=steps, description=f"loss {loss:.2f}", visible=True)

        return warm_start(WarmStart(seed=seed), progress=note)
