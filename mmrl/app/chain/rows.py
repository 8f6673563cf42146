"""Stages that train nothing: they sample and score prompts, and write the rows that later stages train on."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rich.progress import track

from mmrl.algorithms.miners import Columns, Difficulty
from mmrl.algorithms.planners.base import seed_of
from mmrl.app.config.data import data_tables
from mmrl.app.config.plug_ins import read_plug_ins
from mmrl.app.config.run import load
from mmrl.app.config.stages import Stage, num_samples
from mmrl.app.config.tasks import root_key
from mmrl.app.errors import waiting
from mmrl.app.files import replace_text
from mmrl.app.plugins.resolve import STAGE, offer
from mmrl.app.run.build import (
    Job,
    adapted,
    build,
    first_prompts,
    held_out_prompts,
    load_data,
    load_prompts,
    prompts_beyond,
    with_local_model,
)
from mmrl.app.run.context import console
from mmrl.app.run.folder import Line, RunDir, append_line, as_text, read_lines
from mmrl.app.run.sample_files import digest_of_prompt, store, write_clip
from mmrl.app.run.signals import listen
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group, Prompt, Request, Sample, Scores
from mmrl.data.files.paths import write_jsonl
from mmrl.data.layouts.base import EDITED, MEDIA
from mmrl.data.layouts.write import LineWriter, check_writable, columns_of
from mmrl.runtime.blame import UnavailableError
from mmrl.training.stopping import AskedToStopError, TrainingStoppedError


def file_of(run: RunDir, stage: Stage) -> Path:
    """The rows of a stage, there once it is over: a line per prompt that was sampled."""
    return run.path / "stages" / f"{stage.number:02d}-{stage.kind}.jsonl"


def part_of(file: Path) -> Path:
    """The lines that a stage under way has written so far."""
    return file.with_suffix(".part")


@contextmanager
def rows_before(stage: Stage, run: RunDir | None = None) -> Iterator[None]:
    """Let a stage read what earlier ones wrote; without a run, prompts with columns that stand for theirs."""
    with offer({f"{STAGE}{one.name}": loader(one, run) for one in stage.before if one.miner}):
        yield


def loader(stage: Stage, run: RunDir | None) -> Callable[[], list[Prompt]]:
    """The `load` of a data set that is a stage's rows; its parameters are read as settings, so it has none."""
    return lambda: load_rows(stage, run)


def prompts_to_mine(stage: Stage, run: RunDir | None) -> list[Prompt]:
    """The prompts that a stage samples; without a run the first ones, which are looked at."""
    assert stage.miner is not None
    with rows_before(stage, run):
        found = load_prompts(read_plug_ins(stage.resolved).data, f"{stage.place}: [data] {stage.resolved.config.data.use}")
    if run is None:
        found = first_prompts(found)
    if not isinstance(found, Sequence) and not stage.miner.num_prompts:
        raise ValueError(f"{stage.place}: its data is a stream, which never ends: set num_prompts")
    return list(islice(found, stage.miner.num_prompts or None))


def as_written(rows: Sequence[Columns], run: RunDir) -> list[Line]:
    """Rows in JSON's types: what was drawn becomes a file, named by its content, and the row says where it lies."""
    folder = run.path / "stages" / "media"

    def to_json(value: object) -> object:
        if not isinstance(value, Sample):
            return value
        if value.video is None:
            return store(folder, value.image, most=None)["file"]
        clip = write_clip(folder, value)
        if clip is None:
            raise ValueError(
                "a clip whose sides are odd cannot be kept as mp4: set policy.width and policy.height to even numbers"
            )
        return f"media/{clip.name}"

    return [{name: to_json(value) for name, value in row.items()} for row in rows]


def signed(line: Line, prompt: Prompt, stage: Stage, run: RunDir) -> Line:
    """A line with its rows in JSON's types, a digest of its prompt, and a checksum of it all."""
    whole = {**line, "rows": as_written(line["rows"], run), "prompt": digest_of_prompt(prompt)}
    return {**whole, "sum": sum_of(whole, stage, run)}


def sum_of(line: Line, stage: Stage, run: RunDir) -> str:
    """A checksum of a line, and of the files that it names."""
    found = hashlib.sha256(as_text({name: value for name, value in line.items() if name != "sum"}).encode())
    for path in (value for row in line["rows"] for value in with_paths(row, stage, run).values() if isinstance(value, Path)):
        found.update(path.read_bytes())
    return found.hexdigest()[:20]


def with_paths(row: Columns, stage: Stage, run: RunDir) -> Columns:
    """A row with the whole paths of its files; ValueError where one is gone."""
    if stage.resolved.config.makes == "text":
        return row
    found = {name: run.path / "stages" / value if isinstance(value, str) else value for name, value in row.items()}
    for path in found.values():
        if isinstance(path, Path) and not path.is_file():
            raise ValueError(f"{stage.place}: its rows name {path}, which is gone: put the file back, or begin in a new folder")
    return found


def lines_of_file(file: Path, stage: Stage, prompts: Sequence[Prompt], run: RunDir) -> list[Line]:
    """The lines that a stage wrote; ValueError where one is not as it was written, or its prompt is another one by now."""
    lines = read_lines(file).lines
    for number, line in enumerate(lines, start=1):
        if line.get("sum") != sum_of(line, stage, run):
            raise ValueError(
                f"{stage.place}: line {number} of {file}, or a file that it names, is not as it was written: put it back, or "
                "begin in a new folder"
            )
    others = [line["id"] for line, prompt in zip(lines, prompts, strict=False) if line["prompt"] != digest_of_prompt(prompt)]
    count = len(prompts) if file.suffix == ".jsonl" else min(len(lines), len(prompts))
    if others or len(lines) != count:
        what = f"prompt {others[0]!r}" if others else f"one of {len(lines)} prompts"
        more = f" and {len(others) - 1} more" if others[1:] else "" if others else f", where there are {len(prompts)} now"
        raise ValueError(
            f"{stage.place}: its rows were sampled from other data ({what}{more}): put the data back, or begin in a new folder"
        )
    return lines


def load_rows(stage: Stage, run: RunDir | None) -> list[Prompt]:
    """The prompts of a stage's rows, with the columns that it found; ValueError where its file is gone."""
    assert stage.miner is not None
    prompts, rows = prompts_to_mine(stage, run), dict[str, Sequence[Columns]]()
    if run is None:
        config = stage.resolved.config
        standing = stage.miner.stand_in(*config.modality.stand_ins(config.policy))
        rows = {prompt.id: [standing] for prompt in prompts}
    else:
        file = file_of(run, stage)
        if not file.is_file():
            raise ValueError(f"{stage.place}: its rows, {file}, are gone: put the file back, or begin in a new folder")
        lines = lines_of_file(file, stage, prompts, run)
        for line in lines:
            whole = [with_paths(row, stage, run) for row in line["rows"]]
            rows[line["id"]] = [{name: str(x) if isinstance(x, Path) else x for name, x in row.items()} for row in whole]
    return [
        replace(prompt, id=f"{prompt.id}#{k + 1}" if k else prompt.id, columns={**prompt.columns, **row})
        for prompt in prompts
        for k, row in enumerate(rows.get(prompt.id, ()))
    ]


def forget_rows(run: RunDir, stages: Sequence[Stage], step: int) -> None:
    """Delete what stages wrote after this step, from which the run goes on."""
    for stage in stages:
        if stage.miner is not None and stage.begin > step:
            for file in (file_of(run, stage), part_of(file_of(run, stage))):
                file.unlink(missing_ok=True)


def mining_text(stage: Stage) -> str:
    """The samples that a stage draws which trains nothing, for lists of stages; empty for one that trains."""
    if stage.miner is None:
        return ""
    count = stage.miner.num_prompts or len(prompts_to_mine(stage, None))
    return f": {count} prompts x {num_samples(stage)} samples, no update"


def look_ahead(stages: Sequence[Stage], at: int = 0, run: RunDir | None = None) -> None:
    """Refuse, before any model is loaded, prompts that a stage from this place on cannot train on; errors as in `build`.

    In a run that goes on, what a stage in this place has written so far is looked at, too.
    """
    if run is not None and stages[at].miner is not None and part_of(file_of(run, stages[at])).exists():
        lines_of_file(part_of(file_of(run, stages[at])), stages[at], prompts_to_mine(stages[at], run), run)
    for k, stage in enumerate(stages[at:], start=at):
        config, later = stage.resolved.config, k > at and stage.miner is None
        with rows_before(stage), place_named(stage):
            plug_ins = read_plug_ins(stage.resolved)
            if stage.until is not None:
                held_out, scored = held_out_prompts(config, plug_ins.held_out)
                prompts_beyond(held_out, len(scored), stage.until)
            if later:
                config.algorithm.algorithm.check_step(config.prompts_per_step)
                adapted(with_local_model(config), load_prompts(plug_ins.data, f"[data] {config.data.use}"))


@contextmanager
def place_named(stage: Stage) -> Iterator[None]:
    """Let errors begin with the stage that they are about, unless they name one or the run is no chain."""
    try:
        yield
    except ValueError as error:
        if not stage.place or str(error).startswith("stage "):
            raise
        raise ValueError(f"{stage.place}: {error}").with_traceback(error.__traceback__) from error


def mine(job: Job, stage: Stage, run: RunDir, ranks: Ranks) -> None:
    """Write the rows of a stage, those of some prompts at a time; a run that goes on samples the prompts that are left.

    Raises TrainingStoppedError where no row was found, or a reward is gone for good.
    """
    trainer = job.trainer
    assert stage.miner is not None
    file = file_of(run, stage)
    if not ranks.gather(file.exists() if ranks.is_main else False)[0]:
        prompts, size = prompts_to_mine(stage, run), stage.resolved.config.prompts_per_step
        try:
            with listen(trainer.stop), waiting(f"{stage.place}: sampling {len(prompts)} prompts"):
                done = ranks.gather(lines_kept(run, stage, size, prompts) if ranks.is_main else 0)[0]
                for first in range(done, len(prompts), size):
                    if "stop" in trainer.records.requests():
                        trainer.stop.ask("stop.request")
                    with trainer.stop.interruptible(ranks):
                        mine_some(job, stage, prompts, range(first, min(first + size, len(prompts))), run, ranks)
        except AskedToStopError:
            return trainer.leave()
        except UnavailableError as error:
            raise TrainingStoppedError(f"{stage.place}: {error}; what was sampled is kept: mend it and resume") from error
        if ranks.is_main:
            part_of(file).rename(file)
        # the others read it next
        ranks.gather(None)
    conclude(stage, run, ranks)


def lines_kept(run: RunDir, stage: Stage, size: int, prompts: Sequence[Prompt]) -> int:
    """The prompts that are done, of a stage that a kill may have torn amid some that are sampled together."""
    part = part_of(file_of(run, stage))
    part.parent.mkdir(exist_ok=True)
    lines = lines_of_file(part, stage, prompts, run)
    kept = lines if len(lines) == len(prompts) else lines[: len(lines) // size * size]
    replace_text(part, "".join(map(as_text, kept)))
    return len(kept)


def mine_some(job: Job, stage: Stage, prompts: Sequence[Prompt], chosen: range, run: RunDir, ranks: Ranks) -> None:
    """Sample and score some of the prompts on all processes, and write a line for each."""
    assert stage.miner is not None
    count, seed = num_samples(stage), stage.resolved.config.seed
    requests = [Request(prompts[i], count, group_id=i, seed=seed_of(seed, i)) for i in chosen[ranks.rank :: ranks.world]]
    lines = dict[int, Line]()
    for group, totals in samples_with_totals(job, requests, job.trainer.sampling(stage.begin + 1)):
        mined = stage.miner(group.samples, totals)
        lines[group.id] = {"id": group.prompt.id, "right": mined.right, "scored": mined.scored, "rows": mined.rows}
    found = {i: line for part in ranks.gather(lines) for i, line in part.items()}
    for i in chosen if ranks.is_main else ():
        append_line(part_of(file_of(run, stage)), signed(found[i], prompts[i], stage, run))


def samples_with_totals(job: Job, requests: Sequence[Request], sampling: object = None) -> list[tuple[Group, list[float]]]:
    """The samples of each request, and their total rewards."""
    groups, rewards = job.policy.rollout(requests, sampling).groups, job.trainer.collector.rewards
    tables = rewards.score(groups)
    scores = [Scores(rewards.names, table.values, table.status, rewards.weights) for table in tables]
    return [(group, one.total().tolist()) for group, one in zip(groups, scores, strict=True)]


def filter_data(name: str, out: Path, overrides: Sequence[str], miner: Difficulty, image_root: Path | None = None) -> str:
    """Write the training prompts of a config that its model gets right sometimes as JSONL in our words: `mmrl data filter`.

    `image_root` is where the paths of pictures and clips start; None: as the config says.
    Returns how many prompts there are. Raises ValueError for prompts that a row cannot say, or that a reward did not score, and
    where none is kept.
    """
    resolved = load(name, overrides)
    if image_root is not None:
        tables = data_tables(resolved.config.data, ("data",))
        roots = [f"{'.'.join(path)}.{root_key(data.use)}={str(image_root)!r}" for path, data in tables]
        resolved = load(name, [*overrides, *roots])
    prompts = list(load_data(resolved.config.data, ("data",), resolved.table))
    for prompt in prompts:
        check_writable(prompt)
    count = miner.num_samples or resolved.config.algorithm.algorithm.group_size
    job, kept, easy, scores = build(resolved), list[Prompt](), 0, list[float]()
    for i, prompt in enumerate(track(prompts, "sampling", console=console)):
        [(group, totals)] = samples_with_totals(job, [Request(prompt, count, group_id=i, seed=i)])
        found = miner(group.samples, totals)
        if found.scored < count:
            raise ValueError(
                f"prompt {prompt.id!r}: only {found.scored} of {count} samples have a total reward: test the rewards"
            )
        kept += [prompt] * len(found.rows)
        easy += found.right / count > miner.high
        scores += totals
    said = f"{len(kept)} of {len(prompts)} prompts kept, {easy} too easy, {len(prompts) - len(kept) - easy} too hard"
    if not kept:
        raise ValueError(
            f"no prompt is left for {out} ({said}): the best total reward was {max(scores, default=0.0):.3g}, and "
            f"{miner.success_at:g} counts as right; set --success-at, --low or --high"
        )
    writer = LineWriter(out, out.parent, files=(*MEDIA, *EDITED))
    write_jsonl({out: [writer.line(columns_of(prompt)) for prompt in kept]})
    return said


def conclude(stage: Stage, run: RunDir, ranks: Ranks) -> None:
    """Note how many rows there are, once; TrainingStoppedError where there is none to train on."""
    lines = read_lines(file_of(run, stage)).lines
    scored = [line for line in lines if line["scored"]]
    rows = sum(len(line["rows"]) for line in lines)
    if not rows:
        right = ", ".join(sorted({f"{line['right']} of {line['scored']}" for line in scored})[:4])
        none, why = {
            "pairs": (
                "no prompt gave a pair",
                "the samples of each are alike, cut or equally good: draw more samples, or lower gap",
            ),
            "filter": ("no prompt is kept", f"right were {right} samples of a prompt: set low, high or success_at"),
        }[stage.kind]
        raise TrainingStoppedError(
            f"{stage.place}: {none}, of {len(lines)}; "
            + (why if scored else "no sample has a total reward, for rewards failed or do not apply")
        )
    known = any(line.get("run/stage") == stage.number and "mined/rows" in line for line in run.read_metrics().lines)
    if ranks.is_main and not known:
        right = sum(line["right"] / line["scored"] for line in scored) / len(scored)
        solved = sum(line["right"] > 0 for line in scored) / len(scored)
        figures = {"mined/prompts": len(lines), "mined/rows": rows, "mined/right": right, "mined/solved": solved}
        run.append(stage.begin, {"run/stage": float(stage.number), **figures})
        text = f"{stage.place}: {rows} rows from {len(lines)} prompts, {right:.0%} of the samples right"
        console.print(text.replace("%", " %"))
