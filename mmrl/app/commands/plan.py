"""`mmrl plan`: what a run will ask of its model and of its card, before weights are loaded; and how long it will take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tomli_w
import torch
import typer
from rich.table import Table as Grid

from mmrl.app.chain.rows import mining_text, rows_before
from mmrl.app.commands.options import PlanArguments
from mmrl.app.config.run import Resolved, RunConfig
from mmrl.app.config.stages import stages_of
from mmrl.app.errors import Terminal, waiting
from mmrl.app.files import json_text, replace_text
from mmrl.app.planning.fit import fit_lines, fit_to
from mmrl.app.planning.memory import CONTEXT, GIB, WRITTEN, Memory, advice, room, size_text, target_device
from mmrl.app.planning.plan import Plan, counted_size, draw_up
from mmrl.app.run.build import build
from mmrl.app.run.context import distributed_run, idle_terms, updates
from mmrl.training.measure import stopwatch

console = Terminal()
PHASES = {"rollout": "sampling", "read": "readings without gradient", "update": "updates"}
TIMES = ("rollout", "reward", "read", "update", "step")


@dataclass(frozen=True)
class Timing:
    """Seconds, measured on real steps."""

    steps: Sequence[Mapping[str, float]]
    """Metrics of every step, the first one left out."""
    evaluation: float
    """One evaluation of all held-out prompts, 0 where there are none."""
    peak: int
    """Most bytes on the card, 0 without one."""

    def per_step(self, name: str = "step") -> float:
        values = [step[f"time/{name}_s"] for step in self.steps if f"time/{name}_s" in step]
        return sum(values) / len(values) if values else 0.0

    def total(self, config: RunConfig) -> float:
        """Seconds of the whole run, evaluations included, checkpoints and answers to seen prompts not."""
        return config.steps * self.per_step() + evaluations(config) * self.evaluation


def plan(given: PlanArguments) -> bool:
    """Print the plan of a config, or what a run without one would choose for its card; True if it fits, or no card is known.

    Raises FileExistsError where `save` exists, FileNotFoundError without a plug-in, data file or the model's config, and
    ValueError for what `mmrl train` would refuse, or if nothing fits.
    """
    save, show = given.save, tell_plan if given.as_json else show_plan
    if given.task is None:
        if save is not None:
            raise ValueError(f"--save {save} goes with --task: a config is there already, copy it with mmrl cp")
        resolved, size, fits = given.resolve(), room(given.card), True
        for stage in stages_of(resolved):
            if stage.place and not given.as_json:
                console.print(f"{stage.place}{mining_text(stage)}", style="bold")
            if stage.miner is not None or stage.in_round > 1:
                continue
            with rows_before(stage):
                made = draw_up(stage.resolved, given.processes, on_card=size is not None, card=size)
                fits &= show(stage.resolved, made, size, given)
        return fits
    if save is not None and save.exists():
        raise FileExistsError(f"--save {save} exists already: choose another name, or remove it")
    device = target_device(given.card, given.processes or 1)
    with waiting(f"counting what fits {device.name}"):
        fit = fit_to(given.resolve(), device, given.processes or 1)
    if not given.as_json:
        console.print("\n".join(fit_lines(fit)), soft_wrap=True)
    shown = show(fit.resolved, fit.plan, device.size if device.is_card else None, given)
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        replace_text(save, "".join(f"# {line}\n" for line in fit_lines(fit)) + tomli_w.dumps(fit.resolved.table.values))
    if save is not None and not given.as_json:
        console.print(f"config: {save} (mmrl check {save}, mmrl train {save})", soft_wrap=True)
    return shown


def show_plan(resolved: Resolved, made: Plan, size: int | None, given: PlanArguments) -> bool:
    """Print a plan and whether it fits a card of this size in bytes; True if it does, or there is no card."""
    if (warning := idle_terms(resolved.config.algorithm)) is not None:
        console.print(f"warning: {warning}", style="yellow")
    print_geometry(made)
    print_calls(made)
    print_memory(made, on_card=size is not None)
    if made.note:
        console.print(f"note: {made.note}", style="yellow")
    trouble = None if size is None else advice(made.memory, size, made.is_text)
    if trouble is not None:
        console.print(f"DOES NOT FIT: {trouble}", style="bold red")
    elif size is not None:
        console.print(f"fits a card of {size / GIB:.1f} GiB", style="green")
    else:
        console.print("no accelerator here: give --card 24GB to see if it fits one", style="yellow")
    if given.calibrate:
        print_time(timing(resolved, given.calibrate), made.config, made.memory, given.price)
    return trouble is None


def tell_plan(resolved: Resolved, made: Plan, size: int | None, given: PlanArguments) -> bool:
    """Print a plan as programs read it (`mmrl plan --json`); True if it fits, or there is no card."""
    trouble = None if size is None else advice(made.memory, size, made.is_text)
    config, memory = made.config, made.memory
    time = timing(resolved, given.calibrate) if given.calibrate else None
    facts = {
        "algorithm": config.algorithm.label,
        "model": config.policy.model,
        "note": made.note or None,
        "steps": config.steps,
        "prompts_per_step": config.prompts_per_step,
        "group_size": config.algorithm.algorithm.group_size,
        "processes": made.processes,
        "evaluations": evaluations(config),
        "episode": made.episode or None,
        "usual_step": made.usual,
        "longest_step": made.most,
        "memory": {**vars(memory), "peak": memory.peak, "resident": memory.resident, "not_counted": not_counted(made)},
        "sampler": None if made.sampler is None else {**vars(made.sampler), "peak": made.sampler.peak},
        "card": size,
        "fits": None if size is None else trouble is None,
        "advice": trouble,
        "settings": {key: value for key, value, _ in resolved.rows()},
        "time": None if time is None else time_facts(time, config, given.price),
    }
    typer.echo(json_text(facts))
    return trouble is None


def time_facts(timing: Timing, config: RunConfig, price: float | None) -> dict[str, object]:
    """Seconds of a step by its parts and of the whole run, and its price."""
    total = timing.total(config)
    step = {name: timing.per_step(name) for name in TIMES}
    cost = None if price is None else price * total / 3600
    return {"step_s": step, "evaluation_s": timing.evaluation, "run_s": total, "price": cost, "peak": timing.peak}


def evaluations(config: RunConfig) -> int:
    """How often held-out prompts are answered: before, after, and every n steps."""
    if config.evaluation.data is None or config.evaluation.num_prompts == 0:
        return 0
    every = config.evaluate_every
    between = (config.steps - 1) // every if every else 0
    return 1 + between + (config.steps > 0)


def print_geometry(made: Plan) -> None:
    config, algorithm = made.config, made.config.algorithm.algorithm
    each, update = config.prompts_per_step // made.processes, made.usual.counts["update"]
    longest = made.usual.rounds if made.most is None else made.most.rounds
    kept = [name for name in (*made.memory.stays, *made.memory.host) if ":" in name]
    saved = f"every {config.save_every} steps" if config.save_every else "at the end"
    if config.saves_by_time:
        saved = f"so that a killed run loses {config.save_minutes:g} minutes at most"
    rows = {
        "algorithm": config.algorithm.label,
        "model": config.policy.model,
        "parameters": f"{made.memory.parameters:,}, of which {made.memory.trained:,} train",
        "processes": str(made.processes),
        "prompts per step": f"{config.prompts_per_step} ({each} per process)",
        "group size": str(algorithm.group_size),
        "rounds of sampling": range_text(made.usual.rounds, longest),
        "samples scored per step": range_text(made.usual.scored, None if made.most is None else made.most.scored),
        "sizes of pictures": sizes_text(made.usual.drawn) if len(made.usual.drawn) > 1 else "",
        "largest step": f"{sizes_text(made.heaviest)}: memory is counted for it" if made.heaviest else "",
        "episodes": made.episode,
        "sampling": f"beside training, {config.ahead} step(s) ahead: engines and samplers need cards of their own"
        if config.ahead
        else "",
        "rows that train": str(made.usual.trained),
        "updates": updates(algorithm),
        "parts of an update": f"{update.parts / made.usual.updates:g} of at most {counted_size(config)} "
        + ("positions" if made.is_text else "denoising steps")
        + (" (auto: they grow with the device)" if config.micro_batch == "auto" else ""),
        "read before updates": ", ".join(made.readings) or "nothing",
        "weights kept beside": ", ".join(name.partition(": ")[2] for name in kept) or "none",
        "evaluations": str(evaluations(config)),
        "training prompts shown": f"{config.num_seen}, every {config.samples_every} steps, not scored" if config.num_seen else "",
        "checkpoints": f"{saved}; {f'the newest {config.checkpoint.keep}' if config.checkpoint.keep else 'all'} are kept",
    }
    grid = Grid("geometry", f"from {made.prompts} prompts", box=None, title_justify="left")
    for name, value in rows.items():
        if value:
            grid.add_row(name, value)
    console.print(grid)


def sizes_text(drawn: Mapping[tuple[int, int], int]) -> str:
    """How many samples of the counted step have which size."""
    return ", ".join(f"{width} x {height} ({count} samples)" for (width, height), count in sorted(drawn.items()))


def range_text(low: int, high: int | None) -> str:
    return str(low) if high is None or high == low else f"{low} to {high}"


def print_calls(made: Plan) -> None:
    """Print the calls of one process and step; text is at its longest: every completion takes max_new_tokens."""
    passes = "forwards" if made.is_text else "forwards of the transformer"
    grid = Grid("per step and process", "pieces of work", passes, *(["vision passes"] if made.is_text else []), box=None)
    grid.add_column("rows" if made.is_text else "latents")
    grid.add_column("positions" if made.is_text else "image tokens")
    for phase, said in PHASES.items():
        low, high = made.usual.counts[phase], None if made.most is None else made.most.counts[phase]
        names = ["parts", "passes", *(["vision"] if made.is_text else []), "rows", "positions"]
        grid.add_row(said, *(range_text(getattr(low, name), None if high is None else getattr(high, name)) for name in names))
    console.print(grid)


def print_memory(made: Plan, on_card: bool) -> None:
    """The parts of a process's memory and their sum; with a card, what lies in the memory of the host is no part of it."""
    grid = memory_grid("memory of a process", made.memory)
    for name, value in made.memory.parts.items():
        grid.add_row(f"  part of it: {name}", size_text(value))
    for name, value in made.memory.host.items():
        added = value if on_card or name != WRITTEN else value - made.memory.overlap
        grid.add_row(name + (" (memory of the host)" if on_card else ""), size_text(added))
    if on_card:
        grid.add_row("CUDA itself", size_text(CONTEXT))
    grid.add_row("at most", size_text(made.memory.peak + CONTEXT if on_card else made.memory.resident), style="bold")
    console.print(grid)
    if made.sampler is not None:
        where = "beside the trainer" if made.config.cluster.samplers_share or not on_card else "on a card of its own"
        grid = memory_grid(f"memory of a sampler, {where}", made.sampler)
        most = made.sampler.peak + CONTEXT if on_card else made.sampler.resident
        grid.add_row("at most", size_text(most), style="bold")
        console.print(grid)
    if missing := not_counted(made):
        console.print(f"not counted: {'; '.join(missing)}")


def memory_grid(title: str, memory: Memory) -> Grid:
    """A table of the parts that stay, and of those that come on top while something is done."""
    grid = Grid(title, "", box=None)
    for name, value in memory.stays.items():
        grid.add_row(name, size_text(value))
    for name, value in memory.phases.items():
        mark = "  <- the largest of these counts" if name == memory.largest_phase else ""
        grid.add_row(f"while {PHASES.get(name, name)}", f"+ {size_text(value)}{mark}")
    return grid


def not_counted(made: Plan) -> list[str]:
    """The parts of a run's memory that are unknown before it starts."""
    found = ["activations of models inside rewards"] if made.rewards.stays else []
    return [*made.rewards.unknown, *found, *([] if made.is_text else ["activations of text encoders"])]


def timing(resolved: Resolved, count: int) -> Timing:
    """Real steps of a run of which nothing is kept, and one batch of its evaluation."""
    with distributed_run() as (accelerator, _):
        job = build(resolved, accelerator=accelerator)
        steps = [job.trainer.step() for _ in range(count + 1)][1:]
        evaluation = 0.0
        if job.evaluator is not None:
            one, few = job.evaluator, job.evaluator.prompts[: job.evaluator.settings.batch_size]
            with stopwatch(times := dict[str, float](), "evaluation"):
                replace(one, prompts=few).run(0)
            evaluation = sum(times.values()) * len(one.prompts) / len(few)
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return Timing(steps, evaluation, peak)


def print_time(timing: Timing, config: RunConfig, memory: Memory, price: float | None) -> None:
    step, hours = timing.per_step(), timing.total(config) / 3600
    grid = Grid(f"time, from {len(timing.steps)} steps", "seconds", box=None)
    for name in TIMES:
        grid.add_row(name, f"{timing.per_step(name):.3f}")
    if timing.evaluation:
        grid.add_row("one evaluation", f"{timing.evaluation:.3f}")
    console.print(grid)
    actions = sum(one["rollout/actions"] for one in timing.steps) / len(timing.steps)
    what = "trained denoising steps" if config.modality.name == "flow" else "tokens of completions"
    console.print(f"{actions / step:.1f} {what} per second")
    if timing.peak:
        off = memory.peak / timing.peak - 1
        console.print(f"the card held {timing.peak / GIB:.2f} GiB at most, the estimate is {off:+.0%} off")
    cost = "" if price is None else f", {price * hours:.2f} at {price:g} an hour"
    spent = f"about {hours * 60:.0f} minutes" if hours < 3 else f"about {hours:.1f} hours"
    spent = "less than a minute" if hours * 60 < 1 else spent
    console.print(f"the whole run: {config.steps} steps, {evaluations(config)} evaluations, {spent}{cost}", style="bold")
