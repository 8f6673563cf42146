"""`mmrl train` and `mmrl eval`, from the words of a command line to the last line they print."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from logging.handlers import MemoryHandler
from pathlib import Path

from mmrl.app.chain.rows import forget_rows, look_ahead, mine, place_named, rows_before
from mmrl.app.commands.options import TrainArguments
from mmrl.app.config import run as configs
from mmrl.app.config.run import LR, Resolved, RunConfig, as_table
from mmrl.app.config.stages import Stage, chain_label, stage_at, stages_of
from mmrl.app.errors import StoppedExit, waiting
from mmrl.app.files import replace_text
from mmrl.app.plugins.resolve import is_of_python
from mmrl.app.report.data import all_changes
from mmrl.app.report.data import load as load_run
from mmrl.app.report.words import cells_of, table
from mmrl.app.run.build import Job, build, on_the_terminal
from mmrl.app.run.context import RUNS, console, distributed_run, idle_terms, refuse_idle_methods, updates
from mmrl.app.run.folder import RunDir, early_warnings
from mmrl.app.run.launch import check_same, claimed_folder
from mmrl.app.run.resume import (
    ChangedSetting,
    changed_settings,
    check_resume,
    enter,
    is_finished,
    note_changes,
    saved_config,
    write_choices,
)
from mmrl.app.run.signals import leave_in_order, listen
from mmrl.core.ranks import Ranks
from mmrl.core.types import Request
from mmrl.runtime.disk import room_for
from mmrl.runtime.repeating import deterministic
from mmrl.training.callbacks import Callback
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.resources.profile import Profile, StepRange
from mmrl.training.settings import TRAINS

log = logging.getLogger("mmrl")
LONGEST_FAULT = 300
"""Characters of a report's error that are printed."""


def train(given: TrainArguments) -> RunDir:
    """Train, write the report, and print what changed on the held-out prompts."""
    if given.resume is None:
        resolved = given.resolve() if given.task is None else fit_task(given)
        return run_training(resolved, profile=given.profile)
    if given.task is not None:
        raise ValueError(
            f"--resume continues a run as it was begun: leave --task {given.task} out, settings are written key=value"
        )
    run = RunDir.open(given.resume.expanduser().resolve())
    given = given.absolute()
    place = enter(run)
    return run_training(given.resolve(), run.path, place, given.profile)


def fit_task(given: TrainArguments) -> Resolved:
    """The run of a task, fitted to its model and this machine's card; prints what was chosen and why."""
    from mmrl.app.planning.fit import fit_lines, fit_to
    from mmrl.app.planning.memory import target_device

    world = int(os.environ.get("WORLD_SIZE", "1"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    device = target_device(given.card, here)
    resolved = given.resolve()
    with waiting(f"counting what fits {device.name}"):
        fit = fit_to(resolved, device, world)
    if os.environ.get("RANK", "0") == "0":
        console.print("\n".join(fit_lines(fit)))
    return fit.resolved


def run_training(resolved: Resolved, resume: Path | None = None, place: str = "", profile: str | None = None) -> RunDir:
    """Train what a config describes; a run that is stopped ends the program with 0."""
    run, job = run_job(resolved, resume, place, profile=profile)
    if job is not None and job.trainer.is_stopped:
        raise StoppedExit(0)
    return run


def run_job(
    resolved: Resolved,
    resume: Path | None = None,
    place: str = "",
    watchers: Callable[[RunConfig], Sequence[Callback]] = on_the_terminal,
    profile: str | None = None,
) -> tuple[RunDir, Job | None]:
    """Train what a config describes, in this process or as one of several, from the start or from a run's last checkpoint.

    Returns when the run is finished, or stopped and saved (`trainer.is_stopped`); without a job where it was finished before.
    `place` says of which folder a resumed run's relative paths are; `profile` names the steps whose time is recorded: `3-5`.
    """
    with deterministic(resolved.config.deterministic), distributed_run() as (accelerator, ranks), early_warnings() as early:
        check_same(ranks, resolved)
        stages = stages_of(resolved)
        if resume is None:
            refuse_idle_methods(*(one.resolved.config.algorithm for one in stages))
            wanted, may_be_another, done = wanted_folder(resolved), not resolved.config.output, 0
        else:
            run = RunDir.open(resume)
            wanted, may_be_another, done = run.path, False, Checkpoints(run.checkpoints).newest_whole() or 0
            check_resume(resolved, run)
            finished = is_finished(resolved, run)
            if ranks.is_main and (place or finished):
                console.print("\n".join(filter(None, (place, finished))))
            if finished:
                announce(run) if ranks.is_main else None
                return run, None
        steps = None if profile is None else StepRange.read(profile, resolved.config.steps, done)
        with claimed_folder(wanted, ranks, may_be_another) as path:
            run = RunDir(path)
            # what a run that is over was asked for
            run.take_requests()
            at = 0 if resume is None or len(stages) == 1 else stage_at(stages, newest_step(run, ranks))

            def begin(stage: Stage, after: Job | None = None) -> Job:
                with rows_before(stage, run), place_named(stage):
                    return build(stage.resolved, run, accelerator, watchers, stage, after)

            with leave_in_order():
                look_ahead(stages, at, None if resume is None else run)
                job = begin(stages[at])
            trace = Profile(steps, run.path / "profile", ranks.rank if ranks.world > 1 else None)
            if resume is not None:
                changes = changed_settings(saved_config(run), whole_config(resolved, job))
                tell_changes(run, continue_from(job, stages, run, ranks, bool(changes)), changes, ranks)
            elif ranks.is_main:
                RunDir.create(run.path)
                write_choices(run, resolved)
            if ranks.is_main:
                configs.save(replace(whole_config(resolved, job), output=str(run.path)), run.config_file)
                introduce(job, resolved, run)
            with room_for(run.path, f"continue it with {how_to_go_on(job.config, run)}"):
                job = fit_all(job, stages[at:], begin, run, trace, early)
        if ranks.is_main and not job.trainer.is_stopped:
            announce(run)
    return run, job


def whole_config(resolved: Resolved, job: Job) -> RunConfig:
    """The settings of the whole run, with what the model decided; a job knows its own stage."""
    return replace(resolved.config, policy=job.config.policy) if resolved.config.stage else job.config


def newest_step(run: RunDir, ranks: Ranks) -> int | None:
    """The step of the newest whole checkpoint, the same on all processes."""
    return ranks.gather(Checkpoints(run.checkpoints).recover() if ranks.is_main else None)[0]


def introduce(job: Job, resolved: Resolved, run: RunDir) -> None:
    """Print what is trained and where, how often, and the first prompt."""
    console.print(f"{chain_label(resolved)}, {resolved.config.policy.model} -> {run.path}")
    console.print(f"config: {run.config_file}")
    console.print(updates(job.config.algorithm.algorithm))
    teaching = [one.args.get("optimizer") for one in resolved.config.stage if one.kind in TRAINS]
    own_rates = bool(teaching) and all(isinstance(one, Mapping) and "lr" in one for one in teaching)
    if (said := resolved.origin(LR)).startswith("default") and not own_rates:
        console.print(f"optimizer.lr is {resolved.config.optimizer.lr:g}, the {said}")
    show_first_prompt(job, run)


def show_first_prompt(job: Job, run: RunDir) -> None:
    """Print the template and the first prompt exactly as the model reads it, and keep both."""
    from mmrl.app.modality.prompt_view import prompt_view
    from mmrl.app.modality.templates import template_line, template_text

    facts = job.config.modality.template(job.policy, job.config.evaluation)
    replace_text(run.template_file, template_text(facts))
    text = template_line(facts)
    if job.first is not None:
        try:
            lines = prompt_view(job.policy, Request(job.first, 1, 0)).lines()
        except (TypeError, ValueError, OSError) as error:
            lines = [f"cannot be shown: {error}"]
        text = "\n".join([text, f"first prompt, {job.first.id!r}, {lines[0]}", *lines[1:]])
    replace_text(run.prompt_file, text + "\n")
    console.print(text)


def wanted_folder(resolved: Resolved) -> Path:
    """The new run's folder, not made yet: `output` (ValueError if it holds a run), or runs/<config>, which may be taken."""
    if not resolved.config.output:
        return RUNS / resolved.name
    run = RunDir(Path(resolved.config.output).expanduser())
    if run.exists():
        raise ValueError(f"{run.path} already holds a run: choose another output folder, or continue it with --resume {run.path}")
    return run.path


def tell_changes(run: RunDir, step: int | None, changes: Sequence[ChangedSetting], ranks: Ranks) -> None:
    """List the settings that are others from here on, on the terminal and in the run's files; None: the run begins again."""
    if step is None or not ranks.is_main:
        return
    if changes:
        lines = "\n".join(f"  {change}" for change in changes)
        console.print(f"changed from step {step + 1} on:\n{lines}")
    note_changes(run, step, changes)


def continue_from(job: Job, stages: Sequence[Stage], run: RunDir, ranks: Ranks, is_changed: bool = False) -> int | None:
    """Restore the trainer from the run's last complete checkpoint, whose step it returns, and remove what was written after it.

    A run that was killed before its first checkpoint starts again, with the rows of its first stages unless settings changed.
    """
    checkpoints, step = Checkpoints(run.checkpoints), newest_step(run, ranks)
    if step is not None:
        job.trainer.load_state_dict(checkpoints.load_whole(step))
    if ranks.is_main:
        run.truncate(-1 if step is None else step)
        forget_rows(run, stages, -1 if step is None and is_changed else step or 0)
        where = "from the beginning, for it has no checkpoint yet" if step is None else f"after step {step}"
        console.print(f"continuing {run.path} {where}")
    return step


def fit_all(
    job: Job,
    stages: Sequence[Stage],
    begin: Callable[[Stage, Job], Job],
    run: RunDir,
    trace: Profile,
    early: MemoryHandler | None = None,
) -> Job:
    """Train these stages, the first of them with this job, which the others begin after; returns the last job.

    Whatever happens, callbacks are closed. `early` holds the warnings since the run began.
    """
    ranks = job.trainer.ranks
    try:
        for stage in stages:
            is_first = stage is stages[0]
            job = job if is_first else begin(stage, job)
            if stage.miner is None:
                fit(job, run, ranks, trace, early if is_first else None)
            else:
                mine(job, stage, run, ranks)
            if job.trainer.is_stopped or job.trainer.health.stop:
                break
    finally:
        job.trainer.callbacks.close()
        if ranks.is_main and trace.is_written:
            console.print(f"trace of {trace.steps}: {trace.file} (open it at ui.perfetto.dev or chrome://tracing)")
        elif ranks.is_main and trace.steps is not None:
            console.print(f"no trace: the run ended before step {trace.steps.first}")
    if job.trainer.is_stopped and ranks.is_main:
        text = f"stopped by {job.trainer.stop.asked_by} and saved after step {job.trainer.index}; go on with"
        console.print(f"{text}\n{how_to_go_on(job.config, run)}")
    return job


def fit(job: Job, run: RunDir, ranks: Ranks, trace: Profile, early: MemoryHandler | None = None) -> None:
    """Train one stage. SIGTERM and Ctrl-C save."""
    noting = run.record_warnings(lambda: job.trainer.index, early) if ranks.is_main else nullcontext()
    with listen(job.trainer.stop), noting:
        if ranks.is_main and job.trainer.index == 0 and (warning := idle_terms(job.config.algorithm)) is not None:
            log.warning(warning)
        job.trainer.fit(trace)
        if ranks.is_main and job.trainer.goal is not None and not job.trainer.is_stopped:
            job.trainer.goal.say()


def how_to_go_on(config: RunConfig, run: RunDir) -> str:
    """The words that continue a run: a command, unless it was given Python objects."""
    if is_of_python(as_table(config)):
        return f"mmrl.fit(..., output={str(run.path)!r}, resume=True)"
    return f"mmrl train --resume {run.path}"


def announce(run: RunDir) -> None:
    """Numbers before and after on the held-out prompts, and where the report is."""
    try:
        if found := all_changes(load_run(run.path)):
            (what, *names), *rows = cells_of(found)
            console.print(table({what: None}, names, rows))
        if find_spec("jinja2") is None:
            console.print(f'no report: pip install "mmrl[report]", then mmrl report {run.path}')
            return
        from mmrl.app.report.page import write_report

        console.print(f"report: {write_report(run.path)}")
    except Exception as error:  # noqa: BLE001 - the run is trained and saved, whatever its report does
        text = f"{type(error).__name__}: {error}"
        log.warning("no report: %s; the run is whole, and mmrl report %s tries again", text[:LONGEST_FAULT], run.path)
