"""`mmrl reward train`: a reward model from pairs or ratings, and how often it agrees with people on what it never saw."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from mmrl.algorithms.planners.taught import Pairs, PicturePairs
from mmrl.app.commands.options import TrainArguments
from mmrl.app.commands.train import train
from mmrl.app.config.plug_ins import read_data
from mmrl.app.config.tasks import SCORING, one_line
from mmrl.app.errors import Terminal
from mmrl.app.files import replace_text
from mmrl.app.report.figures import Estimate, estimate
from mmrl.app.report.words import table
from mmrl.app.reward_model.scorer import Scorer, load_reward_model
from mmrl.app.run.build import load_prompts
from mmrl.app.run.folder import RunDir
from mmrl.core.types import Prompt
from mmrl.runtime.near import did_you_mean

AGREEMENT = "agreement.json"
"""In the run's folder: axis -> share, count, and low and high where there are pairs enough."""

MOST_PAIRS = 2000


def train_reward_model(given: TrainArguments) -> RunDir:
    """Train, score the held-out pairs, and print and keep the agreement; without any nothing is said about it.

    Raises ValueError for another task than those of reward models, held-out rows that are no pairs, or what `train` raises.
    """
    task = str(given.task)
    if task not in SCORING:
        raise ValueError(f"--task is {task!r}: {did_you_mean(task, SCORING)}")
    pairs = pairs_to_ask(given)
    run = train(replace(given, held_out=None))
    if os.environ.get("RANK", "0") != "0":
        return run
    if pairs is not None:
        # what code of its own the model has ran while it trained
        is_trusted = True
        found = agreement(load_reward_model(run.path, trust_remote_code=is_trusted), *pairs)
        keep_agreement(found, run)
    Terminal().print(f'in a config: [[reward]] use = "{run.path}"', markup=False, highlight=False, soft_wrap=True)
    return run


def pairs_to_ask(given: TrainArguments) -> tuple[list[Prompt], Pairs | PicturePairs] | None:
    """The pairs that --held-out names, read before training so that a fault of theirs costs none; None without it."""
    if given.held_out is None:
        return None
    resolved = one_line(
        str(given.task), given.model, given.held_out, (), [w for w in given.arguments if "=" in w], None, given.image_root
    )
    planner = resolved.config.algorithm.algorithm.planner
    if not isinstance(planner, Pairs | PicturePairs):
        raise ValueError("--held-out is for pairs, and --task ratings learns numbers: leave one of them out")
    source = f"--held-out {given.held_out}"
    read = load_prompts(read_data(resolved.config.data, ("data",), resolved.table), source)
    prompts = list(islice(read, MOST_PAIRS))
    planner.check_prompts(prompts)
    return prompts, planner


def agreement(scorer: Scorer, prompts: Sequence[Prompt], planner: Pairs | PicturePairs) -> dict[str, Estimate]:
    """By axis, the share of pairs in the order that people gave them, of equal scores half; a pair is about its column `axis`."""
    requests = planner.first(prompts, 2, 0, 0)
    found = scorer.scores([(request.shown_prompt, request.text) for request in requests], batch_size=16)
    right: dict[str, list[float]] = {}
    for prompt, (best, other) in zip(prompts, zip(found[::2], found[1::2], strict=True), strict=True):
        axis = str(prompt.columns.get("axis", scorer.axes[0]))
        gap = best[axis] - other[axis]
        right.setdefault(axis, []).append(1.0 if gap > 0 else 0.5 if gap == 0 else 0.0)
    return {axis: estimate(values) for axis, values in right.items()}


def keep_agreement(found: dict[str, Estimate], run: RunDir) -> None:
    """Write the agreement into the run's folder, and print it."""
    kept = {
        axis: {"share": one.mean, "count": one.num_prompts, **({"low": one.low, "high": one.high} if one.has_interval else {})}
        for axis, one in found.items()
    }
    replace_text(run.path / AGREEMENT, json.dumps(kept, indent=1) + "\n")
    rows: list[Sequence[str]] = []
    for axis, one in found.items():
        interval = f"{one.low:.3f} to {one.high:.3f}" if one.has_interval else one.why_none
        rows.append((axis, f"{one.mean:.3f}", interval, str(one.num_prompts)))
    Terminal().print(table({"held-out pairs": None}, ("agreement", "95 % interval", "pairs"), rows))
    if not any(one.low > 0.5 for one in found.values()):
        Terminal().print("this may be chance: more pairs, or more steps", style="yellow")
