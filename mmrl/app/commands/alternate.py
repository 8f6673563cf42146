"""`mmrl alternate duet.toml`: runs that use each other, such as a writer and its painter, trained one after the other in turns.

turns = 3
[[player]]
config = "painter.toml"
output = "runs/painter"
steps = 100             # of each turn
[[player]]
config = "writer.toml"
output = "runs/writer"
steps = 100
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrl.app.config import run as configs
from mmrl.app.run.context import console
from mmrl.app.run.folder import RunDir
from mmrl.app.run.resume import changed_settings, saved_config
from mmrl.app.toml.reader import make
from mmrl.app.toml.tables import Table, Values, dotted_key, leaves, said_last, value_at
from mmrl.runtime.ranges import Count, check_ranges
from mmrl.training.checkpoints.save import Checkpoints

SETTLED = (("steps",), ("sampler", "kind"), ("policy", "box_space"))
"""What a run decides of its settings itself, or its turn does."""


@dataclass(frozen=True)
class DuetPlayer:
    """One of the runs: a run of mmrl like any other, with its own config, folder, checkpoints and report."""

    config: str
    """A TOML file, from where the command is given, or a name from `mmrl ls configs`."""
    output: str
    """Its folder."""
    steps: Count
    """Steps of each of its turns."""
    overrides: tuple[str, ...] = ()
    """Words such as "optimizer.lr=1e-5"."""

    __post_init__ = check_ranges

    @property
    def run(self) -> RunDir:
        return RunDir(Path(self.output).expanduser())

    def done(self) -> int:
        """The step of its newest whole checkpoint; 0 without one."""
        return Checkpoints(self.run.checkpoints).newest_whole() or 0

    def others(self) -> list[str]:
        """The settings that its config has now and its run was begun without, for a run goes on as it began."""
        if not self.run.config_file.is_file():
            return []
        now = configs.load(self.config, self.overrides).config
        return [str(one) for one in changed_settings(saved_config(self.run), now) if one.path[:2] not in SETTLED]

    def words(self, turn: int) -> list[str]:
        """The words behind `mmrl train` that take it to the end of a turn, which are counted from 1 on."""
        steps = f"steps={self.steps * turn}"
        if self.run.exists():
            return ["--resume", self.output, steps]
        return [self.config, *said_last([*self.overrides, steps]), "--output", self.output]


@dataclass(frozen=True)
class Duet:
    """Who plays, in which order, and how often."""

    turns: Count
    """Turns of each player."""
    player: tuple[DuetPlayer, ...] = ()
    """In the order in which they train."""

    def __post_init__(self) -> None:
        check_ranges(self)
        outputs = [Path(one.output).expanduser().resolve() for one in self.player]
        if len(outputs) < 2:
            raise ValueError(f"player has {len(outputs)} tables, and runs alternate where there are two or more: add [[player]]")
        if twice := [one for one in outputs if outputs.count(one) > 1]:
            raise ValueError(f"two players have the output {twice[0]}: give each a folder of its own")

    def left(self) -> Iterator[tuple[DuetPlayer, int]]:
        """Players and turns that are not done, in order."""
        for turn in range(1, self.turns + 1):
            yield from ((one, turn) for one in self.player if one.done() < one.steps * turn)


def read_duet(file: Path) -> Duet:
    """The duet that a file describes, with the configs of all players read.

    Raises FileNotFoundError without the file or a config, and ValueError for a wrong key or value, a player with stages, or one
    that uses a run which nobody makes.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: write a file with turns and two [[player]] tables")
    table = Table.read(file)
    duet = make(Duet, table.values, (), table)
    for i, one in enumerate(duet.player):
        resolved = configs.load(one.config, one.overrides)
        place = table.at(("player", str(i)))
        if resolved.config.stage:
            raise ValueError(f"{place}: {one.config} has stages, whose steps cannot grow from turn to turn: train them before")
        outputs = [player.output for player in duet.player]
        for key, run in runs_used(resolved.table.values):
            if not is_there(run, outputs):
                raise ValueError(
                    f"{place}: {one.config} has {key} = {run!r}, which is no run and no player's output "
                    f"({' and '.join(outputs)}): name one of these"
                )
        if resolved.config.output:
            raise ValueError(
                f"{place}: {one.config} has an output of its own, and the player's is used: leave it out of the config"
            )
    return duet


def runs_used(values: Values) -> Iterator[tuple[str, str]]:
    """The runs that a config's data sets, rewards and worlds use: key and folder."""
    for path, run in leaves(values):
        *above, name = path
        is_writer = name == "writer" and value_at(values, *above, "use") == "written"
        if (is_writer or (name == "run" and above[-1:] and above[-1].endswith("painter"))) and isinstance(run, str) and run:
            yield dotted_key(path), run


def is_there(run: str, outputs: Sequence[str]) -> bool:
    """Is it a run that exists, or one that a player makes?"""
    folder = Path(run).expanduser()
    return RunDir(folder).exists() or folder.resolve() in [Path(one).expanduser().resolve() for one in outputs]


def alternate(file: Path) -> int:
    """Train all turns that are left, each in a process of its own; the exit code of the last one.

    Whatever was interrupted or killed goes on when the command is given again.
    """
    duet = read_duet(file)
    for player in duet.player:
        if others := player.others():
            said = f"{player.output} goes on with the settings it began with, and {player.config} has others now:"
            remedy = f"mmrl train --resume {player.output} KEY=VALUE changes them, or begin again in another output"
            console.print("\n  ".join([said, *others]) + f"\n{remedy}")
    for player, turn in duet.left():
        words = player.words(turn)
        console.print(f"turn {turn} of {duet.turns}: mmrl train {' '.join(words)}")
        code = subprocess.run([sys.executable, "-m", "mmrl", "train", *words], check=False).returncode
        if code:
            return code
        if player.done() < player.steps * turn:
            console.print(f"{player.output} was stopped; go on with\nmmrl alternate {file}")
            return 0
    console.print(f"{duet.turns} turns are done: {', '.join(one.output for one in duet.player)}")
    return 0
