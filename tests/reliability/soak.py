"""Kill a run again and again, resume it each time, and compare what is left with a run that nobody disturbed.

`python tests/reliability/soak.py --kills 50 --kinds text video flow` prints a table, and exits with 1 if anything differs.
The undisturbed run is a process of `mmrl train`; the others are forked from this process, which spares them the imports, and are
killed with SIGKILL. Where each is killed is drawn from the seed.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

LIMIT_S = 1200.0
"""An attempt that takes longer is a failure of its own."""
EVERY_STEP = ["save_every=1", "samples_every=2", "evaluate_every=3", "checkpoint.keep_best=eval/total", "checkpoint.keep_every=5"]
SHORT = [
    "prompts_per_step=2",
    "evaluation.num_prompts=2",
    f"reward.0.use={Path(__file__).parents[1]}/support/running_reward.py:Running",
]
CACHED = ["reward.1.call.cache=9"]
MOVING = ["optimizer.lr_schedule=linear", "optimizer.warmup_steps=3", "policy.lora.rank=2", "evaluation.weights=ema"]
TEXT = ["algorithm.minibatches=2", "algorithm.epochs=2", "policy.sampling.max_new_tokens=6", "evaluation.sampling.temperature=1"]
KINDS: dict[str, tuple[str, list[str]]] = {
    "text": ("tiny/image", [*EVERY_STEP, *SHORT, *CACHED, *MOVING, *TEXT, "data.size=7"]),
    "video": ("tiny/clips", [*EVERY_STEP, *SHORT, *CACHED, *MOVING, "policy.sampling.max_new_tokens=6", "data.size=5"]),
    "flow": ("tiny/flow", [*EVERY_STEP, *SHORT, *MOVING, "algorithm.minibatches=2", "policy.weights=nf4"]),
    "ahead": (
        "tiny/flow",
        [*EVERY_STEP, SHORT[0], SHORT[1], *MOVING, "algorithm.minibatches=2", "ahead=2", "cluster.samplers=1"],
    ),
    "chain": ("tiny/verifier_loop", [*EVERY_STEP, SHORT[1], "policy.lora.rank=2", "stage.3.num_samples=4"]),
}
"""Config and overrides: averaged weights, an adapter, a moving learning rate, shuffled minibatches, several epochs of data;
`flow`: beside weights in 4 bits; `ahead`: drawn by a process beside the trainer; `chain`: a cold start, then rounds of
reinforcement, mined pairs and DPO."""
SUITE = ("text", "video", "flow")
"""The kinds that the test suite kills; in the others every attempt loads a model twice."""


@dataclass(frozen=True)
class Moment:
    """Where an attempt dies: at the nth call of a place, or (place "clock") so many seconds after it began."""

    place: str
    number: float


WRITES, PLACES = ("write",), ("collect", "update", "metrics", "evaluate", "load")


def moments(kills: int, share_of_writes: float, rng: random.Random) -> list[Moment]:
    """A shuffled plan with the given share inside a checkpoint's write."""
    inside = round(kills * share_of_writes)
    # every write syncs three files, the manifest and two folders, and a rename lies between the folders
    plan = [Moment("write", rng.randint(1, 9)) for _ in range(inside)]
    for i in range(kills - inside):
        place = rng.choice(PLACES)
        limit = {"collect": 2, "update": 6, "metrics": 3, "evaluate": 1, "load": 1}[place]
        plan.append(Moment("clock", rng.uniform(0.05, 4.0)) if i % 2 else Moment(place, rng.randint(1, limit)))
    rng.shuffle(plan)
    return plan


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def counting(function: Callable[..., Any], number: int, at: Callable[..., None]) -> Callable[..., Any]:
    """The function, but its nth call does something else first."""
    left = [number]

    def called(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            at(*args)
        return function(*args, **kwargs)

    return called


def arm(moment: Moment) -> None:
    """Make this process die at the moment."""
    from mmrl.app.chain import rows
    from mmrl.app.commands import train as jobs
    from mmrl.app.run import folder as rundir
    from mmrl.training import evaluate, trainer
    from mmrl.training.checkpoints import save as checkpoint_files

    def torn(file: Path, line: Any) -> None:
        with file.open("a") as stream:
            stream.write(rundir.as_text(line)[:9])
        die()

    def now(*_: Any) -> None:
        die()

    def after(_: Any) -> None:
        time.sleep(0.02)
        die()

    number = int(moment.number)
    if moment.place == "write":
        synced = counting(os.fsync, number, after)
        checkpoint_files.os = Proxy(os, fsync=synced)  # pyright: ignore[reportAttributeAccessIssue]
    elif moment.place == "metrics":
        rundir.append_line = rows.append_line = counting(rundir.append_line, number, torn)
    elif moment.place == "collect":
        trainer.tell_sampler = counting(trainer.tell_sampler, number, now)
    elif moment.place == "update":
        trainer.refuse_nan = counting(trainer.refuse_nan, number, now)
    elif moment.place == "evaluate":
        evaluate.Evaluator.metrics = counting(evaluate.Evaluator.metrics, number, now)
    elif moment.place == "load":
        jobs.fit = counting(jobs.fit, number, now)


class Proxy:
    """A module with some functions replaced, for one other module alone."""

    def __init__(self, module: Any, **changed: Any) -> None:
        self.__dict__.update(vars(module) | changed)


def prepare() -> None:
    """Import all that an attempt needs, so that forks have it."""
    import diffusers.pipelines.stable_diffusion_3  # noqa: F401
    import peft  # noqa: F401
    import torch
    import transformers.models.auto.processing_auto  # noqa: F401
    from accelerate import Accelerator

    import mmrl.app.commands.train  # noqa: F401 (brings mmrl.app.run.build)

    torch.set_num_threads(1)
    assert Accelerator is not None


def attempt(work: Callable[[], None], moment: Moment | None, log: Path) -> int:
    """Work in a process of its own; the number of the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            if moment is not None:
                arm(moment)
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the fork must not run what comes after in its parent
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return waited_for(child, moment, log)


def waited_for(child: int, moment: Moment | None, log: Path) -> int:
    begun = time.monotonic()
    deadline = moment.number if moment is not None and moment.place == "clock" else LIMIT_S
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() - begun > deadline:
            os.kill(child, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.005)
    if time.monotonic() - begun > LIMIT_S:
        raise SystemExit(f"an attempt took longer than {LIMIT_S:g} s: see {log}")
    code = os.waitstatus_to_exitcode(status)
    if code > 0:
        raise SystemExit(f"an attempt failed by itself:\n{log.read_text()[-3000:]}")
    return -code


def begin_or_go_on(kind: str, folder: Path, steps: int) -> None:
    from mmrl.app.commands import train as jobs
    from mmrl.app.commands.train import TrainArguments

    # a report costs time and is no part of what is compared
    jobs.announce = lambda run: None
    resume = folder if (folder / "config.toml").exists() else None
    given = TrainArguments([], resume=resume) if resume else TrainArguments([*words(kind, steps)], output=folder)
    jobs.run_training(given.resolve(), given.resume)


def words(kind: str, steps: int) -> list[str]:
    config, overrides = KINDS[kind]
    length = f"stage.1.rounds={max(1, steps // 2)}" if kind == "chain" else f"steps={steps}"
    return [config, *overrides, length]


def undisturbed(kind: str, folder: Path, steps: int) -> None:
    command = [sys.executable, "-m", "mmrl", "train", *words(kind, steps), f"output={str(folder)!r}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"the undisturbed run failed:\n{done.stderr[-3000:]}")


def result(folder: Path) -> dict[str, str]:
    """Hashes of what a run leaves: weights and all else that moves, numbers, samples, mined rows, warnings, kept checkpoints."""
    from mmrl.training.checkpoints.save import Checkpoints

    checkpoints = Checkpoints(folder / "checkpoints")
    state = checkpoints.load()
    numbers = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    texts = {file.name: file.read_text() for part in ("samples", "stages") for file in sorted((folder / part).glob("*.jsonl"))}
    warnings = folder / "warnings.jsonl"
    return {
        "weights": fingerprint(state["policy"]),
        **{f"state of {part}": fingerprint(kept) for part, kept in state.items()},
        "metrics": fingerprint(numbers),
        "evaluation": fingerprint([line for line in numbers if "eval/total" in line]),
        "samples": fingerprint(texts),
        "warnings": fingerprint(warnings.read_text() if warnings.exists() else ""),
        "checkpoints": fingerprint(checkpoints.steps()),
    }


def fingerprint(value: Any) -> str:
    """Of everything but times."""
    digest = hashlib.sha256()
    feed(digest, value)
    return digest.hexdigest()[:16]


def feed(digest: Any, value: Any) -> None:
    if hasattr(value, "numpy"):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted((key for key in value if not str(key).startswith("time/")), key=repr):
            digest.update(repr(key).encode())
            feed(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"[{len(value)}]".encode())
        for item in value:
            feed(digest, item)
    else:
        digest.update(repr(value).encode())


@dataclass
class Tally:
    """What was done to a kind of run, and what came of it."""

    kind: str
    kills: int = 0
    writes: int = 0
    """Kills inside the writing of a checkpoint."""
    half: int = 0
    """Of these, how many left a folder half written or half deleted."""
    runs: int = 0
    resumes: int = 0
    places: Counter[str] = field(default_factory=Counter[str])
    different: set[str] = field(default_factory=set[str])
    seconds: float = 0.0

    def row(self) -> str:
        verdict = "identical" if not self.different else f"DIFFERENT: {', '.join(sorted(self.different))}"
        places = " ".join(f"{name} {count}" for name, count in sorted(self.places.items()))
        return (
            f"{self.kind:6} {self.kills:5} {self.writes:13} {self.half:12} {self.resumes:7} {self.runs:4}  {verdict}"
            f"  ({places}; {self.seconds:.0f} s)"
        )


HEAD = "kind   kills inside writes half written resumes runs  weights, metrics, evaluation, samples, ..."


def soak(kind: str, plan: Sequence[Moment], steps: int, place: Path) -> Tally:
    """Runs are killed at the moments of the plan, one after the other, and finished; as many runs as it takes."""
    begun, tally = time.monotonic(), Tally(kind)
    undisturbed(kind, place / "whole", steps)
    expected, left = result(place / "whole"), list(plan)
    while True:
        tally.runs += 1
        folder = place / f"run-{tally.runs}"
        finished = False
        while not finished:
            moment = left.pop(0) if left else None
            tally.resumes += (folder / "config.toml").exists()
            killed = attempt(partial(begin_or_go_on, kind, folder, steps), moment, place / "log.txt")
            finished = not killed
            if moment is not None and finished:
                # a fast machine was done before the clock struck
                left.append(replace(moment, number=moment.number / 2) if moment.place == "clock" else moment)
            elif moment is not None:
                tally.kills += 1
                tally.places[moment.place] += 1
                litter = [path for end in ("partial", "replaced") for path in (folder / "checkpoints").glob(f"*.{end}")]
                tally.half += bool(litter)
                tally.writes += bool(litter) or moment.place == "write"
        found = result(folder)
        tally.different |= {name for name in expected if found[name] != expected[name]}
        if not left or tally.kills >= len(plan):
            tally.seconds = time.monotonic() - begun
            return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--writes", type=float, default=0.4, help="share of the kills inside a checkpoint's write")
    chosen = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare()
    sys.stdout.write(HEAD + "\n")
    sys.stdout.flush()
    tallies: list[Tally] = []
    for kind in chosen.kinds:
        plan = moments(chosen.kills, chosen.writes, random.Random(f"{chosen.seed}/{kind}"))
        with tempfile.TemporaryDirectory(prefix=f"soak-{kind}-") as place:
            tallies.append(soak(kind, plan, chosen.steps, Path(place)))
        sys.stdout.write(tallies[-1].row() + "\n")
        sys.stdout.flush()
    if any(tally.different for tally in tallies):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
