"""Numbers about a step, the same whatever the number of ranks."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from mmrl.core.ranks import Ranks
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts, Scores, Status
from mmrl.runtime.spans import span
from mmrl.training.rewards.runner import GroupScores
from mmrl.training.watch.diversity import distinct, diversity, fingerprints, first_pictures, prompt_distance, sameness
from mmrl.training.watch.drift import commonest, form, repetition, texts_of

PHASES = ("rollout", "reward", "read", "update")
"""The timed parts of a step, none inside another."""


def mean(values: list[float]) -> float:
    """Mean of the finite ones; NaN when there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def reward_metrics(scores: Scores, rollouts: Rollouts, tables: Mapping[int, GroupScores], ranks: Ranks) -> dict[str, float]:
    """reward/<name>, its spread, failures and parts, the total, and the share of groups without spread.

    rollout/unscored is the share of samples without a total (a weighted reward failed, or none applies), if there are any.
    """
    values, status = torch.cat(ranks.gather(scores.values)), torch.cat(ranks.gather(scores.status))
    metrics: dict[str, float] = {}
    for k, name in enumerate(scores.names):
        ok = values[status[:, k] == Status.OK, k]
        metrics[f"reward/{name}"] = float(ok.mean()) if len(ok) else math.nan
        metrics[f"reward/{name}/std"] = float(ok.std(correction=0)) if len(ok) else math.nan
        for label, kind in (("failed", Status.FAILED), ("na", Status.NA)):
            if bool((status[:, k] == kind).any()):
                metrics[f"reward/{name}/{label}"] = float((status[:, k] == kind).float().mean())
    total = scores.total()
    mine = [total[rollouts.group_ids == group.id] for group in rollouts.groups]
    spreads = [float(t.max() - t.min()) if len(t) > 1 and bool(t.isfinite().all()) else math.nan for t in mine]
    totals = [float(x) for part in ranks.gather(total) for x in part]
    spreads = [x for part in ranks.gather(spreads) for x in part]
    metrics["reward/total"] = mean(totals)
    if unscored := sum(not math.isfinite(x) for x in totals):
        metrics["rollout/unscored"] = unscored / len(totals)
    flat = [spread == 0 for spread in spreads if math.isfinite(spread)]
    metrics["reward/no_spread"] = sum(flat) / len(flat) if flat else math.nan
    return metrics | source_metrics(rollouts, total, ranks) | part_metrics(rollouts, tables, ranks)


def source_metrics(rollouts: Rollouts, total: Tensor, ranks: Ranks) -> dict[str, float]:
    """source/<name>/share of the step's groups, and source/<name>/total, where prompts are of several sources."""
    mine = [(group.prompt.source, total[rollouts.group_ids == group.id].tolist()) for group in rollouts.groups]
    pairs = [pair for part in ranks.gather(mine) for pair in part]
    metrics: dict[str, float] = {}
    for name in sorted({source for source, _ in pairs if source}):
        own = [totals for source, totals in pairs if source == name]
        metrics[f"source/{name}/share"] = len(own) / len(pairs)
        metrics[f"source/{name}/total"] = mean([x for totals in own for x in totals])
    return metrics


def part_metrics(rollouts: Rollouts, tables: Mapping[int, GroupScores], ranks: Ranks) -> dict[str, float]:
    """reward/<name>/<part>: mean over the samples that have the part."""
    mine = [parts for group in rollouts.groups for parts in tables[group.id].parts]
    found = [parts for part in ranks.gather(mine) for parts in part]
    names = dict.fromkeys(name for parts in found for name in parts)
    return {f"reward/{name}": mean([parts[name] for parts in found if name in parts]) for name in names}


def rollout_metrics(rollouts: Rollouts, ranks: Ranks) -> dict[str, float]:
    """Lengths are actions that may train: tokens of a completion, or denoising steps (or noised copies) of a picture.

    train/diversity is there where prompts have several pictures each, train/diversity_prompts where prompts have pictures, the
    rest of train/ where they have texts; rollout/entropy, of texts, is the mean of -log p of what was sampled.
    """
    lengths = rollouts.action_mask.sum(1).float()
    rows, actions, truncated = ranks.sum([len(rollouts), float(lengths.sum()), float(rollouts.truncated().sum())])
    longest = ranks.most(int(lengths.max()) if len(lengths) else 0)
    rows = max(1.0, rows)
    return {
        **entropy(rollouts, ranks),
        **variety(rollouts, ranks),
        "rollout/length": actions / rows,
        "rollout/length_max": float(longest),
        "rollout/truncated": truncated / rows,
        "rollout/actions": actions,
    }


def entropy(rollouts: Rollouts, ranks: Ranks) -> dict[str, float]:
    """rollout/entropy, estimated from the sampler's own log-probabilities of the tokens it drew; nothing for pictures."""
    drawn = rollouts.recorded.get(ROLLOUT_LOGPROBS)
    if drawn is None or not any(sample.token_ids is not None for group in rollouts.groups for sample in group.samples):
        surprise, count = 0.0, 0
    else:
        known = rollouts.action_mask & drawn.isfinite()
        surprise, count = -float(drawn[known].sum()), int(known.sum())
    surprise, count = ranks.sum([surprise, count])
    return {"rollout/entropy": surprise / count} if count else {}


def variety(rollouts: Rollouts, ranks: Ranks) -> dict[str, float]:
    """How different a prompt's samples are, and how different the answers to different prompts."""
    groups = rollouts.groups
    spread = [x for part in ranks.gather(diversity(groups)) for x in part]
    texts = [x for part in ranks.gather(distinct(groups)) for x in part]
    prints = [x for part in ranks.gather(fingerprints(groups)) for x in part]
    looks = [x for part in ranks.gather([(form(text), repetition(text)) for text in texts_of(groups)]) for x in part]
    pictures = [x for part in ranks.gather(first_pictures(groups)) for x in part]
    found = {
        "train/diversity": mean(spread) if spread else None,
        "train/diversity_prompts": prompt_distance(pictures),
        "train/distinct": mean(texts) if texts else None,
        "train/sameness": sameness(prints),
        "train/form": commonest([shape for shape, _ in looks]),
        "train/repetition": mean([repeated for _, repeated in looks]) if looks else None,
    }
    return {name: value for name, value in found.items() if value is not None}


@contextmanager
def stopwatch(times: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds spent inside to times["time/<name>_s"]; in a trace it is a span."""
    start = time.perf_counter()
    try:
        with span(name):
            yield
    finally:
        key = f"time/{name}_s"
        times[key] = times.get(key, 0.0) + time.perf_counter() - start


def time_shares(times: Mapping[str, float], ranks: Ranks) -> dict[str, float]:
    """time/<phase>_share = seconds of the phase / seconds of the step, mean over ranks; time/idle_share is what is left of 1.

    Ranks wait for the slowest one where they meet: between phases, which is idle time, or inside reading and update.
    """
    whole = times.get("time/step_s", 0.0)
    mine = [times.get(f"time/{phase}_s", 0.0) / whole if whole > 0 else 0.0 for phase in PHASES]
    shares = [total / ranks.world for total in ranks.sum(mine)]
    named = {f"time/{phase}_share": share for phase, share in zip(PHASES, shares, strict=True)}
    return named | {"time/idle_share": max(0.0, 1.0 - sum(shares))}


def with_shares(times: dict[str, float], ranks: Ranks) -> dict[str, float]:
    """Seconds and shares of a step's parts together."""
    return {**times, **time_shares(times, ranks)}
