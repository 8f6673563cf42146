"""`mmrl sample`: one prompt's samples of a run drawn again, and compared with what the run noted of them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from mmrl.app.chain.rows import rows_before
from mmrl.app.commands.options import SampleOptions
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.config.stages import stage_at, stages_of
from mmrl.app.modality.prompt_view import prompt_view
from mmrl.app.run.build import Job, build
from mmrl.app.run.context import distributed_run
from mmrl.app.run.folder import Line, RunDir, installed_versions, read_lines
from mmrl.app.run.revive import load_state
from mmrl.app.run.sample_files import digest, image_bytes, strip_of
from mmrl.core.types import Group, Request, Sample
from mmrl.runtime.near import did_you_mean
from mmrl.runtime.repeating import deterministic
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import Variant

Split = Literal["train", "eval"]


@dataclass(frozen=True)
class DrawnGroup:
    """A group that was drawn again, and how it was asked for."""

    group: Group
    request: Request
    scores: tuple[str, ...] = ()
    """One text per sample, where it was scored again."""


@dataclass(frozen=True)
class RecordedMatch:
    """One sample compared with what the run recorded."""

    is_same: bool | None
    """None: nothing was noted."""
    text: str


@dataclass(frozen=True)
class Resampled:
    """The text that `mmrl sample` prints, and whether anything differs."""

    lines: Sequence[str]
    verdicts: Sequence[RecordedMatch]

    @property
    def differs(self) -> bool:
        return any(verdict.is_same is False for verdict in self.verdicts)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def resample(path: Path, options: SampleOptions) -> Resampled:
    """Draw the samples of a prompt at a step again: those of training were drawn with the weights after the step before.

    With `options.whole` the whole step is sampled as training did, and scored: where a planner looks at scores before it samples
    again, or where the last bits depend on what is sampled together.
    Raises ValueError without such a step, prompt or sample, or a checkpoint of the weights that drew them.
    """
    step, prompt, split, index, out = options.step, options.prompt, options.split, options.index, options.out
    run = RunDir.open(path)
    resolved = configs.load(str(run.config_file))
    before = step - 1 if split == "train" else step
    check_step(run, step, split, resolved.config.steps)
    with deterministic(resolved.config.deterministic), distributed_run() as (accelerator, _):
        job = job_at(resolved, run, accelerator, before, split == "train")
        lines = read_lines(run.samples_file(split, step)).lines
        noted = {(line["group"], line["sample"]): line for line in lines if line["prompt"] == prompt}
        if split == "eval":
            drawn = held_out(job, prompt, run)
        else:
            drawn = (
                whole_step(job, prompt, step)
                if options.whole
                else groups_of_prompt(job, prompt, step, max((g for g, _ in noted), default=-1))
            )
        lines, verdicts = [f"{run.path}, {split} step {step}, prompt {prompt}, sampled with the weights after step {before}"], []
        for one in drawn:
            lines += group_lines(job, one, out)
            for place, text, verdict in sample_verdicts(one, noted, run, index, out):
                lines += [f"{place}: {verdict.text}", *text]
                verdicts.append(verdict)
        if not verdicts:
            raise ValueError(f"prompt {prompt!r} has {len(drawn[0].group.samples)} samples, numbered from 0: there is no {index}")
    if any(verdict.is_same is False for verdict in verdicts):
        lines += advice(run, options.whole)
    return Resampled(lines, verdicts)


def job_at(resolved: Resolved, run: RunDir, accelerator: Any, step: int, goes_on: bool) -> Job:
    """The run as it was after a step; where it `goes_on` and a stage ended there, as the next one begins."""
    stages = stages_of(resolved)
    own = stages[stage_at(stages, step)]
    following = next((one for one in stages[own.number :] if one.miner is None), None)
    with rows_before(own, run):
        job = build(own.resolved, accelerator=accelerator, stage=own)
    if step:
        job.trainer.load_state_dict(load_state(run, step))
    if goes_on and step == own.end and following is not None:
        with rows_before(following, run):
            job = build(following.resolved, accelerator=accelerator, stage=following, after=job)
    return job


def check_step(run: RunDir, step: int, split: Split, steps: int) -> None:
    """Raise ValueError unless the weights that drew this step's samples are there: built anew, or in a checkpoint."""
    shift = 1 if split == "train" else 0
    known = [at + shift for at in (0, *Checkpoints(run.checkpoints).steps()) if at + shift <= steps]
    if step not in known:
        raise ValueError(
            f"{run.path} kept no weights that drew the {split} samples of step {step}: {split} samples can be drawn again at "
            f"step {', '.join(map(str, known))}; save_every = 1 and checkpoint.keep = 0 keep all"
        )


def groups_of_prompt(job: Job, prompt: str, step: int, last_group: int) -> list[DrawnGroup]:
    """The prompt's groups, planned as the step planned them and sampled without the others."""
    collector, config = job.trainer.collector, job.config
    asked = collector.requests_for(config.prompts_per_step)
    while collector.next_group <= last_group:
        asked += collector.requests_for(config.prompts_per_step)  # later rounds draw the prompts that come next
    mine = [request for request in asked if request.prompt.id == prompt]
    if not mine:
        again = "; rounds after the first drew others: --whole samples them too" if collector.planner.max_rounds > 1 else ""
        raise ValueError(f"step {step} drew no prompt {prompt!r}: {did_you_mean(prompt, [r.prompt.id for r in asked])}{again}")
    rollouts = job.policy.rollout(mine, job.trainer.sampling(step))
    return [DrawnGroup(group, next(r for r in mine if r.group_id == group.id)) for group in rollouts.groups]


def whole_step(job: Job, prompt: str, step: int) -> list[DrawnGroup]:
    """The prompt's groups after the whole step was sampled and scored."""
    collector = job.trainer.collector
    collected = collector.collect(job.trainer.sampling(step))
    groups = [group for group in collected.rollouts.groups if group.prompt.id == prompt]
    if not groups:
        ids = [group.prompt.id for group in collected.rollouts.groups]
        raise ValueError(f"step {step} trained on no group of prompt {prompt!r}: {did_you_mean(prompt, ids)}")
    names = collector.rewards.names
    return [
        DrawnGroup(
            group,
            Request(group.prompt, len(group.samples), group.id),
            tuple(
                ", ".join(f"{name} {value:.4g}" for name, value in zip(names, row, strict=True))
                for row in collected.tables[group.id].values.tolist()
            ),
        )
        for group in groups
    ]


def held_out(job: Job, prompt: str, run: RunDir) -> list[DrawnGroup]:
    """The held-out prompt, answered as evaluation does."""
    if job.evaluator is None:
        raise ValueError(f"{run.path} has no held-out prompts: leave --split eval out")
    prompts = job.evaluator.prompts
    places = [i for i, one in enumerate(prompts) if one.id == prompt]
    if not places:
        raise ValueError(f"no held-out prompt is called {prompt!r}: {did_you_mean(prompt, [one.id for one in prompts])}")
    requests = [job.evaluator.request(i, Variant("", weights=job.evaluator.settings.weights)) for i in places]
    groups = job.policy.rollout(requests, job.evaluator.sampling).groups
    return [DrawnGroup(group, request) for group, request in zip(groups, requests, strict=True)]


def group_lines(job: Job, drawn: DrawnGroup, out: Path | None) -> Iterator[str]:
    """The lines that tell what the model was shown for a group."""
    shown = prompt_view(job.policy, drawn.request)
    seed = f", seed {drawn.request.seed}" if drawn.request.seed else ""
    yield f"group {drawn.group.id}{seed}; {shown.lines()[0]}"
    yield from shown.lines()[1:]
    files = [save_picture(out, f"group-{drawn.group.id}-{name}", picture) for name, picture in shown.pictures if out is not None]
    if files:
        yield f"    {files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}"


def sample_verdicts(
    drawn: DrawnGroup, noted: dict[tuple[int, int], Line], run: RunDir, index: int | None, out: Path | None
) -> Iterator[tuple[str, list[str], RecordedMatch]]:
    """Every sample wanted of a group: its name, what it is, and what the run noted."""
    for i, sample in enumerate(drawn.group.samples):
        if index is not None and i != index:
            continue
        line = noted.get((drawn.group.id, i))
        text = [f"    {part}" for part in dialogue(sample)]
        shown = sample.image if sample.image is not None else strip_of(sample.output)
        if isinstance(shown, Image.Image) and out is not None:
            text.append(f"    {save_picture(out, f'group-{drawn.group.id}-sample-{i}', shown)}")
        if drawn.scores:
            text.append(f"    scored again: {drawn.scores[i]}")
        if line is not None:
            text.append(f"    recorded: {', '.join(f'{name} {value_text(value)}' for name, value in line['scores'].items())}")
        tokens = f", {len(sample.token_ids)} tokens" if sample.token_ids is not None else ""
        yield f"sample {i} ({sample.role}{tokens})", text, verdict(sample, line, run)


def dialogue(sample: Sample) -> Iterator[str]:
    """The lines of what was written; of episodes, with what was answered and how many pictures that showed."""
    if not sample.turns:
        yield from (sample.transcript or "").splitlines()
    for number, turn in enumerate(sample.turns, start=1):
        yield from f"turn {number}: {turn.text}".splitlines()
        if turn.observation is not None and number < len(sample.turns):
            seen = "".join(f" [{size.width} x {size.height}]" for size in turn.media_sizes)
            yield from f"{turn.observation.role}: {turn.observation.text}{seen}".splitlines()
    if sample.ended is not None:
        yield f"ended: {sample.ended}"


def value_text(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def save_picture(out: Path, name: str, picture: Image.Image) -> Path:
    """The file the picture was written to."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{name}.png"
    picture.save(file)
    return file


def verdict(sample: Sample, line: Line | None, run: RunDir) -> RecordedMatch:
    """Says if it equals what was recorded, and if not, where it starts to differ."""
    if line is None:
        return RecordedMatch(None, "the run recorded no such sample (samples_every, or its group was dropped)")
    was = line.get("earlier", "") + (line["completion"] or "")
    if sample.transcript is not None and sample.transcript != was:
        return RecordedMatch(False, f"differs {first_letter(was, sample.transcript)}")
    if line.get("digest") is not None:
        if line["digest"] == digest(sample):
            return RecordedMatch(True, "identical to what the run recorded")
        return RecordedMatch(False, f"differs {first_difference(sample, line, run)}")
    if sample.text is not None:
        return RecordedMatch(True, "the same text as the run recorded")
    return RecordedMatch(None, "the run recorded nothing to compare with")


def first_difference(sample: Sample, line: Line, run: RunDir) -> str:
    """Where a sample whose digest is another one begins to differ."""
    if sample.text is not None:
        return "in tokens that read alike"
    if sample.video is not None:
        return "in some frames (the run kept a strip of few, too few to say which)"
    if sample.sound is not None:
        return "in some samples of the sound"
    return first_pixel(line["image"], sample.image, run)


def first_letter(was: str, now: str) -> str:
    place = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    return f"from letter {place + 1} on: recorded {was[place : place + 40]!r}, now {now[place : place + 40]!r}"


def first_pixel(line: Line, picture: Image.Image, run: RunDir) -> str:
    """Where the stored picture, small and perhaps compressed as it is, begins to differ."""
    suffix = image_bytes(picture)[1]
    file = run.samples / line["file"]
    if suffix != ".png" or not file.is_file() or (line["width"], line["height"]) != picture.size:
        return "in some pixels (the run kept it too small or compressed to say which)"
    with Image.open(file) as stored:
        was, now = np.asarray(stored.convert("RGB"), dtype=int), np.asarray(picture.convert("RGB"), dtype=int)
    rows, columns = np.nonzero(np.abs(was - now).max(axis=2))
    if not len(rows):
        return "outside of what RGB shows"
    most, count = np.abs(was - now).max(), picture.width * picture.height
    return f"in {len(rows)} of {count} pixels by up to {most} of 255, first at ({columns[0]}, {rows[0]})"


def advice(run: RunDir, whole: bool) -> Iterator[str]:
    """The likely reason for a difference."""
    then = json.loads(run.versions_file.read_text(encoding="utf-8")) if run.versions_file.is_file() else {}
    now = installed_versions()
    changed = [f"{name} {then[name]}, now {now.get(name)}" for name in then if now.get(name) != then[name]]
    if changed:
        yield f"the run was made with {'; '.join(changed)}"
    if not whole:
        yield "sums depend in their last bits on what is sampled together: --whole samples the step as training did"
