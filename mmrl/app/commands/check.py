"""`mmrl check`: load everything, sample a few prompts, score them, evaluate them again; train nothing, leave nothing behind."""

import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from rich.table import Table as Grid
from rich.text import Text

from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.taught import Taught
from mmrl.app.chain.rows import look_ahead, mining_text, rows_before
from mmrl.app.config import run as configs
from mmrl.app.config.plug_ins import read_plug_ins
from mmrl.app.config.reward_needs import parts_of
from mmrl.app.config.run import Resolved, RunConfig
from mmrl.app.config.stages import Stage, chain_label, stages_of
from mmrl.app.errors import Terminal, printable
from mmrl.app.modality.registry import modality_of
from mmrl.app.modality.taught import bind_taught
from mmrl.app.planning.memory import advice, room, size_text, versions_in_flight
from mmrl.app.planning.plan import Plan, draw_up
from mmrl.app.report.data import column
from mmrl.app.reward_test.probes import NoTruthError
from mmrl.app.run.beforehand import overlap_sentence
from mmrl.app.run.build import Job, build, first_prompts, held_out_prompts, load_prompts, with_local_model
from mmrl.app.run.context import RUNS, distributed_run
from mmrl.app.run.folder import RunDir
from mmrl.app.run.sample_files import frames_of, strip
from mmrl.core.ranks import Ranks
from mmrl.core.readings import OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts, Status
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.blame import UnavailableError
from mmrl.training.collect import Collected, Collector
from mmrl.training.measure import reward_metrics
from mmrl.training.watch.health import LOG_RATIO, stale_sentence
from mmrl.training.watch.ratio_gate import Gap

FEW = 4
"""Prompts that are sampled."""
TESTED = 16
"""Prompts on which rewards are tested."""
ALIKE = 0.99
"""Share of what the truth earns from which demonstrations agree with a reward."""
console = Terminal()


@dataclass
class CheckLines:
    """The lines of a check, one for each thing that was looked at."""

    rows: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """What, ok or FAIL or note, and what was seen or what to do."""

    def add(self, what: str, said: str, verdict: str = "ok") -> None:
        self.rows.append((what, verdict, said))

    @contextmanager
    def look(self, what: str) -> Iterator[None]:
        """A mistake inside becomes a line."""
        try:
            yield
        except (ValueError, OSError, ModuleNotFoundError, UnavailableError) as error:
            self.add(what, str(error), "FAIL")

    @property
    def fine(self) -> bool:
        return all(verdict != "FAIL" for _, verdict, _ in self.rows)

    def show(self) -> None:
        colours = {"ok": "green", "FAIL": "bold red", "note": "yellow"}
        grid = Grid("", "", "", box=None, show_header=False)
        for what, verdict, said in self.rows:
            grid.add_row(what, Text(verdict, style=colours[verdict]), Text(printable(said)))
        console.print(grid)


def check(name: str, overrides: Sequence[str] = (), card: str | None = None) -> bool:
    """Print what was found; True if nothing is wrong. `card` is a card's memory, such as 24GB; None: this machine's.

    Of a run's folder the metrics are looked at, and nothing else.

    Raises FileNotFoundError without such a config or run, ValueError where it describes no run or `card` is no size.
    """
    if Path(name).is_dir():
        return look_at_run(RunDir.open(name))
    resolved, size, found = configs.load(name, overrides), room(card), CheckLines()
    given = sum(origin != "default" and not origin.startswith("preset") for _, _, origin in resolved.rows())
    found.add("config", f"{chain_label(resolved)}; {given} values given, the rest are defaults (mmrl show {name})")
    stages = stages_of(resolved)
    with found.look("stages"):
        look_ahead(stages)
    for stage in stages:
        if found.fine and stage.in_round <= 1:
            with rows_before(stage):
                look_at_stage(stage, mining_text(stage), size, found)
    if found.fine and resolved.config.reward:
        with found.look("reward test"):
            test_rewards(name, overrides, resolved, found)
    found.show()
    return found.fine


def look_at_stage(stage: Stage, mining: str, size: int | None, found: CheckLines) -> None:
    """Data, plan, model and rewards of a run, or of one stage of a chain; `mining`: what it samples where it does not train."""
    resolved = stage.resolved
    if stage.place:
        found.add(stage.place, mining.removeprefix(": ") or f"{resolved.config.algorithm.label}, {resolved.config.steps} steps")
    with found.look("data"):
        look_at_data(resolved, found)
    if found.fine and not mining:
        with found.look("plan"):
            look_at_plan(draw_up(resolved, on_card=size is not None, card=size), size, found)
    if found.fine:
        resolved = with_whole_rows(resolved, found)
        with found.look("model and rewards"), distributed_run() as (accelerator, _):
            look_at_job(build(resolved, accelerator=accelerator), resolved, found)


def with_whole_rows(resolved: Resolved, found: CheckLines) -> Resolved:
    """The run as one process can try it: it reads rows whole that several are to read together."""
    policy = resolved.config.policy
    if not isinstance(policy, TextPolicyConfig) or policy.context == 1:
        return resolved
    said = f"read whole here: policy.context = {policy.context} takes as many processes, whose readings the run's gate compares"
    found.add("rows", said, "note")
    return replace(resolved, config=replace(resolved.config, policy=replace(policy, context=1)))


def look_at_run(run: RunDir) -> bool:
    """Print what a run's metrics show of its sampler; True if nothing is wrong."""
    found = CheckLines()
    steps, gaps = column(run.read_metrics().lines, LOG_RATIO)
    if stale := stale_sentence(steps, gaps):
        found.add("sampler", stale, "FAIL")
    elif gaps:
        found.add(
            "sampler", f"its log-probabilities never leap: {max(gaps):.2g} nats off per action at most, in {len(gaps)} steps"
        )
    else:
        found.add("sampler", f"{run.metrics_file} holds no {LOG_RATIO}: no step noted what the sampler wrote", "note")
    found.show()
    return found.fine


def look_at_data(resolved: Resolved, found: CheckLines) -> None:
    """Every row can be read, and no prompt to evaluate on is trained on."""
    config, plug_ins = resolved.config, read_plug_ins(resolved)
    prompts = load_prompts(plug_ins.data, f"[data] {config.data.use}")
    looked_at, (_, evaluated) = first_prompts(prompts), held_out_prompts(config, plug_ins.held_out)
    count = f"{len(prompts)}" if isinstance(prompts, Sequence) else f"a stream, {len(looked_at)} looked at"
    found.add("data", f"{count} prompts to train on")
    if not evaluated:
        why = "without [evaluation.data]" if config.evaluation.data is None else "with evaluation.num_prompts = 0"
        found.add("held-out data", f"none: {why} there is no way to see if the model got better", "note")
        return
    if seen := overlap_sentence(looked_at, evaluated):
        found.add("held-out data", seen, "FAIL")
    else:
        found.add("held-out data", f"{len(evaluated)} prompts, none of which is trained on")


def look_at_plan(made: Plan, size: int | None, found: CheckLines) -> None:
    """The geometry is possible, and memory and disk suffice."""
    config = made.config
    found.add(
        "geometry",
        f"{config.prompts_per_step} prompts x {config.algorithm.algorithm.group_size} samples, updates: {made.usual.updates}, "
        f"parts of each: {made.usual.counts['update'].parts / made.usual.updates:g}",
    )
    trouble = None if size is None else advice(made.memory, size, made.is_text)
    needed = f"about {size_text(made.memory.resident if size is None else made.memory.peak)}"
    if size is None:
        found.add("memory", f"{needed}; no accelerator here: give --card 24GB to compare", "note")
    else:
        found.add("memory", trouble or f"{needed} of {size_text(size)}", "FAIL" if trouble else "ok")
    beside = sum(name.startswith("weights kept beside") for name in made.memory.stays)
    each = made.memory.checkpoint(beside + versions_in_flight(config))
    kept = config.checkpoint.keep or max(1, config.steps // (config.save_every or config.steps or 1))
    wanted = (Path(config.output).expanduser() if config.output else RUNS).absolute()
    folder = next(one for one in (wanted, *wanted.parents) if one.is_dir())
    free, needs = shutil.disk_usage(folder).free, (kept + 1) * each
    said = f"{kept} checkpoints of {size_text(each)}, {size_text(free)} free"
    if config.saves_by_time and not config.checkpoint.keep:
        said = f"a checkpoint of {size_text(each)} every {config.save_minutes:g} minutes and none deleted, {size_text(free)} free"
    more = "lower checkpoint.keep, or set output to another disk"
    found.add("disk", said if needs < free else f"{said}: {more}", "ok" if needs < free else "FAIL")


def look_at_job(job: Job, resolved: Resolved, found: CheckLines) -> None:
    """One rollout of a few prompts, scored and evaluated again."""
    trainer = job.trainer
    names = ", ".join(trainer.collector.rewards.names)
    found.add("model and rewards", f"loaded {resolved.config.policy.model} and {names or 'no reward, for none is asked'}")
    algorithm = trainer.algorithm if trainer.algorithm.unscored else replace(trainer.algorithm, planner=Once())
    settings = replace(trainer.settings, prompts_per_step=min(FEW, trainer.settings.prompts_per_step))
    collector = Collector(
        job.policy, trainer.sampler, trainer.collector.rewards, algorithm, settings, trainer.ranks, trainer.reader
    )
    collected = collector.collect(trainer.sampling(1))
    rollouts = collected.rollouts
    sampled = sum(len(group.samples) for group in rollouts.groups)
    found.add("rollout", f"{len(rollouts.groups)} prompts, {sampled} samples, {collected.times['time/rollout_s']:.1f} s")
    with found.look("audit"):
        trainer.audit(rollouts, 1)
        found.add("audit", "prompts, their media and completions fit each other")
    with found.look("ratio"):
        look_at_ratio(job, rollouts, found)
    look_at_rewards(collected, found)
    with found.look("demonstrations"):
        look_at_demonstrations(job, resolved.config, found)
    look_at_samples(rollouts, found)
    with found.look("evaluation"):
        look_at_evaluation(job, found)


def look_at_evaluation(job: Job, found: CheckLines) -> None:
    """One evaluation of a few held-out prompts, every way that the config names."""
    if (evaluator := job.evaluator) is None:
        return
    few = replace(evaluator, prompts=evaluator.prompts[:FEW])
    metrics, examples = few.run(0)
    sampled, total = sum(len(group.samples) for group in examples.groups), metrics["eval/total"]
    said = f"{len(few.prompts)} prompts, {sampled} samples, total {total:.3f}"
    said += f"; also as {', '.join(examples.also)}" if examples.also else ""
    if math.isnan(total):
        found.add("evaluation", f"{said}: no sample has all weighted rewards, so nothing could be compared", "FAIL")
    else:
        found.add("evaluation", said)


def look_at_ratio(job: Job, rollouts: Rollouts, found: CheckLines) -> None:
    """Training must see the log-probabilities that the sampler saw."""
    reader = job.trainer.reader
    sampled = rollouts.recorded.get(ROLLOUT_LOGPROBS)
    reader.read(rollouts, check=True)
    bounds = reader.gate.bounds
    if sampled is None or bounds is None:
        found.add("ratio", "the method has no log-probabilities to compare")
        return
    with torch.no_grad():
        evaluated = reader.read_rows(rollouts, [OLD_LOGPROBS])[OLD_LOGPROBS]
    gap = Gap.between(rollouts.action_mask, sampled, evaluated)
    found.add(
        "ratio",
        f"|log ratio| {gap.worst:.1e} at most (bound {bounds.worst:.3g}), {gap.average:.1e} on average (bound {bounds.mean:.3g})",
    )


def look_at_rewards(collected: Collected, found: CheckLines) -> None:
    """Every weighted reward answers, and samples of a group differ in it."""
    scores, ids = collected.scores, collected.rollouts.group_ids
    metrics = reward_metrics(scores, collected.rollouts, collected.tables, Ranks())
    parts = [one for table in collected.tables.values() for one in table.parts]
    for k, name in enumerate(scores.names):
        values = torch.where(scores.status[:, k] == Status.OK, scores.values[:, k], math.nan)
        failed, missing = (metrics.get(f"reward/{name}/{what}", 0.0) for what in ("failed", "na"))
        unparsed = sum(bool(one.get(f"{name}/unparsed")) for one in parts) / len(scores.values)
        shares = (missing, "None"), (failed, "failed"), (unparsed, "of the samples unparsed")
        said = f"mean {metrics[f'reward/{name}']:.3f}, spread inside groups {spread(values, ids):.3f}"
        said += "".join(f", {share:.0%} {text}" for share, text in shares if share)
        weighted = bool(scores.weights[k] != 0)
        if failed and weighted:
            found.add(f"reward {name}", f"{said}: find out why it fails with mmrl reward test", "FAIL")
        elif missing == 1 and weighted:
            found.add(f"reward {name}", f"{said}: it applies to none of these prompts, remove it or fix its columns", "FAIL")
        else:
            found.add(f"reward {name}", said, "note" if unparsed else "ok")
    if (flat := metrics["reward/no_spread"]) > 0:
        found.add("spread", f"in {flat:.0%} of the groups all samples have the same total: nothing is learned from them", "note")


def look_at_demonstrations(job: Job, config: RunConfig, found: CheckLines) -> None:
    """Demonstrations earn with the run's own rewards as much as the truth does, written as this model is to write it."""
    planner, rewards = job.trainer.algorithm.planner, job.watched
    if config.algorithm.preset != "sft" or not isinstance(planner, Taught) or rewards is None or config.environment is not None:
        return
    prompts, parts = job.trainer.sampler.draw(TESTED), [one for own in rewards.rewards for one in parts_of(own.function)]
    policy, best = with_local_model(config).policy, replace(job.trainer.algorithm, planner=replace(planner, written="truth"))
    try:
        bound = bind_taught(best, policy, modality_of(policy).box_space(policy), prompts, parts).planner
    except ValueError:
        return  # without truths there is nothing to compare with
    shown = job.policy.rollout(planner.first(prompts, 1, 0, 0)).groups
    true = [
        replace(group, samples=(replace(group.samples[0], text=str(request.written)),))
        for group, request in zip(shown, bound.first(prompts, 1, 0, 0), strict=True)
    ]
    values = [torch.stack([table.values[0] for table in rewards.score(groups)]) for groups in (shown, true)]
    known = values[0].isfinite() & values[1].isfinite()
    for k, name in enumerate(rewards.names):
        taught, truth = (float(value[known[:, k], k].mean()) for value in values)
        if not rewards.weights[k] or not truth > 0:
            continue
        said = f"{name} gives them {taught:.3f}, and {truth:.3f} to the truth as this model is to write it"
        if taught >= ALIKE * truth:
            found.add("demonstrations", said)
        else:
            remedy = ': written = "truth" in the stage teaches that'
            found.add("demonstrations", said + remedy, "note" if taught > 0 else "FAIL")


def spread(values: torch.Tensor, ids: torch.Tensor) -> float:
    """Mean over groups of the deviation inside, NaN where there is none."""
    known = [values[(ids == id) & ~values.isnan()] for id in ids.unique()]
    found = [float(x.std(correction=0)) for x in known if len(x)]
    return sum(found) / len(found) if found else math.nan


def look_at_samples(rollouts: Rollouts, found: CheckLines) -> None:
    """Completions end, and one sample to look at."""
    group = next(group for group in rollouts.groups if group.samples)
    sample = group.samples[0]
    if sample.text is not None:
        cut = float(rollouts.truncated().float().mean())
        most = "policy.sampling.max_new_tokens" if sample.output is None else "policy.plan.max_new_tokens"
        said = f"{cut:.0%} were cut: raise {most}" if cut > 0.5 else f"{cut:.0%} were cut"
        found.add("completions" if sample.output is None else "plans", said, "note" if cut > 0.5 else "ok")
        found.add("a sample" if sample.output is None else "a plan", f"{group.prompt.text!r} -> {sample.text!r}")
    if sample.output is None:
        return
    file = Path(tempfile.mkdtemp(prefix="mmrl-check-")) / "sample.png"
    frames, kind = frames_of(sample.output)
    (frames[0] if kind == "picture" else strip(frames)).save(file)
    found.add("a sample", f"{group.prompt.text!r} -> {file}")


def test_rewards(name: str, overrides: Sequence[str], resolved: Resolved, found: CheckLines) -> None:
    """Adds the verdict of `mmrl reward test` on the config's rewards; pictures have no truth to test with."""
    output = resolved.config.makes
    if output not in ("text", "image"):
        what = "sounds" if output == "sound" else "clips"
        found.add("reward test", f"not for {what}: mmrl reward score REWARD FOLDER ranks those that you have", "note")
        return
    from mmrl.app.commands.options import RewardTestOptions
    from mmrl.app.commands.reward import test

    try:
        is_fine = test(name, overrides, RewardTestOptions(prompts=TESTED))
    except NoTruthError:
        found.add("reward test", "not for prompts without answers: mmrl reward score REWARD FILE ranks what you have", "note")
        return
    if is_fine:
        said = "every reward answers for pictures, the same each time; mmrl reward score REWARD FOLDER shows what it prefers"
        found.add("reward test", said if output == "image" else f"the truth wins on {TESTED} prompts")
    else:
        found.add("reward test", "a reward has a fault, see above: fix it, or train on another one", "FAIL")
