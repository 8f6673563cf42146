"""Held-out prompts, scored with the weights as they are, and a few training prompts, answered to be looked at."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from mmrl.core.protocols import Policy
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group, Prompt, Request, Rollouts, Scores
from mmrl.runtime.process_state import keep_random_state
from mmrl.runtime.ranges import Count, CountOrNone, LargeOrNone, Seed, check_ranges
from mmrl.runtime.spans import in_span
from mmrl.training.callbacks import Examples
from mmrl.training.measure import diversity, mean, means_of_parts
from mmrl.training.rewards.runner import GroupScores, RewardRunner

Weights = Literal["live", "ema"]
MODELS: dict[Weights, str] = {"live": "policy", "ema": "ema"}
"""Setting of `weights` -> the name that requests use."""
MOST_KINDS = 64
"""The most distinct values of a column that a table shows."""
SEED_STEP = 1_000_003
"""The seed of held-out prompt i is evaluation.seed * SEED_STEP + i."""


@dataclass(frozen=True)
class EvaluationSettings:
    """How held-out prompts are evaluated."""

    num_prompts: LargeOrNone = 256
    """The first n held-out prompts; the same every time, so differences are paired."""
    batch_size: Count = 32
    """Prompts sampled together on one rank."""
    num_samples: Count = 1
    """Samples per prompt, averaged."""
    seed: Seed = 1234
    """Seed of what evaluations draw, the same every time."""
    by: tuple[str, ...] = ()
    """Columns of the prompts whose every value gets figures of its own, such as split; `source` is the `[[data]]` table."""
    weights: Weights = "live"
    """ema: an average of them, which the run then keeps even if its algorithm has no use for one."""
    seen: CountOrNone = 4
    """Without held-out prompts: the first n training prompts are answered every samples_every steps, to be looked at, never
    scored; 0 = none."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class Variant:
    """One more way to answer the same prompts."""

    name: str
    """Its metrics are eval/<name>/..."""
    sampling: object = None
    weights: Weights = "live"
    turns: int | None = None
    """The most turns of an episode, as `Request.turns`."""


Answered = list[tuple[Group, GroupScores]]


@dataclass(eq=False)
class Evaluator:
    """Samples held-out prompts with `sampling` (greedy by default in configs) and scores them with the same rewards."""

    policy: Policy
    prompts: Sequence[Prompt]
    rewards: RewardRunner
    settings: EvaluationSettings
    sampling: object = None
    ranks: Ranks = field(default_factory=Ranks)
    variants: Sequence[Variant] = ()

    def __post_init__(self) -> None:
        if not len(self.prompts):
            raise ValueError("the evaluation set is empty: check [evaluation] data, or set evaluation.num_prompts = 0")
        clash = sorted({variant.name for variant in self.variants} & set(self.rewards.names))
        if clash:
            raise ValueError(f"evaluation.also and a reward are both named {clash[0]!r}, and so would their metrics: rename one")

    @in_span("evaluate")
    def run(self, step: int) -> tuple[dict[str, float], Examples]:
        """Metrics eval/<reward>[/<part>], eval/total and (text) eval/completion_length or (several pictures of a prompt)
        eval/diversity, of several sources eval/source/<source>/..., of the columns in `by` eval/by/<column>/<value>/..., the same
        of every variant as eval/<variant>/...; then groups and scores of all ranks.
        """
        metrics, examples = self.answer(Variant("", self.sampling, self.settings.weights))
        also: dict[str, Examples] = {}
        for variant in self.variants:
            found, also[variant.name] = self.answer(variant)
            metrics |= {name.replace("eval/", f"eval/{variant.name}/", 1): value for name, value in found.items()}
        return metrics, replace(examples, also=also)

    def answer(self, way: Variant) -> tuple[dict[str, float], Examples]:
        """Metrics, groups and scores of one way to answer, the same on all ranks."""
        mine = [pair for chunk in self.chunks(way) for pair in chunk]
        pairs = [pair for part in self.ranks.gather(mine) for pair in part]
        pairs.sort(key=lambda pair: pair[0].id)
        examples = self.examples(pairs)
        return self.metrics(examples.groups, [table for _, table in pairs], examples.scores), examples

    def chunks(self, way: Variant, start: int = 0) -> Iterator[Answered]:
        """This rank's answers, chunk by chunk of `batch_size` prompts on every rank, from prompt `start` on.

        A run that continues after a chunk, on the same number of ranks, samples the same prompts together.
        """
        numbered = range(start, len(self.prompts))[self.ranks.rank :: self.ranks.world]
        requests = [self.request(i, way) for i in numbered]
        for rollouts in rollouts_of(self.policy, requests, way.sampling, self.settings.batch_size, self.ranks):
            yield list(zip(rollouts.groups, self.rewards.score(rollouts.groups), strict=True))

    def examples(self, pairs: Answered) -> Examples:
        """Answers in the order given, as callbacks get them."""
        names, tables = self.rewards.names, [table for _, table in pairs]
        values, status = torch.cat([table.values for table in tables]), torch.cat([table.status for table in tables])
        parts = [parts for table in tables for parts in table.parts]
        return Examples(
            [table.dressed(group) for group, table in pairs], Scores(names, values, status, self.rewards.weights), parts
        )

    def request(self, i: int, way: Variant) -> Request:
        """For prompt i; its seed depends on no other prompt, so it can be answered again alone."""
        return replace(request_for(self.settings, self.prompts[i], i, way.weights), turns=way.turns)

    def metrics(self, groups: Sequence[Group], tables: Sequence[GroupScores], scores: Scores) -> dict[str, float]:
        samples = [sample for group in groups for sample in group.samples]
        metrics = {f"eval/{name}": mean(scores.values[:, k].tolist()) for k, name in enumerate(scores.names)}
        metrics |= means_of_parts("eval", [parts for table in tables for parts in table.parts])
        metrics["eval/total"] = mean(scores.total().tolist())
        lengths = [float(sample.num_written) for sample in samples if sample.token_ids is not None]
        spread = diversity(groups)
        metrics |= of_kinds("eval/source", [group.prompt.source for group in groups for _ in group.samples], scores)
        for column in self.settings.by:
            kinds = [kind_of(group.prompt, column) for group in groups for _ in group.samples]
            metrics |= of_kinds(f"eval/by/{column}", kinds, scores)
        metrics |= {"eval/completion_length": mean(lengths)} if lengths else {}
        return metrics | ({"eval/diversity": mean(spread)} if spread else {})


def request_for(settings: EvaluationSettings, prompt: Prompt, i: int, weights: Weights) -> Request:
    """For the prompt with number i."""
    seed = settings.seed * SEED_STEP + i
    return Request(prompt, settings.num_samples, group_id=i, model=MODELS[weights], seed=seed)


def rollouts_of(policy: Policy, requests: Sequence[Request], sampling: object, size: int, ranks: Ranks) -> Iterator[Rollouts]:
    """The answers to this rank's requests, `size` of them sampled together."""
    # As often on all ranks, though some may have nothing left: sharded weights need all of them.
    for first in range(0, ranks.most(len(requests)), size):
        yield policy.rollout(requests[first : first + size], sampling)


def kind_of(prompt: Prompt, column: str) -> str:
    """The value of a prompt's column as a word of metrics and tables; empty where it has none."""
    if column == "source" and column not in prompt.columns:
        return prompt.source
    value = prompt.columns.get(column)
    return "" if value is None else str(value).replace("/", "|").strip()


def check_columns(prompts: Sequence[Prompt], by: Sequence[str]) -> None:
    """Raise ValueError where no held-out prompt has a column that figures are grouped by, or nearly each a value of its own."""
    for column in by:
        values = [value for prompt in prompts if (value := kind_of(prompt, column))]
        if not values:
            known = sorted({name for prompt in prompts for name in prompt.columns})
            there = f"they have {', '.join(known)}" if known else "they have no columns"
            raise ValueError(f"evaluation.by names the column {column!r}, which no held-out prompt has: {there}")
        if len(set(values)) > MOST_KINDS:
            raise ValueError(
                f"evaluation.by names the column {column!r}, which has {len(set(values))} different values: tables of more than "
                f"{MOST_KINDS} kinds say nothing; take a column that sorts prompts, such as split"
            )


def of_kinds(prefix: str, kinds: Sequence[str], scores: Scores) -> dict[str, float]:
    """<prefix>/<kind>/<reward> and .../total for every kind; `kinds` has one word per row, empty for rows of none."""
    metrics: dict[str, float] = {}
    for kind in dict.fromkeys(filter(None, kinds)):
        own = scores.take(torch.tensor([i for i, one in enumerate(kinds) if one == kind]))
        answered = [k for k in range(len(own.names)) if bool(own.values[:, k].isfinite().any())]
        metrics |= {f"{prefix}/{kind}/{own.names[k]}": mean(own.values[:, k].tolist()) for k in answered}
        metrics[f"{prefix}/{kind}/total"] = mean(own.total().tolist())
    return metrics


@dataclass(frozen=True)
class SeenPrompts:
    """A few training prompts, answered every few steps as held-out ones are, so that a run without those can be looked at.

    No reward scores them: a good score on prompts that train says nothing, and rewards may remember. The run trains as if they
    had never been asked.
    """

    policy: Policy
    prompts: Sequence[Prompt]
    settings: EvaluationSettings
    sampling: object
    ranks: Ranks
    keep: Callable[[int, Examples], None]
    """Called with the step and the answers, on the main process."""

    @in_span("evaluate")
    def __call__(self, step: int) -> None:
        """Answer every prompt with the weights after this step; every process must call it."""
        mine = range(len(self.prompts))[self.ranks.rank :: self.ranks.world]
        requests = [request_for(self.settings, self.prompts[i], i, self.settings.weights) for i in mine]
        with keep_random_state():
            parts = list(rollouts_of(self.policy, requests, self.sampling, self.settings.batch_size, self.ranks))
        answers = self.ranks.gather([group for part in parts for group in part.groups])
        groups = sorted((group for own in answers for group in own), key=lambda group: group.id)
        if self.ranks.is_main:
            nothing = torch.zeros(sum(len(group.samples) for group in groups), 0)
            self.keep(step, Examples(groups, Scores((), nothing, nothing.long(), torch.zeros(0))))
