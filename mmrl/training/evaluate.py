"""Held-out prompts, scored with the weights as they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from mmrl.core.protocols import Policy
from mmrl.core.ranges import Count, CountOrNone, Seed, check_ranges
from mmrl.core.ranks import Ranks
from mmrl.core.sources import first_of_each
from mmrl.core.spans import in_span
from mmrl.core.types import Group, Prompt, Request, Scores
from mmrl.training.diversity import diversity
from mmrl.training.measure import mean
from mmrl.training.rewards import GroupScores, RewardRunner

Weights = Literal["live", "ema"]
MODELS: dict[Weights, str] = {"live": "policy", "ema": "ema"}
"""How requests call these weights."""
SEED_STEP = 1_000_003
"""The seed of held-out prompt i is evaluation.seed * SEED_STEP + i."""


@dataclass(frozen=True)
class EvaluationSettings:
    """How held-out prompts are evaluated."""

    num_prompts: CountOrNone = 256
    """The first so many held-out prompts; the same every time, so differences are paired."""
    batch_size: Count = 32
    """Prompts sampled together on one rank."""
    num_samples: Count = 1
    """Samples per prompt, averaged."""
    seed: Seed = 1234
    """Seed of what evaluations draw, the same every time."""
    weights: Weights = "live"
    """ema: an average of them, which the run then keeps even if its algorithm has no use for one."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class Variant:
    """One more way to answer the same prompts."""

    name: str
    """Its metrics are eval/<name>/..."""
    sampling: object = None
    weights: Weights = "live"


class Evaluator:
    """Samples held-out prompts with `sampling` (greedy by default in configs) and scores them with the same rewards."""

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        rewards: RewardRunner,
        settings: EvaluationSettings,
        sampling: object = None,
        ranks: Ranks | None = None,
        variants: Sequence[Variant] = (),
    ) -> None:
        if not len(prompts):
            raise ValueError("the evaluation set is empty: check [evaluation] data, or set evaluation.num_prompts = 0")
        clash = sorted({variant.name for variant in variants} & set(rewards.names))
        if clash:
            raise ValueError(f"evaluation.also and a reward are both named {clash[0]!r}, and so would their metrics: rename one")
        self.policy, self.rewards, self.settings, self.sampling = policy, rewards, settings, sampling
        self.ranks, self.variants = ranks or Ranks(), tuple(variants)
        self.prompts = first_of_each(prompts, settings.num_prompts)

    @in_span("evaluate")
    def run(self, step: int) -> tuple[dict[str, float], list[Group], Scores]:
        """Metrics eval/<reward>[/<part>], eval/total and (text) eval/completion_length or (several pictures of a prompt)
        eval/diversity, of several sources eval/source/<source>/..., the same of every variant as eval/<variant>/...; then groups
        and scores of all ranks.
        """
        metrics, groups, scores = self.answer(self.sampling, self.settings.weights)
        for variant in self.variants:
            found = self.answer(variant.sampling, variant.weights)[0]
            metrics |= {name.replace("eval/", f"eval/{variant.name}/", 1): value for name, value in found.items()}
        return metrics, groups, scores

    def answer(self, sampling: object, weights: Weights) -> tuple[dict[str, float], list[Group], Scores]:
        """Metrics, groups and scores of one way to answer, the same on all ranks."""
        numbered = list(enumerate(self.prompts))[self.ranks.rank :: self.ranks.world]
        groups: list[Group] = []
        tables: list[GroupScores] = []
        # As often on all ranks, though some may have nothing left: sharded weights need all of them.
        for start in range(0, self.ranks.most(len(numbered)), self.settings.batch_size):
            chunk = numbered[start : start + self.settings.batch_size]
            requests = [self.request(i, weights) for i, _ in chunk]
            rollouts = self.policy.rollout(requests, sampling)
            groups += rollouts.groups
            tables += self.rewards.score(rollouts.groups)
        pairs = [pair for part in self.ranks.gather(list(zip(groups, tables, strict=True))) for pair in part]
        pairs.sort(key=lambda pair: pair[0].id)
        groups, tables = [group for group, _ in pairs], [table for _, table in pairs]
        scores = Scores(
            self.rewards.names, torch.cat([t.values for t in tables]), torch.cat([t.status for t in tables]), self.rewards.weights
        )
        return self.metrics(groups, tables, scores), groups, scores

    def request(self, i: int, weights: Weights) -> Request:
        """For prompt i; its seed depends on no other prompt, so it can be answered again alone."""
        seed = self.settings.seed * SEED_STEP + i
        return Request(self.prompts[i], self.settings.num_samples, group_id=i, model=MODELS[weights], seed=seed)

    def metrics(self, groups: Sequence[Group], tables: Sequence[GroupScores], scores: Scores) -> dict[str, float]:
        found = [parts for table in tables for parts in table.parts]
        names = dict.fromkeys(name for parts in found for name in parts)
        samples = [sample for group in groups for sample in group.samples]
        metrics = {f"eval/{name}": mean(scores.values[:, k].tolist()) for k, name in enumerate(scores.names)}
        metrics |= {f"eval/{name}": mean([parts[name] for parts in found if name in parts]) for name in names}
        metrics["eval/total"] = mean(scores.total().tolist())
        lengths = [float(len(sample.token_ids)) for sample in samples if sample.token_ids is not None]
        spread = diversity(groups)
        return (
            metrics
            | of_sources(groups, scores)
            | ({"eval/completion_length": mean(lengths)} if lengths else {})
            | ({"eval/diversity": mean(spread)} if spread else {})
        )


def of_sources(groups: Sequence[Group], scores: Scores) -> dict[str, float]:
    """eval/source/<source>/<reward> and .../total where the prompts are of several sources."""
    sources = [group.prompt.source for group in groups for _ in group.samples]
    metrics: dict[str, float] = {}
    for source in dict.fromkeys(filter(None, sources)):
        own = scores.take(torch.tensor([i for i, one in enumerate(sources) if one == source]))
        answered = [k for k in range(len(own.names)) if bool(own.values[:, k].isfinite().any())]
        metrics |= {f"eval/source/{source}/{own.names[k]}": mean(own.values[:, k].tolist()) for k in answered}
        metrics[f"eval/source/{source}/total"] = mean(own.total().tolist())
    return metrics
