"""`mmrl data filter`: the prompts a starting model gets right sometimes, found by letting it answer each k times."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import track

from mmrl.answers.boxes.box import Box
from mmrl.app.config.run import load
from mmrl.app.run.build import Job, build, load_data
from mmrl.app.run.context import console
from mmrl.core.samples import kind_of
from mmrl.core.types import Prompt, Request
from mmrl.data.difficulty import Kept, keep_learnable
from mmrl.data.files.paths import relative_to, write_jsonl
from mmrl.data.layouts.write import LineWriter
from mmrl.data.validate import FILE_ROW


def keep_by_difficulty(
    name: str, out: Path, overrides: Sequence[str], num_samples: int, shares: tuple[float, float], success_at: float
) -> Kept:
    """Write the training prompts of a config whose share of successes lies within `shares` as JSONL in our words.

    Args:
        num_samples: completions per prompt (k of pass@k).
        success_at: total reward from which a completion counts as right.

    Raises ValueError for prompts that are neither pictures with boxes nor questions with answers, or that a reward did not score.
    """
    resolved = load(name, overrides)
    prompts = list(load_data(resolved.config.data, ("data",), resolved.table))
    for prompt in prompts:
        check_writable(prompt)
    job = build(resolved)
    scores = {
        prompt.id: totals(job, prompt, index, num_samples)
        for index, prompt in enumerate(track(prompts, "sampling", console=console))
    }
    kept = keep_learnable(prompts, scores, *shares, success_at)
    write_jsonl({out: [as_row(prompt, out) for prompt in kept.prompts]})
    return kept


def totals(job: Job, prompt: Prompt, index: int, num_samples: int) -> list[float]:
    """Total rewards of a prompt's samples under the config's own sampling."""
    rollouts = job.policy.rollout([Request(prompt, num_samples, group_id=index, seed=index)])
    rewards = job.trainer.collector.rewards
    [table] = rewards.score(rollouts.groups)
    return rewards.scores(rollouts, {index: table}).total().tolist()


def check_writable(prompt: Prompt) -> None:
    """Raise ValueError for a prompt that a line of JSONL cannot say: one without boxes and question, or a part of a clip."""
    if not has_boxes(prompt) and "question" not in prompt.columns:
        raise ValueError(
            f"prompt {prompt.id!r} is neither a picture with boxes nor a question with its answer, so it cannot be written as "
            "JSONL: filter data of grounding_jsonl, qa_jsonl or a data set like them"
        )
    for media in prompt.media:
        kind = kind_of(media)
        if kind.source is not None and kind.file_of(media) is None:
            raise ValueError(
                f"prompt {prompt.id!r} shows {media}, which is not a whole file: cut {kind.nouns} into files before filtering"
            )


def has_boxes(prompt: Prompt) -> bool:
    boxes = prompt.answer if isinstance(prompt.answer, tuple) else (prompt.answer,)
    return all(isinstance(box, Box) for box in boxes)


def as_row(prompt: Prompt, out: Path) -> Mapping[str, object]:
    """The prompt as a line of `out`: of grounding_jsonl where its answer is boxes, else of qa_jsonl.

    Pictures that no file holds are written beside `out`.
    """
    line = {key: value for key, value in prompt.columns.items() if key != FILE_ROW and is_json(value)}
    line |= {"id": prompt.id, **media_of(prompt, out.parent)}
    kind = line.pop("problem_type", None)
    if has_boxes(prompt):
        boxes = prompt.answer if isinstance(prompt.answer, tuple) else (prompt.answer,)
        line |= {"question": prompt.text, "boxes": list(map(corners_of, boxes)), "space": boxes[0].space if boxes else "pixel"}
        line.pop("size", None)
    else:
        line |= {"answer": prompt.answer, "kind": kind}
    return LineWriter(out, out.parent).line(line)


def corners_of(box: Box) -> object:
    return list(box.corners) if box.label is None else {"bbox": list(box.corners), "label": box.label}


def media_of(prompt: Prompt, folder: Path) -> Mapping[str, object]:
    """The column of its media, with paths as seen from a folder; a row holds media of one kind."""
    files = [kind_of(media).file_of(media) or media for media in prompt.media]
    shown = [relative_to(str(one), Path(), folder) if isinstance(one, str | Path) else one for one in files]
    return {kind_of(prompt.media[0]).name: shown[0] if len(shown) == 1 else shown} if shown else {}


def is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
