"""The options of verbs, each said once: how it is typed, its help, and what the verb is given; loads no torch."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from typer import Argument, Option
from typer.models import ArgumentInfo, OptionInfo

from mmrl.app.commands.help import complete_config, complete_reward

if TYPE_CHECKING:
    from mmrl.app.config.run import Resolved


def words(metavar: str, said: str) -> ArgumentInfo:
    """The words of a command, of which the shell completes a config's name."""
    return Argument(metavar=metavar, help=said, autocompletion=complete_config)


RunFolder = Annotated[Path, Argument(metavar="RUN", help="The output folder of a run.")]


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's first argument, an object of options, by an argument or option per field."""
    signature = inspect.signature(function)
    first, *rest = signature.parameters.values()
    cls: Any = first.annotation
    names, hints, kind = [f.name for f in fields(cls)], get_type_hints(cls, include_extras=True), first.kind
    usual = [f.default if f.default_factory is MISSING else None for f in fields(cls)]
    usual = [inspect.Parameter.empty if value is MISSING else value for value in usual]
    own = [inspect.Parameter(name, kind, default=value, annotation=hints[name]) for name, value in zip(names, usual, strict=True)]

    @wraps(function)
    def command(*args: Any, **given: Any) -> None:
        options = {name: value for name in names if (value := given.pop(name, None)) is not None}
        function(cls(**options), *args, **given)

    # Python wants those without a default first, readers the arguments before the options
    is_option = {one.name: any(isinstance(said, OptionInfo) for said in get_args(one.annotation)) for one in (*own, *rest)}
    parameters = sorted([*own, *rest], key=lambda one: (one.default is not one.empty, is_option[one.name]))
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] - typer reads it
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


Overrides = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Overrides, for example optimizer.lr=1e-5 reward.0.weight=0.5")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON for programs instead; nothing else goes to stdout.")]
LayoutName = Annotated[
    str | None, Option("--as", metavar="NAME", help="The file's layout: boxes, questions, messages, llava, coco, ..")
]
ImageRoot = Annotated[
    Path | None, Option(help="Folder that paths of pictures and clips are relative to (default: the source's folder).")
]
Copy = Annotated[bool, Option("--copy", help="Copy the pictures and clips next to the output, so that its folder may move.")]
Turns = Annotated[Literal["one", "each"], Option(help="Conversations: one question per row, or a row for each question.")]
Card = Annotated[str | None, Option(metavar="SIZE", help="A GPU, by memory (24GB) or name (RTX 4090); default: this machine's.")]
Resume = Annotated[Path | None, Option(metavar="RUN", help="Continue this run from its last whole checkpoint.")]


@dataclass(frozen=True)
class TaskArguments:
    """A run by a config and overrides, or in one line without a config."""

    arguments: Annotated[
        list[str], words("[CONFIG] [KEY=VALUE]...", "A TOML file or a name from `mmrl ls configs`, then overrides.")
    ] = field(default_factory=list[str])
    task: Annotated[
        str | None,
        Option(
            help="Without a config: grounding, video, qa, t2i (pictures), t2v (clips), t2a (sounds), i2v (from pictures) or edit."
        ),
    ] = None
    model: Annotated[str | None, Option(help="With --task: a folder or hub name.")] = None
    data: Annotated[str | None, Option(help="With --task: a data file, or a name from `mmrl ls datasets`.")] = None
    rewards: Annotated[
        list[str],
        Option(
            "--reward",
            metavar="NAME[=WEIGHT]",
            help="With --task: a name from `mmrl ls rewards` or ./file.py[:Callable]; may be repeated.",
            autocompletion=complete_reward,
        ),
    ] = field(default_factory=list[str])
    held_out: Annotated[
        str | None,
        Option(metavar="DATA", help="With --task: prompts to evaluate on (default: `test` next to `train`, if it exists)."),
    ] = None
    image_root: ImageRoot = None


@dataclass(frozen=True)
class TrainArguments(TaskArguments):
    """The words of `mmrl train`."""

    card: Annotated[
        str | None,
        Option(metavar="SIZE", help="With --task: the GPU to fit the run to, as 24GB or RTX 4090 (default: this machine's)."),
    ] = None
    output: Annotated[Path | None, Option(help="Folder of the run (default: the next free one in runs/).")] = None
    resume: Resume = None
    profile: Annotated[str | None, Option(metavar="STEPS", help="Record a Chrome trace of these steps, such as 3 or 3-5.")] = None

    def absolute(self) -> "TrainArguments":
        """The same words with a config's file, --output and --resume as absolute paths, for a run that goes to another folder."""
        first, *rest = self.arguments or [""]
        words = [str(Path(first).resolve()), *rest] if "=" not in first and Path(first).is_file() else self.arguments
        output, resume = (path and path.expanduser().resolve() for path in (self.output, self.resume))
        return replace(self, arguments=words, output=output, resume=resume)

    def resolve(self) -> "Resolved":
        """The run they describe; ValueError for no config and no task, both, or options that belong to a task only."""
        from mmrl.app.config import run as configs
        from mmrl.app.config.tasks import one_line
        from mmrl.app.run.folder import RunDir

        words = list(self.arguments)
        name = words.pop(0) if words and "=" not in words[0] else None
        if self.output is not None:
            words.append(f"output={str(self.output)!r}")
        if self.task is not None:
            if name is not None:
                raise ValueError(
                    f"give a config ({name}) or --task {self.task}, not both: a model is named as in "
                    f"--model {name}, and settings are written key=value"
                )
            return one_line(self.task, self.model, self.data, self.rewards, words, self.held_out, self.image_root)
        for option, given in (("--model", self.model), ("--data", self.data), ("--reward", self.rewards)):
            if given:
                raise ValueError(f"{option} goes with --task; in a config write policy.model=..., data.use=... or [[reward]]")
        for option, given in (("--held-out", self.held_out), ("--image-root", self.image_root), ("--card", self.card)):
            if given:
                raise ValueError(f"{option} goes with --task, which fits a run to its card; a config says all of it: mmrl plan")
        if name is not None:
            return configs.load(name, words)
        if self.resume is not None:
            return configs.load(str(RunDir.open(self.resume).config_file), words)
        raise ValueError("give a config (see `mmrl ls configs`) or a --task; mmrl train also takes a run to --resume")


@dataclass(frozen=True)
class PlanArguments(TaskArguments):
    """The words of `mmrl plan`."""

    as_json: AsJson = False
    save: Annotated[Path | None, Option(metavar="FILE", help="With --task: write the chosen config, for `mmrl train FILE`.")] = (
        None
    )
    calibrate: Annotated[int, Option(help="Measure the time of this many real steps; nothing of them is kept.")] = 0
    card: Card = None
    processes: Annotated[
        int | None, Option(help="Number of GPUs that the run uses; cluster.trainers of the config, if left out.")
    ] = None
    price: Annotated[float | None, Option(help="Price per hour of all processes, to estimate what the run costs.")] = None

    def resolve(self) -> "Resolved":
        """The run they describe."""
        return TrainArguments(**{f.name: getattr(self, f.name) for f in fields(TaskArguments)}).resolve()


@dataclass(frozen=True)
class SampleOptions:
    """The samples that `mmrl sample` draws again, and where it writes what they show."""

    step: Annotated[int, Option(help="The step; the checkpoint before it must still exist (save_every).")]
    prompt: Annotated[str, Option(metavar="ID", help="The prompt's id, as in the run's samples.")]
    split: Annotated[Literal["train", "eval"], Option(help="Samples from training, or from held-out prompts.")] = "train"
    index: Annotated[int | None, Option("--sample", help="Show only this sample, counted from 0.")] = None
    out: Annotated[Path | None, Option(metavar="DIR", help="Write the pictures that the model saw and drew.")] = None
    whole: Annotated[bool, Option("--whole", help="Sample and score the whole step, exactly as training did.")] = False


@dataclass(frozen=True)
class LaunchArguments:
    """The words of `mmrl launch`."""

    arguments: Annotated[
        list[str], words("[CONFIG] [KEY=VALUE]...", "A config whose table cluster says who runs where, then overrides.")
    ] = field(default_factory=list[str])
    resume: Resume = None
    dry_run: Annotated[bool, Option("--dry-run", help="Print what would run where, and start nothing.")] = False
    node: Annotated[int | None, Option(help="With several nodes, the number of this one; set by the batch script.")] = None
    hosts: Annotated[
        str, Option(metavar="A,B,...|auto", help="The names of all nodes; auto: a scheduler's variables say them, and --node.")
    ] = ""
    on: Annotated[Literal["", "ray"], Option(metavar="ray", help="Run on the machines of a Ray cluster.")] = ""

    def resolve(self) -> "Resolved":
        """The run they describe; the servers of one that is resumed are those of this launch."""
        resolved = TrainArguments(self.arguments, resume=self.resume).resolve()
        if self.resume is None or not resolved.config.cluster.engines:
            return resolved
        return TrainArguments([*self.arguments, "policy.engine.url=[]"], resume=self.resume).resolve()

    @property
    def words(self) -> list[str]:
        """The words that give the same config to `mmrl train`."""
        return [*self.arguments, *([] if self.resume is None else ["--resume", str(self.resume)])]


@dataclass(frozen=True)
class EvalArguments:
    """The words of `mmrl eval`."""

    arguments: Annotated[
        list[str],
        words(
            "[RUN|CONFIG|MODEL] [KEY=VALUE]...",
            "A run's folder (its newest checkpoint), a config (the untrained model), with --suite a model; then overrides.",
        ),
    ] = field(default_factory=list[str])
    task: Annotated[str | None, Option(help="Without a run or config: the task, as in `mmrl train`.")] = None
    model: Annotated[str | None, Option(help="With --task: a folder or hub name.")] = None
    data: Annotated[
        str | None,
        Option(help="With --task: a data file, or a name from `mmrl ls datasets`; with --suite: the folder of its files."),
    ] = None
    suite: Annotated[str | None, Option(metavar="NAME", help="A published test set, such as refcoco; or ./mine.py.")] = None
    rewards: Annotated[
        list[str],
        Option(
            "--reward", metavar="NAME", help="With --task: what scores the answers; repeat it.", autocompletion=complete_reward
        ),
    ] = field(default_factory=list[str])
    step: Annotated[int | None, Option(help="This checkpoint of a run instead of its newest.")] = None
    output: Annotated[Path | None, Option(help="Folder of the samples and numbers; the same one goes on after a kill.")] = None
    as_json: AsJson = False


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


@dataclass(frozen=True)
class FileOptions:
    """The options of a file of prompts or outputs; its layout is guessed where none is named."""

    layout: LayoutName = None
    image_root: ImageRoot = None


@dataclass(frozen=True)
class RewardTestOptions(FileOptions):
    """The options of a test of rewards, beside their settings."""

    data: Annotated[
        str | None, Option(help="A file or folder that `data check` reads, pictures with prompts, or a data set's name.")
    ] = None
    space: Annotated[str | None, Option(help="How the policy writes boxes: pixel, norm1000, norm1 (default: the config's).")] = (
        None
    )
    template: Annotated[str | None, Option(help="How it writes answers: direct, think or json (default: the config's).")] = None
    prompts: Annotated[int, Option(help="Number of prompts to test on.")] = 32
    served: Annotated[bool, Option(help="Also compare with the same reward on a server.")] = False


@dataclass(frozen=True)
class ScoreOptions(FileOptions):
    """The files that a scoring of finished outputs writes, beside its table."""

    html: Annotated[Path | None, Option(metavar="FILE", help="Write a gallery, best first.")] = None
    out: Annotated[Path | None, Option(metavar="FILE", help="Write the scores as JSONL.")] = None


@dataclass(frozen=True)
class EnvironmentOptions(FileOptions):
    """The options of a try of worlds, beside their settings."""

    data: Annotated[
        str | None, Option(help="A file that `data check` reads, or a data set's name (default: drawn pictures of a digit).")
    ] = None
    say: Annotated[list[str], Option(metavar="TEXT", help="What is said in a turn; repeat it for the next turns.")] = field(
        default_factory=list[str]
    )
    prompts: Annotated[int, Option(min=1, max=1000, help="Number of prompts to open worlds for.")] = 4
    space: Annotated[str, Option(help="How boxes are written: pixel, norm1000, norm1.")] = "norm1000"


@dataclass(frozen=True)
class CheckOptions:
    """The options of a check of a file, beside the settings of its data set."""

    layout: LayoutName = None
    boxes: Annotated[str | None, Option(metavar="FORMAT", help="xywh, norm1, norm1000, or two such as xywh,norm1000.")] = None
    fix: Annotated[Path | None, Option(metavar="OUT.jsonl", help="Write the good rows, with boxes in pixels.")] = None
    turns: Turns = "one"
    image_root: ImageRoot = None


@dataclass(frozen=True)
class ConvertOptions:
    """The options of a conversion, beside file, output and settings."""

    layout: Annotated[
        str | None, Option("--kind", "--as", metavar="NAME", help="The layout: coco, yolo, llava, .. (default: guessed).")
    ] = None
    image_root: ImageRoot = None
    question: Annotated[str, Option(help="For boxes with labels and no questions: what to ask, with {label} in it.")] = (
        "Locate every {label} in the picture."
    )
    turns: Turns = "one"
    copy: Copy = False


@dataclass(frozen=True)
class SplitOptions:
    """The options of a split, beside file, folder and shares."""

    seed: Annotated[int, Option(help="Seed of the random split.")] = 0
    image_root: ImageRoot = None
    layout: LayoutName = None
    copy: Copy = False
