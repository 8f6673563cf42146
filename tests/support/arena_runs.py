"""A contest of two methods on a random tiny model where every step costs one second: `FOLDER [KILL_AT]`.

With KILL_AT the process kills itself with SIGKILL when that step of all has begun.
"""

import os
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from mmrl.lab.arena import lane
from mmrl.lab.arena.command import arena
from mmrl.lab.arena.contest import Contest

NEVER = 10**6
"""A step that no run comes to."""
REWARD = """
def by_letters(group):
    return [sum(sample.token_ids) % 97 / 97 for sample in group.samples]
"""


def contest(folder: Path) -> Contest:
    """Rewards are a number of a completion's tokens, so that a model of random weights has something to learn."""
    reward = folder.parent / "by_letters.py"
    reward.write_text(REWARD, encoding="utf-8")
    small = (
        *("policy.sampling.max_new_tokens=6", "data.size=32", "evaluation.num_prompts=4", "evaluation.data.size=4"),
        *("prompts_per_step=2", "algorithm.group_size=4", f"reward.0.use={str(reward)!r}"),
    )
    return Contest("grounding", ("grpo", "rloo"), 4.0, (0,), "tiny:qwen3_vl", marks=2, overrides=small)


def ticks(kill_at: int) -> Iterator[float]:
    """The clock is asked twice per step: before and after."""
    for tick in count():
        if tick == 2 * kill_at + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield float((tick + 1) // 2)


def main(folder: Path, kill_at: int = NEVER) -> None:
    clock = ticks(kill_at)
    lane.clock_of = lambda job: lambda: next(clock)
    arena(contest(folder), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
