"""Kill what a run has beside its trainer, again and again, and compare what it leaves with an undisturbed run.

`python -m tests.reliability.kill_helpers --kills 20 --kinds flow text engine judge rewards`, with `ahead = 2`: the samplers of
an image generator, those of a model that writes, a (fake) vLLM server that mmrl started, and the judge (of fake answers) and
the reward server of `mmrl launch`, which starts them again. Prints a row per kind; exits with 1 if anything differs. The first
three compare weights, the last two what soak.py compares, warnings apart. What trainers do is in soak.py.
"""

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from mmrl.app.config.run import load
from mmrl.app.run.build import Job, build
from mmrl.runtime.workers import living
from tests.reliability.soak import fingerprint, result
from tests.support.fake_engines import ask, make_environment
from tests.support.loopback import launched
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
SAMPLED = ["ahead=2", "cluster.samplers=2", "cluster.restarts=1000"]
SHORT = ["evaluation.num_prompts=0", "policy.lora.rank=2", "optimizer.lr=0.01"]
WRITING = [f"reward.0.use={ROOT}/tests/support/even_letters.py", "policy.rollout_rows=4", *SHORT]
KINDS: dict[str, tuple[str, list[str]]] = {
    "flow": ("tiny/flow", [*SAMPLED, *SHORT, "policy.forward_rows=4"]),
    "text": ("tiny/image", [*SAMPLED, *WRITING]),
    "engine": ("tiny/image", ["ahead=2", *WRITING]),
}
HELPERS = {"judge": "tests.support.fake_judge serve", "rewards": "mmrl reward serve"}
"""What the command line of each says."""
ALL = [*KINDS, *HELPERS]


def words(kind: str, steps: int, folder: Path) -> list[str]:
    """Overrides of a kind's config."""
    more = []
    if kind == "engine":
        more = [f"policy.engine.environment={make_environment(folder / 'vllm')}", "policy.engine.retries=1000"]
    return [*KINDS[kind][1], f"steps={steps}", *more]


def pids(kind: str, job: Job) -> list[int]:
    """The processes that may be killed now."""
    if kind != "engine":
        return [child.pid for child in list(living) if child.poll() is None]
    server = getattr(job.policy, "generator").server  # noqa: B009 - a policy's own part
    return [] if server is None else [ask(server.url, "/fake")["pid"]]


class Killer(threading.Thread):
    """Kills one process at a time, at moments drawn from a seed, until it has killed as many as it should."""

    def __init__(self, find: Callable[[], Sequence[int]], kills: int, between_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.find, self.left, self.between_s, self.random = find, kills, between_s, random.Random(seed)
        self.is_over = False

    def run(self) -> None:
        while self.left and not self.is_over:
            time.sleep(self.random.uniform(0, 2 * self.between_s))
            with suppress(OSError, IndexError, ValueError):
                os.kill(self.random.choice(list(self.find())), signal.SIGKILL)
                self.left -= 1


def end_of(kind: str, steps: int, folder: Path, kills: int = 0, between_s: float = 1.0) -> tuple[dict[str, str], int]:
    """What is compared of a run, and how often something was killed; a run without enough kills goes on for more steps."""
    folder.mkdir()
    if kind in HELPERS:
        return end_of_launch(kind, steps, folder, kills, between_s)
    job: Any = build(load(KINDS[kind][0], words(kind, steps, folder)))
    killer = Killer(lambda: pids(kind, job), kills, between_s, seed=steps)
    killer.start()
    job.trainer.fit()
    killer.is_over = True
    job.policy.generator.close()
    return {"weights": fingerprint([weight.detach() for weight in job.policy.parameters()])}, kills - killer.left


def end_of_launch(kind: str, steps: int, folder: Path, kills: int, between_s: float) -> tuple[dict[str, str], int]:
    """The same of `mmrl launch`, one of whose servers dies once the run has taken a step. Warnings tell of that, and differ."""
    cache = folder.parent / "cache"
    if not cache.exists():
        make_environment(cache / "engines" / "vllm-0.32.0", server="tests.support.fake_judge")
    with launched(folder, 0, *words_of_launch(folder, steps), MMRL_CACHE=str(cache)) as launch:

        def helpers() -> list[int]:
            return launch.pids(lambda said, _: HELPERS[kind] in said and "watchdog" not in said) if metrics.exists() else []

        metrics = folder / "run" / "metrics.jsonl"
        killer = Killer(helpers, kills, between_s, seed=steps)
        killer.start()
        code = launch.end()
        killer.is_over = True
    if code:
        raise SystemExit(f"mmrl launch ended with {code}:\n{launch.output[-3000:]}")
    left = result(folder / "run")
    return {name: left[name] for name in left if name != "warnings"}, kills - killer.left


SETTINGS = ["ahead=2", "cluster.samplers=1", 'cluster.judges=["fake"]', "policy.lora.rank=2", "save_every=1", "samples_every=1"]
UNHURRIED = "health.max_trainer_idle=1"
"""Waiting for a server that starts is no finding of health, whose state is compared."""


def words_of_launch(folder: Path, steps: int) -> list[str]:
    """The words of `mmrl launch` for a run whose servers have ports of their own; writes the files they name."""
    port = free_ports(3)
    (folder / "spec.toml").write_text(f'port = {port + 1}\n[[reward]]\nuse = "{ROOT}/tests/support/even_letters.py"\n')
    judge, served = f"http://127.0.0.1:{port}/v1", f"http://127.0.0.1:{port + 1}/even_letters"
    rewards = f'reward=[{{use="vlm_judge",server={{url="{judge}"}}}}, {{use="{served}"}}]'
    own = [f"cluster.judge_port={port}", f"cluster.port={port + 2}"]
    more = ["cluster.restarts=1000", f'cluster.rewards=["{folder}/spec.toml"]', f"steps={steps}", f"output={folder}/run"]
    return ["tiny/image", *SETTINGS, UNHURRIED, rewards, *own, *more]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--steps", type=int, default=6, help="of a run; there are as many runs as the kills take")
    parser.add_argument("--between", type=float, default=4.0, help="mean seconds between two kills")
    chosen = parser.parse_args()
    logging.getLogger("mmrl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    say("kind    kills runs  what is left")
    are_same = True
    for kind in chosen.kinds:
        with tempfile.TemporaryDirectory(prefix=f"kill-{kind}-") as scratch:
            expected, done, runs, other = end_of(kind, chosen.steps, Path(scratch) / "whole")[0], 0, 0, set[str]()
            while done < chosen.kills and runs < chosen.kills:
                runs += 1
                found, killed = end_of(kind, chosen.steps, Path(scratch) / f"run-{runs}", chosen.kills - done, chosen.between)
                done, other = done + killed, other | {name for name in expected if found[name] != expected[name]}
        are_same &= not other
        verdict = f"DIFFERENT: {', '.join(sorted(other))}" if other else "identical"
        say(f"{kind:7} {done:5} {runs:4}  {verdict}")
    sys.exit(0 if are_same else 1)


if __name__ == "__main__":
    main()
