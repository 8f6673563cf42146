"""Equal time, equal job: held-out figures over CPU seconds of training, of mmrl and of what people use otherwise.

    python benchmarks/learn_vs_trl.py --tasks grounding t2i --seconds 150 --seeds 0 1 2 --plot docs/assets/learn_vs_trl.svg

grounding: TRL's GRPOTrainer (extra `bench`), from the model that `mmrl demo grounding` teaches by imitation: the same scenes,
rewards (IoU + 0.1 form), 32 prompts x 4 samples, clip range 0.2 / 0.28, no KL, AdamW at 3e-4 after 5 updates of warm-up,
gradients clipped to 1, no gradient checkpointing on either side. t2i: a loop after the structure of Flow-GRPO's script
(benchmarks/flow_script.py), from the model that `mmrl demo t2i` teaches: the same captions, reward, 12 x 16 pictures, LoRA of
rank 8, 6 steps of which 5 train, clip range 1e-2, KL 0.004, AdamW at 1e-3, two updates per step, on both sides.

Both sides of a seed run at the same time, each on one thread. Seconds are CPU seconds of a process between the beginning and the
end of training, data loading among them; evaluations by mmrl's own evaluator, the same for both, are left out.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from sides import markdown, report_found, side_by_side

SIDES = ("mmrl", "peer")
Point = list[Any]
"""CPU seconds, steps, figures."""


@dataclass(frozen=True)
class Task:
    """A job that both sides do."""

    config: str
    peer: str
    figures: dict[str, str]
    """Title -> metric of the evaluation."""
    words: tuple[str, ...]
    """Overrides of the demo's config."""


TASKS = {
    "grounding": Task(
        "tiny/grounding",
        "TRL",
        {"mean IoU": "eval/iou", "hits": "eval/iou/hit"},
        ("optimizer.lr_schedule='constant'",),
    ),
    "t2i": Task(
        "tiny/t2i",
        "script's structure",
        {"reward": "eval/shapes"},
        ("optimizer.lr_schedule='constant'", "optimizer.warmup_steps=0", "prompts_per_step=12"),
    ),
}


@dataclass
class Race:
    """A side's clock: counts CPU seconds of training and stops for evaluations."""

    evaluate: Callable[[], dict[str, float]]
    seconds: float
    every: float
    spent: float = 0.0
    begun: float = 0.0
    points: list[Point] = field(default_factory=list)

    def start(self) -> None:
        self.points.append([0.0, 0, self.evaluate()])
        self.begun = time.process_time()

    def after_step(self, steps: int) -> bool:
        """Evaluate where it is time; True when the seconds are spent."""
        self.spent += time.process_time() - self.begun
        due = len(self.points) * self.every
        is_over = self.spent >= self.seconds
        if is_over or self.spent >= due:
            self.points.append([self.spent, steps, self.evaluate()])
        self.begun = time.process_time()
        return is_over


def job_of(args: argparse.Namespace) -> Any:
    """The demo's run with the settings both sides share, from the model that imitation made."""
    from mmrl.app.config import run as configs
    from mmrl.app.run.build import build
    from mmrl.lab.demos import taught_model

    name, task = args.tasks[0], TASKS[args.tasks[0]]
    words = [f"seed={args.seeds[0]}", f"data.seed={args.seeds[0]}", "steps=1000000", "samples_every=0", "deterministic=false"]
    if name == "grounding":
        words += ["evaluation.data.seed=9000", f"evaluation.num_prompts={args.held_out}"]
    words += [*task.words, f"policy.model={str(taught_model(name, 0))!r}"]
    table = configs.load(task.config).table
    if name == "t2i":
        schedule = {"num_steps": 6, "spacing": {"kind": "LinearShift", "shift": 1.0}}
        clip = {"0": {"low": 1e-2, "high": 1e-2}}
        algorithm = {"preset": "flow_grpo", "group_size": 16, "schedule": schedule, "objective": clip}
        table.set(("algorithm",), algorithm, "benchmark")
    return build(configs.resolve(table, words))


def race_of(job: Any, args: argparse.Namespace) -> Race:
    figures = TASKS[args.tasks[0]].figures

    def evaluate() -> dict[str, float]:
        metrics = job.evaluator.run(0)[0]
        return {title: metrics[name] for title, name in figures.items()}

    return Race(evaluate, args.seconds, args.every)


def run_mmrl(args: argparse.Namespace) -> Race:
    job = job_of(args)
    race = race_of(job, args)
    race.start()
    steps = 1
    job.trainer.step()
    while not race.after_step(steps):
        job.trainer.step()
        steps += 1
    return race


def run_trl(args: argparse.Namespace) -> Race:
    """TRL's trainer on the job's prompts, with the job's rewards and evaluator."""
    import transformers
    from small_vlm import trl_settings, trl_trainer

    job = job_of(args)
    seed, config = args.seeds[0], job.config
    prompts, settings = list(job.trainer.sampler.prompts), config.optimizer
    sizes = job.policy.encode(prompts[0]).sizes
    totals = totals_of(job)

    def reward(completions: list[Any], completion_ids: list[list[int]], index: list[int], **_: Any) -> list[float]:
        from mmrl.core.types import Sample

        texts = [completion[0]["content"] for completion in completions]
        samples = [Sample(text, tuple(ids), media_sizes=sizes) for text, ids in zip(texts, completion_ids, strict=True)]
        return totals([prompts[i] for i in index], samples).tolist()

    more: dict[str, Any] = {"max_steps": 1_000_000, "seed": seed, "learning_rate": settings.lr, "epsilon": 0.2}
    more |= {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": settings.warmup_steps, "epsilon_high": 0.28}
    more |= {"max_grad_norm": settings.clip_norm, "weight_decay": settings.weight_decay}
    group = config.algorithm.algorithm.group_size
    tokens = config.policy.sampling.max_new_tokens
    arguments = trl_settings(config.prompts_per_step * group, group, tokens, False, **more)
    trainer = trl_trainer(config.policy.model, prompts, reward, arguments)
    race = race_of(Mirrored(job, job.policy.net.model, trainer.model), args)

    class Watch(transformers.TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            race.start()

        def on_step_end(self, *words: Any, **_: Any) -> None:
            _settings, state, control = words
            control.should_training_stop = race.after_step(state.global_step)

    trainer.add_callback(Watch())
    trainer.train()
    return race


def run_script(args: argparse.Namespace) -> Race:
    """The loop after the official script, on the job's captions, with the job's reward and evaluator."""
    from flow_script import Recipe, Script

    from mmrl.core.types import Sample

    job = job_of(args)
    totals = totals_of(job)
    prompts, lora = list(job.trainer.sampler.prompts), job.config.policy.lora

    def reward(rows: list[Any], images: list[Any]) -> Any:
        return totals(rows, [Sample(image=image) for image in images])

    recipe = Recipe(lr=job.config.optimizer.lr, rank=lora.rank, alpha=lora.alpha, prompts=job.config.prompts_per_step)
    script = Script(job.config.policy.model, list(lora.targets), prompts, reward, recipe, args.seeds[0])
    race = race_of(Mirrored(job, job.policy.net.transformer, script.net), args)
    race.start()
    steps = 1
    script.step()
    while not race.after_step(steps):
        script.step()
        steps += 1
    return race


class Mirrored:
    """A job whose evaluator judges the weights of another trainer's model."""

    def __init__(self, job: Any, own: Any, other: Any) -> None:
        self.job, self.own, self.other = job, own, other

    @property
    def evaluator(self) -> "Mirrored":
        return self

    def run(self, step: int) -> Any:
        self.own.load_state_dict(self.other.state_dict())
        return self.job.evaluator.run(step)


def totals_of(job: Any) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    """The job's rewards, added up by their weights, of samples of these prompts."""
    import torch

    from mmrl.core.types import Group

    runner = job.trainer.collector.rewards
    weights = torch.tensor([reward.weight for reward in runner.rewards])

    def totals(prompts: Sequence[Any], samples: Sequence[Any]) -> Any:
        groups = [Group(i, prompt, (sample,)) for i, (prompt, sample) in enumerate(zip(prompts, samples, strict=True))]
        return torch.cat([(table.values * weights).sum(1) for table in runner.score(groups)])

    return totals


def one_side(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(args.seeds[0])
    peer = run_trl if args.tasks[0] == "grounding" else run_script
    race = (run_mmrl if args.side == "mmrl" else peer)(args)
    report_found({"points": race.points})


def rows_of(name: str, runs: dict[str, dict[str, list[Point]]]) -> list[list[str]]:
    """A line per seed and side, and the means."""
    task, rows, ends = TASKS[name], [], {side: [] for side in SIDES}
    for seed, sides in runs.items():
        for side in SIDES:
            first, last = sides[side][0], sides[side][-1]
            ends[side].append(last)
            cells = [f"{first[2][title]:.3f} -> {last[2][title]:.3f}" for title in task.figures]
            label = "mmrl" if side == "mmrl" else task.peer
            rows.append([f"{name}, {label}, seed {seed}", f"{last[0]:.0f}", f"{last[1]}", *cells])
    for side in SIDES:
        means = [f"**{statistics.mean(end[2][title] for end in ends[side]):.3f}**" for title in task.figures]
        label, steps = "mmrl" if side == "mmrl" else task.peer, statistics.mean(end[1] for end in ends[side])
        rows.append(
            [f"**{name}, {label}, mean**", f"{statistics.mean(end[0] for end in ends[side]):.0f}", f"{steps:.0f}", *means]
        )
    return rows


def plot(curves: dict[str, dict[str, dict[str, list[Point]]]], file: Path) -> None:
    """A panel per figure; thin lines are seeds, thick ones their means."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "mmrl"
    panels = [(name, title) for name in curves for title in TASKS[name].figures]
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.8), squeeze=False)
    for (name, title), axis in zip(panels, axes[0], strict=True):
        for side, colour in zip(SIDES, ("tab:blue", "tab:orange"), strict=True):
            lines = [[(p[0], p[2][title]) for p in runs[side]] for runs in curves[name].values()]
            for line in lines:
                axis.plot(*zip(*line, strict=True), color=colour, alpha=0.35, linewidth=1)
            label = "mmrl" if side == "mmrl" else TASKS[name].peer
            xs = [max(line[-1][0] for line in lines) * i / 30 for i in range(31)]
            axis.plot(
                xs, [statistics.mean(between(line, x) for line in lines) for x in xs], color=colour, label=label, linewidth=2
            )
        axis.set(xlabel="CPU seconds of training", ylabel=f"held-out {title}", title=name)
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right")
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})


def between(line: Sequence[tuple[float, float]], x: float) -> float:
    """The value at x, by straight lines between the points."""
    for (x0, y0), (x1, y1) in pairwise(line):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return line[-1][1]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seconds", type=float, default=150.0, help="CPU seconds of training per side and seed")
    parser.add_argument("--every", type=float, default=25.0, help="CPU seconds between evaluations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--held-out", type=int, default=256, help="held-out scenes of grounding")
    parser.add_argument("--curves", type=Path, help="JSON file: keep the curves, and take from it those that are there")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(args: argparse.Namespace) -> dict[str, dict[str, dict[str, list[Point]]]]:
    """Task -> seed -> side -> points."""
    curves = json.loads(args.curves.read_text()) if args.curves and args.curves.exists() else {}
    for name in args.tasks:
        for seed in args.seeds:
            if str(seed) in curves.get(name, {}):
                continue
            words = [f"--tasks={name}", f"--seeds={seed}", f"--seconds={args.seconds}", f"--every={args.every}"]
            found = side_by_side(__file__, SIDES, [*words, f"--held-out={args.held_out}"])
            curves.setdefault(name, {})[str(seed)] = {side: found[side]["points"] for side in SIDES}
            if args.curves:
                args.curves.write_text(json.dumps(curves))
    return {name: curves[name] for name in args.tasks}


def main() -> None:
    args = arguments()
    if args.side:
        one_side(args)
        return
    curves = measure(args)
    for name, runs in curves.items():
        head = ["run", "CPU s", "steps", *TASKS[name].figures]
        print(markdown(head, rows_of(name, runs)) + "\n")
    if args.plot:
        plot(curves, args.plot)


if __name__ == "__main__":
    main()
