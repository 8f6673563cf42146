"""`mmrl reward train`: a reward model from pairs or ratings, and how often it agrees with people on what it never saw."""

import json
from dataclasses import dataclass, replace

from rich.table import Table as Grid

from mmrl.algorithms.planners.taught import Pairs, PicturePairs
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.config.plug_ins import read_data
from mmrl.app.config.tasks import SCORING, one_line
from mmrl.app.errors import Terminal
from mmrl.app.files import replace_text
from mmrl.app.lab.reward_model.scorer import Agreement, agreement, scorer_of
from mmrl.app.run.build import load_prompts
from mmrl.app.run.folder import RunDir
from mmrl.app.toml.did_you_mean import did_you_mean
from mmrl.core.types import Prompt

AGREEMENT = "agreement.json"
"""In the run's folder: axis -> right, count, share, low and high."""


@dataclass(frozen=True)
class HeldOut:
    """Pairs that nothing trains on, read before training so that a fault of theirs costs none."""

    prompts: list[Prompt]
    planner: Pairs | PicturePairs


def train_reward_model(given: TrainArguments) -> RunDir:
    """Train, score the held-out pairs, and print and keep the agreement; without any nothing is said about it.

    Raises:
        ValueError: another task than those of reward models, held-out rows that are no pairs, or what `train` raises.
    """
    task = str(given.task)
    if task not in SCORING:
        raise ValueError(f"--task is {task!r}: {did_you_mean(task, SCORING)}")
    pairs = pairs_to_ask(given)
    run = train(replace(given, held_out=None))
    if pairs is not None:
        found = agreement(scorer_of(run.path), pairs.prompts, pairs.planner)
        write_agreement(found, run)
        print_agreement(found)
    Terminal().print(f'in a config: [[reward]] use = "{run.path}"', markup=False, highlight=False, soft_wrap=True)
    return run


def pairs_to_ask(given: TrainArguments) -> HeldOut | None:
    """The pairs that --held-out names; None without it."""
    if given.held_out is None:
        return None
    resolved = one_line(
        str(given.task), given.model, given.held_out, (), [w for w in given.arguments if "=" in w], None, given.image_root
    )
    planner = resolved.config.algorithm.algorithm.planner
    if not isinstance(planner, Pairs | PicturePairs):
        raise ValueError("--held-out is for pairs, and --task ratings learns numbers: leave one of them out")
    source = f"--held-out {given.held_out}"
    prompts = list(load_prompts(read_data(resolved.config.data, ("data",), resolved.table), source))
    planner.check_prompts(prompts)
    return HeldOut(prompts, planner)


def write_agreement(found: dict[str, Agreement], run: RunDir) -> None:
    table = {
        axis: {"right": one.right, "count": one.count, "share": one.share, "low": one.interval[0], "high": one.interval[1]}
        for axis, one in found.items()
    }
    replace_text(run.path / AGREEMENT, json.dumps(table, indent=1) + "\n")


def print_agreement(found: dict[str, Agreement]) -> None:
    grid = Grid("held-out pairs", "agreement", "95 % interval", "pairs", box=None)
    for axis, one in found.items():
        low, high = one.interval
        grid.add_row(axis, f"{one.share:.3f}", f"{low:.3f} to {high:.3f}", str(one.count))
    Terminal().print(grid)
    if all(one.interval[0] <= 0.5 for one in found.values()):
        Terminal().print("this may be chance: more pairs, or more steps", style="yellow")
