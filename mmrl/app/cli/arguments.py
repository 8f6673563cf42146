"""Arguments that several commands take, and options that come as one object."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from typer import Argument, Option

from mmrl.app.commands.help import complete_reward

AsJson = Annotated[bool, Option("--json", help="Print JSON for programs instead; nothing else goes to stdout.")]
RunFolder = Annotated[Path, Argument(metavar="RUN", help="The output folder of a run.")]

LayoutName = Annotated[
    str | None, Option("--as", metavar="NAME", help="The file's layout: boxes, questions, messages, llava, coco, ..")
]
ImageRoot = Annotated[
    Path | None, Option(help="Folder that paths of pictures and clips are relative to (default: the source's folder).")
]
Copy = Annotated[bool, Option("--copy", help="Copy the pictures and clips next to the output, so that its folder may move.")]


@dataclass(frozen=True)
class TaskOptions:
    """The options of a run without a config."""

    task: Annotated[
        str | None,
        Option(
            help="Without a config: grounding, video (clips), qa, t2i (text to image), t2v (clips), i2v (from a picture) or edit."
        ),
    ] = None
    model: Annotated[str | None, Option(help="With --task: a folder or hub name.")] = None
    data: Annotated[str | None, Option(help="With --task: a data file, or a name from `mmrl ls datasets`.")] = None
    reward: Annotated[
        list[str] | None,
        Option(
            metavar="NAME[=WEIGHT]",
            help="With --task: a name from `mmrl ls rewards` or ./file.py[:Callable]; may be repeated.",
            autocompletion=complete_reward,
        ),
    ] = None
    held_out: Annotated[
        str | None,
        Option(metavar="DATA", help="With --task: prompts to evaluate on (default: `test` next to `train`, if it exists)."),
    ] = None
    image_root: ImageRoot = None


@dataclass(frozen=True)
class FileOptions:
    """The options of a file of prompts or outputs."""

    layout: LayoutName = None
    image_root: ImageRoot = None


@dataclass(frozen=True)
class PlanOptions(TaskOptions):
    """The same, of a plan."""

    as_json: AsJson = False


@dataclass(frozen=True)
class EvalOptions:
    """The options of an evaluation without a run or config."""

    task: Annotated[str | None, Option(help="Without a run or config: the task, as in `mmrl train`.")] = None
    model: Annotated[str | None, Option(help="With --task: a folder or hub name.")] = None
    data: Annotated[
        str | None,
        Option(help="With --task: a data file, or a name from `mmrl ls datasets`; with --suite: the folder of its files."),
    ] = None
    suite: Annotated[str | None, Option(metavar="NAME", help="A published test set, such as refcoco; or ./mine.py.")] = None
    reward: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="With --task: what scores the answers; repeat it.", autocompletion=complete_reward),
    ] = None


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export: which weights, and in which form."""

    step: Annotated[int | None, Option(help="Use this checkpoint instead of the newest.")] = None
    merge: Annotated[bool, Option(help="Merge LoRA into the model's weights.")] = False
    onto: Annotated[
        Literal["trained", "original"],
        Option(help="With --merge, after training in 4 bits: the rounded weights, or the stored ones, with other answers."),
    ] = "trained"
    weights: Annotated[Literal["live", "ema"], Option(help="The trained weights, or their running average.")] = "live"
    form: Annotated[Literal["diffusers", "peft", "kohya"], Option(help="Of a generator's adapter: whose programs read it.")] = (
        "diffusers"
    )


def with_task(function: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's first argument, an object of options, by an option per field, after the argument behind it."""
    signature = inspect.signature(function)
    first, following, *rest = signature.parameters.values()
    cls: type[TaskOptions | EvalOptions | FileOptions | ExportOptions] = first.annotation
    hints = get_type_hints(cls, include_extras=True)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = [inspect.Parameter(f.name, kind, default=f.default, annotation=hints[f.name]) for f in fields(cls)]

    @wraps(function)
    def command(*args: Any, **given: Any) -> None:
        options = cls(**{f.name: given.pop(f.name) for f in fields(cls) if f.name in given})
        function(options, *args, **given)

    # Python wants those without a default first
    parameters = sorted([following, *own, *rest], key=lambda one: one.default is not one.empty)
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] - typer reads it
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command
