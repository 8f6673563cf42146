"""`mmrl data filter`: the prompts a starting model gets right sometimes, found by letting it answer each k times."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import track

from mmrl.answers.boxes.box import Box
from mmrl.app.config.run import load
from mmrl.app.run.build import Job, build, load_data
from mmrl.app.run.context import console
from mmrl.core.types import Prompt, Request
from mmrl.data.difficulty import Kept, keep_learnable
from mmrl.data.files import relative_to, write_jsonl


def keep_by_difficulty(
    name: str, out: Path, overrides: Sequence[str], num_samples: int, shares: tuple[float, float], success_at: float
) -> Kept:
    """Write the training prompts of a config whose share of successes lies within `shares` as grounding JSONL.

    Args:
        name: a config; its policy samples, its rewards score.
        num_samples: completions per prompt (k of pass@k).
        success_at: total reward from which a completion counts as right.

    Raises:
        ValueError: prompts that are not pictures by path with boxes, or a reward that did not answer for a prompt.
    """
    resolved = load(name, overrides)
    prompts = list(load_data(resolved.config.data, ("data",), resolved.table))
    rows = {prompt.id: as_row(prompt, out.parent) for prompt in prompts}
    job = build(resolved)
    scores = {
        prompt.id: totals(job, prompt, index, num_samples)
        for index, prompt in enumerate(track(prompts, "sampling", console=console))
    }
    kept = keep_learnable(prompts, scores, *shares, success_at)
    write_jsonl({out: [rows[prompt.id] for prompt in kept.prompts]})
    return kept


def totals(job: Job, prompt: Prompt, index: int, num_samples: int) -> list[float]:
    """Total rewards of a prompt's samples under the config's own sampling."""
    rollouts = job.policy.rollout([Request(prompt, num_samples, group_id=index, seed=index)])
    rewards = job.trainer.collector.rewards
    [table] = rewards.score(rollouts.groups)
    return rewards.scores(rollouts, {index: table}).total().tolist()


def as_row(prompt: Prompt, folder: Path) -> Mapping[str, object]:
    """The prompt as a line of grounding JSONL that stands in `folder`."""
    boxes = prompt.answer if isinstance(prompt.answer, tuple) else (prompt.answer,)
    paths = [media for media in prompt.media if isinstance(media, str | Path)]
    if len(paths) != 1 or len(prompt.media) != 1 or not all(isinstance(box, Box) for box in boxes):
        raise ValueError(
            f"prompt {prompt.id!r} is not one picture by path with boxes, so it cannot be written as JSONL: "
            "filter data of grounding_jsonl or a data set like it"
        )
    extra = {key: value for key, value in prompt.columns.items() if key not in ("file_row", "size") and is_json(value)}
    picture = relative_to(str(paths[0]), Path(), folder)
    corners = [list(box.corners) for box in boxes]
    return extra | {"id": prompt.id, "image": picture, "question": prompt.text, "boxes": corners, "space": boxes[0].space}


def is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
