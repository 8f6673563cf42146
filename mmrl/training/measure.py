"""Numbers about a step, the same whatever the number of ranks: rewards, lengths, how different samples are, time."""

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS, WEIGHTS_VERSION
from mmrl.core.types import Batch, Group, Reading, Rollouts, Sample, Scores, Status
from mmrl.runtime.spans import span
from mmrl.training.rewards.runner import GroupScores

SHORTEST = 5
"""Fewest words of a text in which a run of four can repeat."""
WORDS = re.compile(r"[^\W\d_]+(?:\s+[^\W\d_]+)*")
PHASES = ("rollout", "reward", "read", "update")
"""The timed parts of a step, none inside another."""
SIDE = 32
"""Pictures are compared at this many pixels a side, so that content counts and not grain."""
TEACHERS = "teacher/"
TAUGHT_SHARE = f"{TEACHERS}taught"
"""Metrics of teachers, and the share of the tokens that they have; `teacher/taught/NAME` of one of several."""
SUMS = ("gap", "compared", "idle", "rows")


def mean(values: Iterable[float]) -> float:
    """The mean of the finite values; NaN when there are none."""
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
    if scores.names and (unscored := sum(not math.isfinite(x) for x in totals)):
        metrics["rollout/unscored"] = unscored / len(totals)
    flat = [spread == 0 for spread in spreads if math.isfinite(spread)]
    metrics["reward/no_spread"] = sum(flat) / len(flat) if flat else math.nan
    metrics |= source_metrics(rollouts, total, ranks)
    parts = [parts for group in rollouts.groups for parts in tables[group.id].parts]
    return metrics | means_of_parts("reward", [parts for part in ranks.gather(parts) for parts in part])


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


def means_of_parts(prefix: str, found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """<prefix>/<reward>/<part>: mean over the samples that have the part."""
    names = dict.fromkeys(name for parts in found for name in parts)
    return {f"{prefix}/{name}": mean([parts[name] for parts in found if name in parts]) for name in names}


def rollout_metrics(rollouts: Rollouts, ranks: Ranks) -> dict[str, float]:
    """Lengths count actions that may train: tokens of a completion, or denoising steps (or noised copies) of a picture.

    train/diversity is reported where prompts have several pictures each, train/diversity_prompts where prompts have pictures, the
    rest of train/ where they have texts; rollout/entropy, of texts, is the mean of -log p of what was sampled.
    """
    lengths = rollouts.action_mask.sum(1).float()
    rows, actions, truncated = ranks.sum([len(rollouts), float(lengths.sum()), float(rollouts.truncated().sum())])
    longest = ranks.most(int(lengths.max()) if len(lengths) else 0)
    rows = max(1.0, rows)
    return {
        **entropy(rollouts, ranks),
        **variety(rollouts, ranks),
        **turn_metrics(rollouts, ranks),
        "rollout/length": actions / rows,
        "rollout/length_max": float(longest),
        "rollout/truncated": truncated / rows,
        "rollout/actions": actions,
    }


def turn_metrics(rollouts: Rollouts, ranks: Ranks) -> dict[str, float]:
    """rollout/turns, pictures, observed_tokens and ended_<why>, and environment/<fact>; nothing where there are no episodes."""
    mine = [turn_figures(sample) for _, sample in rollouts.samples() if sample.turns]
    found = [figures for part in ranks.gather(mine) for figures in part]
    names = sorted({name for figures in found for name in figures})
    return {name: sum(figures.get(name, 0.0) for figures in found) / len(found) for name in names}


def turn_figures(sample: Sample) -> dict[str, float]:
    """The same of one episode."""
    found = {
        "rollout/turns": float(len(sample.turns)),
        "rollout/pictures": float(sum(len(turn.media_sizes) for turn in sample.turns)),
        "rollout/observed_tokens": float(sum(len(one) for one in sample.segments if one.who == "environment")),
        f"rollout/ended_{sample.ended}": 1.0,
    }
    for observation in (turn.observation for turn in sample.turns if turn.observation is not None):
        for name, value in observation.facts.items():
            found[f"environment/{name}"] = found.get(f"environment/{name}", 0.0) + float(value)
    return found


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


def form(text: str) -> str:
    """The text with words in a row as one a, and numbers as 0: `form("<answer>1.5 to 20</answer>") == "<a>0 a 0</a>"`."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(?:\.\d+)?", "0", WORDS.sub("a", text)))


def commonest(forms: Sequence[str]) -> float | None:
    """The share of the commonest form; None of no texts."""
    return Counter(forms).most_common(1)[0][1] / len(forms) if forms else None


def repetition(text: str) -> float:
    """1 - distinct / all of the text's runs of four words; 0 for fewer than five words."""
    words = text.split()
    runs = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return 1 - len(set(runs)) / len(runs) if len(words) >= SHORTEST else 0.0


def texts_of(groups: Sequence[Group]) -> list[str]:
    return [sample.text for group in groups for sample in group.samples if sample.text is not None]


def diversity(groups: Sequence[Group]) -> list[float]:
    """The mean over pairs of pictures of the root mean square difference of colours in [0, 1], of every group with two or more.

    Clips are compared by their middle frames. Other outputs without a picture's interface are not compared.
    """
    drawn = [[small for sample in group.samples if (small := look_of(sample)) is not None] for group in groups]
    return [mean_distance(torch.stack(looks)) for looks in drawn if len(looks) > 1]


def first_pictures(groups: Sequence[Group]) -> list[tuple[str, Tensor]]:
    """Prompt id and small colours of every group's first picture, for `prompt_distance`."""
    found = [(group.prompt.id, look_of(group.samples[0])) for group in groups if group.samples]
    return [(prompt, look) for prompt, look in found if look is not None]


def prompt_distance(pictures: Sequence[tuple[str, Tensor]]) -> float | None:
    """Mean distance of pictures of different prompts; None if there are fewer than two, or their sizes differ.

    It falls towards 0 when every prompt gets the same picture.
    """
    kept = dict(pictures)
    if len(kept) < 2 or len({len(picture) for picture in kept.values()}) > 1:
        return None
    return mean_distance(torch.stack(list(kept.values())))


def distinct(groups: Sequence[Group]) -> list[float]:
    """The share of distinct texts in a group (1 = all differ), for every group with two or more."""
    texts = [[sample.text for sample in group.samples if sample.text is not None] for group in groups]
    return [len(set(some)) / len(some) for some in texts if len(some) > 1]


def fingerprints(groups: Sequence[Group]) -> list[tuple[str, bytes]]:
    """Prompt id and digest of every text, for `sameness`: light enough to gather from all ranks."""
    return [
        (group.prompt.id, blake2b(sample.text.encode(), digest_size=8).digest())
        for group in groups
        for sample in group.samples
        if sample.text is not None
    ]


def sameness(texts: Sequence[tuple[str, bytes]]) -> float | None:
    """The probability that texts drawn for two different prompts are the same; None without two prompts.

    1 when every prompt gets the same answer; a half for a balanced yes or no.
    """
    pairs, alike = len(texts) ** 2, sum(count**2 for count in Counter(text for _, text in texts).values())
    pairs -= sum(count**2 for count in Counter(prompt for prompt, _ in texts).values())
    alike -= sum(count**2 for count in Counter(texts).values())
    return alike / pairs if pairs else None


def look_of(sample: Sample) -> Float[Tensor, " d"] | None:
    """The picture of a sample or the middle frame of its clip as small colours, or its sound's spectrum; None for texts."""
    if hasattr(sample.image, "convert"):
        return thumbnail(sample.image)
    video, sound = sample.video, sample.sound
    if video is None:
        return spectrum(torch.as_tensor(sound).mean(0)) if getattr(sound, "ndim", 0) == 2 and sound.size else None
    if getattr(video, "ndim", 0) != 4 or not len(video):
        return None
    frame = torch.as_tensor(video[len(video) // 2]).float().permute(2, 0, 1) / 255
    height, width = (min(SIDE, side) for side in frame.shape[1:])
    small = torch.nn.functional.adaptive_avg_pool2d(frame, (height, width))
    return small.permute(1, 2, 0).flatten()


def thumbnail(image: Any) -> Float[Tensor, " d"]:
    """A PIL image (or anything with its interface) as small colours."""
    import numpy as np

    small = image.convert("RGB").resize((min(SIDE, image.width), min(SIDE, image.height)))
    return torch.from_numpy(np.asarray(small, dtype=np.float32).reshape(-1) / 255)


def spectrum(wave: Float[Tensor, " n"]) -> Float[Tensor, " d"]:
    """The magnitudes of a sound in at most SIDE bands and SIDE spans of time, as shares of the largest; 0 for silence."""
    window = min(4 * SIDE, len(wave))
    found = torch.stft(wave, window, window=torch.hann_window(window), pad_mode="constant", return_complex=True).abs()
    bands, spans = (min(SIDE, side) for side in found.shape)
    small = torch.nn.functional.adaptive_avg_pool2d(found[None], (bands, spans)).flatten()
    return small / small.max().clamp(min=1e-6)


def mean_distance(x: Float[Tensor, "n d"]) -> float:
    """Mean over pairs of rows of sqrt(mean (a - b)^2)."""
    n = len(x)
    distances = torch.cdist(x.double(), x.double()) / x.shape[1] ** 0.5
    return float(distances.sum()) / (n * (n - 1))


@dataclass
class UpdateFigures:
    """Sums over the updates of one step: how far off the sampler was, and how many rows had nothing to train."""

    first: bool = True
    """True until the step's first update is over: the weights are still those that sampled."""
    lags: bool = False
    """Does the run sample ahead, so that the ratio is mostly that of earlier weights?"""
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMS, 0.0))

    def compare(self, micro_batch: Batch, live: Mapping[Reading, Tensor]) -> None:
        """Note |log ratio| between what the sampler noted and what the first update reads, where actions train."""
        noted = micro_batch.rollouts.recorded.get(ROLLOUT_LOGPROBS)
        if not self.first or noted is None or LOGPROBS not in live or not bool(micro_batch.share.any()):
            return
        known = micro_batch.rollouts.action_mask & noted.isfinite() & ~micro_batch.rollouts.is_replayed()[:, None]
        self.lags = WEIGHTS_VERSION in micro_batch.rollouts.recorded
        self.sums["gap"] += float((live[LOGPROBS].detach() - noted)[known].abs().sum())
        self.sums["compared"] += int(known.sum())

    def count(self, batch: Batch, idle: Bool[Tensor, " n"]) -> None:
        """Note how many rows an update has, and how many of them are idle."""
        self.sums["rows"] += int(batch.rollouts.action_mask.any(1).sum())
        self.sums["idle"] += int(idle.sum())

    def drain(self, ranks: Ranks) -> dict[str, float]:
        """rollout/log_ratio, where a sampler noted anything, and policy/idle; every process must call it. Starts again at 0."""
        found = dict(zip(SUMS, ranks.sum([self.sums[name] for name in SUMS]), strict=True))
        self.first, self.sums = True, dict.fromkeys(SUMS, 0.0)
        name = "rollout/ratio_of_lag" if self.lags else "rollout/log_ratio"
        gap = {name: found["gap"] / found["compared"]} if found["compared"] else {}
        return gap | ({"policy/idle": found["idle"] / found["rows"]} if found["idle"] else {})


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


def with_shares(times: dict[str, float], ranks: Ranks) -> dict[str, float]:
    """Seconds of a step's parts, and time/<phase>_share = seconds of the phase / seconds of the step, mean over ranks;
    time/idle_share is what is left of 1.

    Ranks wait for the slowest one where they meet: between phases, which is idle time, or inside reading and update.
    """
    whole = times.get("time/step_s", 0.0)
    mine = [times.get(f"time/{phase}_s", 0.0) / whole if whole > 0 else 0.0 for phase in PHASES]
    shares = [total / ranks.world for total in ranks.sum(mine)]
    named = {f"time/{phase}_share": share for phase, share in zip(PHASES, shares, strict=True)}
    return times | named | {"time/idle_share": max(0.0, 1.0 - sum(shares))}
