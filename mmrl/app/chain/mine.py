"""Stages without training: prompts are sampled and scored with the weights as they are, for the rows of a stage or of a file."""

from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from mmrl.algorithms.miners import Difficulty
from mmrl.algorithms.planners.base import seed_of
from mmrl.app.chain.rows import file_of, lines_of_file, part_of, prompts_to_mine, signed
from mmrl.app.config.data import data_tables
from mmrl.app.config.run import load
from mmrl.app.config.stages import Stage, num_samples
from mmrl.app.config.tasks import root_key
from mmrl.app.errors import waiting
from mmrl.app.files import replace_text
from mmrl.app.run.build import Job, build, load_data
from mmrl.app.run.context import console
from mmrl.app.run.folder import Line, RunDir, append_line, as_text, read_lines
from mmrl.app.run.signals import listen
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group, Prompt, Request, Scores
from mmrl.data.files.paths import write_jsonl
from mmrl.data.layouts.base import EDITED, MEDIA
from mmrl.data.layouts.write import LineWriter
from mmrl.data.prompt_rows import check_writable, columns_of
from mmrl.runtime.blame import UnavailableError
from mmrl.training.stopping import AskedToStopError, TrainingStoppedError


def mine(job: Job, stages: Sequence[Stage], at: int, run: RunDir, ranks: Ranks) -> None:
    """Write the rows of a stage, those of some prompts at a time; a run that goes on samples the prompts that are left.

    Raises:
        TrainingStoppedError: no row was found, or a reward is gone for good.
    """
    stage, trainer = stages[at], job.trainer
    assert stage.miner is not None
    file = file_of(run, stage)
    if not ranks.gather(file.exists() if ranks.is_main else False)[0]:
        prompts, size = prompts_to_mine(stages, at, run), stage.resolved.config.prompts_per_step
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
