"""A contest: task, methods, budget and seeds, and the config of every run; all that can be refused is refused here."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.flow import DivergenceMask, FlowKL, RewardGradient
from mmrl.algorithms.objectives.forward import DenoisingPreference, GroupPreference
from mmrl.algorithms.pixels import with_rewards
from mmrl.app.config.algorithm import assemble, presets
from mmrl.app.config.plug_ins import read_plug_ins
from mmrl.app.config.run import Resolved, RewardConfig, resolve
from mmrl.app.plugins.catalog import find_config
from mmrl.app.run.build import load_prompts
from mmrl.app.toml.tables import KeyPath, Table, leaves
from mmrl.core.types import Prompt
from mmrl.flow.schedules import Branching, Forward, Full, OneStep, Tree, Window
from mmrl.flow.times import TimeSampler
from mmrl.lab.demos import taught_model
from mmrl.runtime.near import did_you_mean
from mmrl.runtime.ranges import Positive, Range, check_ranges, fault_of

OWN = ("algorithm", "optimizer", "sampler", "policy", "prompts_per_step", "micro_batch")
"""Keys of a config that a method of one's own may set; the others belong to the task, which is the same for all."""


@dataclass(frozen=True)
class ContestTask:
    """A task that methods meet on."""

    config: str
    """The shipped config whose data, rewards, model and optimizer all methods share."""
    demo: str
    """The demo whose warm-started model they begin from."""
    base: str
    """The preset under a method of one's own that names none."""
    samples: Annotated[int, Range(1, 2**20)]
    """Samples of a training step: divided by the method's group size they give the prompts of a step."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings in which the arena differs from the config: totals in [0, 1], as some methods require."""
    figure: str = "eval/total"
    """The metric that methods are ranked by: the mean total reward of held-out prompts."""


TASKS: Mapping[str, ContestTask] = {
    "grounding": ContestTask("tiny/grounding", "grounding", "grpo", 128, {"reward.0.weight": 0.9}),
    "video": ContestTask("tiny/video", "video", "grpo", 128, {"reward.0.weight": 0.9}),
    "t2i": ContestTask("tiny/t2i", "t2i", "flow_grpo", 96),
}


@dataclass(frozen=True)
class Contest:
    """The words of `mmrl arena`."""

    task: str
    methods: tuple[str, ...]
    """Presets, or TOML files with what is changed."""
    budget_s: Positive
    """Seconds of training per run; evaluations are not counted."""
    seeds: tuple[int, ...] = (0, 1, 2)
    model: str | None = None
    """Weights to begin from; None: the demo's warm-started model."""
    marks: Annotated[int, Range(1, 2**20)] = 4
    """Evaluations of a run after the start, evenly over its budget."""
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.task not in TASKS:
            raise ValueError(f"there is no task {self.task!r}: choose one of {', '.join(TASKS)}")
        labels = [label_of(method) for method in self.methods]
        for word, given in (("method", labels), ("seed", [*map(str, self.seeds)])):
            if not given:
                raise ValueError(f"an arena needs at least one {word}: give --{word}s a,b,c")
            twice = next((one for one in given if given.count(one) > 1), None)
            if twice is not None:
                raise ValueError(f"--{word}s names {twice} twice: name each {word} once (a file counts by its name)")
        if any(seed < 0 for seed in self.seeds):
            raise ValueError(f"--seeds holds {min(self.seeds)}: seeds are 0 or more")

    @property
    def num_runs(self) -> int:
        return len(self.methods) * len(self.seeds)


def label_of(method: str) -> str:
    """The name of a method in tables: of a file its name without the ending."""
    return Path(method).stem if method.endswith(".toml") else method


def resolve_run(contest: Contest, method: str, seed: int) -> Resolved:
    """The config of one run: that of the task with the method's algorithm, sizes and seeds.

    Raises FileNotFoundError where the method is a file that is not there, ValueError if it is unknown or does not fit the task.
    """
    task = TASKS[contest.task]
    table = Table.read(find_config(task.config))
    table.set(("algorithm",), {"preset": task.base if method.endswith(".toml") else method}, f"method {method}")
    if method.endswith(".toml"):
        add_changes(table, Path(method).expanduser())
    elif method not in presets():
        raise ValueError(f"there is no method {method!r}: {did_you_mean(method, presets())}, or give a TOML file")
    for key, value in task.settings.items():
        table.set(tuple(key.split(".")), value, "arena")
    for word in contest.overrides:
        table.override(word)
    algorithm = assemble(table).algorithm
    check_modality(method, algorithm, contest.task, str(table.values["policy"]["kind"]))
    if algorithm.schedule is not None:
        fit_to_small_pictures(table, algorithm)
        algorithm = assemble(table).algorithm
    settings: dict[str, object] = {"seed": seed, "data.seed": seed, "steps": 10**6, "optimizer.lr_schedule": "constant"}
    if not is_own(table, "prompts_per_step", task.config):
        settings["prompts_per_step"] = max(1, task.samples // algorithm.group_size)
    if contest.model is not None:
        settings["policy.model"] = contest.model
    for key, value in settings.items():
        table.set(tuple(key.split(".")), value, "arena")
    resolved = resolve(table, (), label_of(method))
    resolved.config.algorithm.algorithm.check_step(resolved.config.prompts_per_step)
    return resolved


def is_own(table: Table, key: str, config: str) -> bool:
    """Was this key said by somebody else than the task's config?"""
    origin = table.origin((key,))
    return origin is not None and not origin.endswith(f"{config}.toml")


def add_changes(table: Table, file: Path) -> None:
    """Put what a file changes over the task's config.

    Raises FileNotFoundError, or ValueError where it is not TOML or changes what belongs to the task.
    """
    if not file.is_file():
        raise FileNotFoundError(f"the method {file} is not there: give the name of a preset or of a TOML file")
    changes = Table.read(file)
    for path, value in leaves(changes.values):
        if path[0] not in OWN or path == ("policy", "model"):
            raise ValueError(
                f"{file}: {'.'.join(path)} belongs to the task, which is the same for all methods: leave it out; a method may "
                f"set {', '.join(OWN)}"
            )
        if path == ("algorithm", "preset"):
            table.set(path, value, str(file))
    for path, value in leaves(changes.values):
        if path != ("algorithm", "preset"):
            table.set(path, value, str(file))


def check_modality(method: str, algorithm: Algorithm, task: str, kind: str) -> None:
    """Refuse a method of image generators on a task of text, and the other way round."""
    draws = algorithm.schedule is not None
    if draws != (kind == "flow"):
        of, fitting = ("image generators", "t2i") if draws else ("models that write", "grounding or video")
        raise ValueError(
            f"{method} is a method of {of} and cannot take part in the task {task}: leave it out, or --task {fitting}"
        )


def check_prompts(contest: Contest, runs: Sequence[Resolved]) -> None:
    """Raise ValueError for methods that cannot work with the task's prompts, rewards or policy, before a model is loaded.

    Prompts that a model of the user's own cannot be shown are refused too; the task's own model was taught on them.
    """
    prompts: list[Prompt] | None = None
    for resolved in runs:
        algorithm, label = deepcopy(resolved.config.algorithm.algorithm), resolved.config.algorithm.label
        if prompts is None:
            loaded = load_prompts(read_plug_ins(resolved).data, f"[data] {resolved.config.data.use}")
            prompts = [*islice(loaded, 4)]
            if contest.model is not None:
                resolved.config.modality.check_prompts(resolved.config.policy, prompts)
        try:
            algorithm = resolved.config.modality.adapt_algorithm(algorithm, resolved.config.policy, label, prompts)
            if algorithm.schedule is not None:
                refuse_rewards_without_gradient(resolved, algorithm)
            algorithm.planner.first(prompts, algorithm.group_size, 0, 0)
            for view in algorithm.views.values():
                view(prompts[0], 0)
        except Exception as error:
            raise ValueError(
                f"{resolved.name} cannot take part in the task {contest.task}: {error}; leave it out of --methods, or change it "
                "in a TOML file of your own"
            ) from error


def refuse_rewards_without_gradient(resolved: Resolved, algorithm: Algorithm) -> None:
    """Raise ValueError where a method trains on the gradient of rewards and one has none."""
    rewards = read_plug_ins(resolved).rewards
    made = [(one.use, one.weight, make()) for one, make in rewards if isinstance(one, RewardConfig)]
    _ = with_rewards(algorithm.objective, made)


def start_of(contest: Contest) -> str:
    """The weights that all runs begin from: those given, or the demo's, taught once and then kept in the cache."""
    return contest.model if contest.model is not None else str(taught_model(TASKS[contest.task].demo, 0))


def contest_of(task: str, methods: str, budget_s: float, seeds: str, model: str | None, overrides: Sequence[str]) -> Contest:
    """`a,b,c` as methods, `0,1,2` as seeds; ValueError for a seed that is no whole number, or a contest without sense."""
    try:
        numbers = tuple(int(seed) for seed in seeds.split(",") if seed.strip())
    except ValueError:
        raise ValueError(f"--seeds is {seeds!r}: write whole numbers with commas between them, such as 0,1,2") from None
    if fault := fault_of(Positive, budget_s):
        raise ValueError(f"--budget-seconds is {budget_s:g}: {fault}")
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    return Contest(task, names, budget_s, numbers, model, overrides=tuple(overrides))


CLIP = 1e-2
"""Log-ratios are means over a latent's elements: the presets' ranges suit 10^4 to 10^5 of them, the small model has 256."""
DIVERGENCE = 1e-3
"""What a divergence mask takes for CLIP."""
SPREAD = 16.0
"""How much more means over 256 elements spread than over 65536, those of errors too: preferences take beta that much smaller."""
MOST_STEPS = 8


def fit_to_small_pictures(table: Table, algorithm: Algorithm) -> None:
    """Set clip ranges and the number of denoising steps where the method's own file does not.

    All methods get the same range, and preferences coefficients to match; schedules keep their kind, with at most MOST_STEPS
    steps and the model's own spacing. Weights to stay near are read without guidance, as the small model was taught, and rewards
    with a gradient have their own top, 1.
    """
    for path, value in [*of_terms(algorithm), *of_schedule(algorithm)]:
        if table.origin(path) is None or path[:2] == ("algorithm", "preset"):
            table.set(path, value, "arena")


def of_terms(algorithm: Algorithm) -> Iterator[tuple[KeyPath, object]]:
    for i, (_, term) in enumerate(algorithm.objective):
        for side in ("low", "high"):
            if isinstance(getattr(term, side, None), float):
                yield ("algorithm", "objective", str(i), side), CLIP
        match term:
            case DivergenceMask():
                yield ("algorithm", "objective", str(i), "threshold"), DIVERGENCE
            case GroupPreference() | DenoisingPreference():
                yield ("algorithm", "objective", str(i), "beta"), term.beta / SPREAD
                if isinstance(term, GroupPreference) and term.clip is not None:
                    yield ("algorithm", "objective", str(i), "clip"), term.clip * SPREAD
            case FlowKL(guidance=float()):
                yield ("algorithm", "objective", str(i), "guidance"), 1.0
            case RewardGradient(top=float()):
                yield ("algorithm", "objective", str(i), "top"), 1.0
            case _:
                pass


def of_schedule(algorithm: Algorithm) -> Iterator[tuple[KeyPath, object]]:
    schedule: Any = algorithm.schedule
    found: dict[str, object] = {}
    if schedule.num_steps > MOST_STEPS:
        found["num_steps"] = MOST_STEPS
    if schedule.spacing is not None:
        found["spacing"] = {"kind": "LinearShift", "shift": 1.0}
    match schedule:
        case Full(trained_per_row=int()):
            found["trained_per_row"] = MOST_STEPS // 2
        case Tree():
            found["split_steps"] = [0, 1, 3]
            yield ("algorithm", "group_size"), 8
        case Branching():
            found |= {"num_steps": 6, "at_steps": [0, 1], "branches": 8}
            yield ("algorithm", "group_size"), 32
        case Window():
            found |= {"size": 3, "dwell": 5}
        case OneStep():
            found |= {"high": MOST_STEPS // 2}
        case Forward(times=TimeSampler(kind="rollout", count=int(count))) if count >= MOST_STEPS:
            yield ("algorithm", "schedule", "times", "count"), MOST_STEPS - 1
    for key, value in found.items():
        yield ("algorithm", "schedule", key), value
