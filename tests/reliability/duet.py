"""Play a duet that is killed in the painter's turns, in the writer's and between, and compare it with one that nobody disturbed.

`python -m tests.reliability.duet FOLDER` exits with 1 if anything differs. Turns are forked from this process, which spares them
the imports, and are killed with SIGKILL; `mmrl alternate` is given again after each, as a user would.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from mmrl.app.commands import alternate as verbs
from tests.reliability import soak
from tests.reliability.soak import Moment, attempt, prepare, result

SMALL = ["prompts_per_step=2", "save_every=1", "samples_every=1", "evaluation.num_prompts=2", "algorithm.group_size=2"]
SOURCE = '{ use = "prompts", texts = ["a red fox", "a blue door", "a green hill"] }'
PAINTER = [
    *SMALL,
    *(f'{place}={{ use = "written", writer = "writer", source = {SOURCE} }}' for place in ("data", "evaluation.data")),
    'reward.0={ use = "asked", picture = { use = "jpeg_size" } }',
    "policy.max_prompt_tokens=40",
    "evaluation.num_steps=2",
    "evaluation.num_samples=1",
]
DRAWN = 'use = "drawn", painter = { run = "painter", num_steps = 2 }'
WRITER = [
    *SMALL,
    "policy.sampling.max_new_tokens=6",
    f'reward.0={{ {DRAWN}, picture = {{ use = "jpeg_size" }} }}',
    f'reward.1={{ name = "watched", {DRAWN}, weight = 0, picture = {{ use = "shapes" }} }}',
]
KILLS = (
    ("painter", Moment("update", 2)),
    ("writer", Moment("load", 1)),
    ("writer", Moment("collect", 2)),
    ("painter", Moment("write", 3)),
    ("writer", Moment("evaluate", 1)),
    ("writer", Moment("write", 5)),
)
"""Whose turn ends early, and where, in the order in which it happens."""


def file_of_duet() -> str:
    players = [("painter", "tiny/flow", PAINTER), ("writer", "tiny/writer", WRITER)]
    tables = [
        f'[[player]]\noutput = "{name}"\nconfig = "{config}"\nsteps = 2\noverrides = {words!r}\n'
        for name, config, words in players
    ]
    return "turns = 2\n" + "".join(tables)


def play(folder: Path, kills: list[tuple[str, Moment]]) -> int:
    """Give the duet until it is done; how often it was killed."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    Path("duet.toml").write_text(file_of_duet())
    left = list(kills)

    def run(words: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        given = words[4:]
        who = given[given.index("--resume" if "--resume" in given else "--output") + 1]
        moment = left.pop(0)[1] if left and left[0][0] == who else None
        return subprocess.CompletedProcess(words, -attempt(partial(train, given), moment, Path("log.txt")))

    verbs.subprocess = soak.Proxy(subprocess, run=run)  # pyright: ignore[reportAttributeAccessIssue]
    times = 0
    while code := verbs.alternate(Path("duet.toml")):
        if code != -9:
            raise SystemExit(f"a turn failed by itself: {code}")
        times += 1
    if left:
        raise SystemExit(f"nobody came to {left}")
    return times


def train(words: list[str]) -> None:
    from mmrl.app.commands import train as jobs

    jobs.announce = lambda run: None
    places: dict[str, Any] = {}
    for flag in ("resume", "output"):
        if f"--{flag}" in words:
            at = words.index(f"--{flag}")
            places[flag] = Path(words[at + 1])
            words = words[:at] + words[at + 2 :]
    given = jobs.TrainArguments(words, **places)
    jobs.run_training(given.resolve(), given.resume)


def main() -> None:
    prepare()
    place = Path(sys.argv[1])
    play(place / "whole", [])
    killed = play(place / "killed", list(KILLS))
    found = {name: [result(place / kind / name) for kind in ("whole", "killed")] for name in ("painter", "writer")}
    different = [f"{name}: {part}" for name, (a, b) in found.items() for part in a if a[part] != b[part]]
    if different or killed != len(KILLS):
        sys.exit(f"killed {killed} times, different: {', '.join(different)}")


if __name__ == "__main__":
    main()
