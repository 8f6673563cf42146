"""The settings of a training run that belong to no part: how long, how often, and when it warns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from mmrl.runtime.ranges import (
    Count,
    CountOrNone,
    Large,
    LargeOrNone,
    NonNegative,
    Number,
    Positive,
    Range,
    Seed,
    Share,
    check_ranges,
)
from mmrl.training.optim import OptimizerSettings

USUAL_POSITIONS = 16384
StageKind = Literal["sft", "dpo", "scores", "picture_scores", "ratings", "rl", "filter", "pairs", "loop"]
TRAINS = ("sft", "dpo", "scores", "picture_scores", "ratings", "rl")
"""Kinds of stages that take steps."""


@dataclass(frozen=True)
class Until:
    """When a stage ends before its last step: a figure of held-out prompts that score nothing else is high enough."""

    metric: str
    """total, or the name of a reward or of a part of it."""
    at_least: Number
    """The stage ends where the metric is this high."""
    most: Large
    """Steps after which the stage ends in any case, with a warning."""
    every: Large = 10
    """Steps between looks."""
    num_prompts: Count = 32
    """Prompts of [evaluation.data], behind the evaluation.num_prompts that score."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class StageSettings:
    """One stage of a chain: what it is, how long it lasts, and how it differs from the run's own tables."""

    kind: StageKind
    """sft: completions of the data (of generators: its pictures) are taught. dpo: pairs of the data, of which one is preferred.
    scores, picture_scores and ratings: a head learns to score outputs of the data. None of these asks a reward. rl: the run's own
    [algorithm]. filter: keeps the prompts that are neither too easy nor too hard. pairs: samples groups and keeps their best and
    worst. loop: repeats other stages."""
    steps: Large | None = None
    """Training steps of a stage that trains; those of a chain are numbered through."""
    name: str = ""
    """In what is printed and reported, and by which others name the stage; empty: the kind."""
    until: Until | None = None
    """Ends a stage that trains; takes the place of steps."""
    rounds: Count | None = None
    """How often a loop repeats its stages."""
    stages: tuple[str, ...] | None = None
    """The names of the stages that a loop repeats, in their order; they run there only."""
    args: Mapping[str, object] = field(default_factory=dict[str, object])
    """All other keys of the table: tables and keys of a run that are others here, and settings of the kind, such as `column`."""

    __post_init__ = check_ranges

    @property
    def label(self) -> str:
        return self.name or self.kind

    @property
    def num_steps(self) -> int:
        return self.until.most if self.until is not None else self.steps or 0


def in_turn(stages: Sequence[StageSettings]) -> list[tuple[int, int]]:
    """Which table of the chain comes when, and in which round of its loop, from 1 on; 0 outside of loops."""
    place = {one.label: i for i, one in enumerate(stages)}
    inside = {name for one in stages for name in one.stages or ()}
    found: list[tuple[int, int]] = []
    for i, one in enumerate(stages):
        if one.kind == "loop":
            rounds = range(1, (one.rounds or 0) + 1)
            found += [(place[name], k) for k in rounds for name in one.stages or () if name in place]
        elif one.label not in inside:
            found.append((i, 0))
    return found


@dataclass(frozen=True)
class AlarmSettings:
    """When a run is suspected of reward hacking, and what happens then."""

    stop: bool = False
    """End the run, with an evaluation and a checkpoint, at the first alarm."""
    ignore: tuple[str, ...] = ()
    """Watched rewards whose fall is harmless, such as one that only counts words."""
    fall_chance: Share = 5e-4
    """A watched reward counts as fallen if chance would give such a fall less often than this (paired t-test over prompts). Keep
    it small, since every evaluation tests again."""
    rise_chance: Share = 0.01
    """The same for a rise of the trained rewards."""
    least_fall: NonNegative = 0.3
    """Smaller falls give no alarm, in standard deviations of the watched reward between prompts."""
    least_prompts: Annotated[int, Range(3, 2**20)] = 8
    """With fewer held-out prompts rewards are not compared."""
    max_sameness: Share = 0.9
    """No alarm as long as texts for different prompts are the same less often than this (train/sameness)."""
    min_variety: Share = 0.2
    """Alarm if the chance that texts for different prompts differ (1 - train/sameness), or the difference of pictures
    (train/diversity, train/diversity_prompts), falls below this part of what it was."""
    min_length: Share = 0.1
    """Alarm if completions shrink below this part of their first length, unless they were cut off at the start."""
    max_drift: Annotated[float, Range(above=1)] = 1.5
    """Where no reward is watched: alarm if completions become this many times longer or shorter than in the first steps, or if
    train/form, or the share of what is not repeated (1 - train/repetition), falls to one in so many of what it was. Set it
    higher where answers are to grow."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class HealthSettings:
    """Bounds beyond which a run gets a warning. A bound that cannot be exceeded (1 for a share) switches its warning off."""

    window: Annotated[int, Range(3, 2**20)] = 10
    """Number of steps that are averaged, both for the latest steps and for the start of the run that they are compared with."""
    max_no_spread: Positive = 0.8
    """Share of the groups whose samples all got the same reward."""
    max_failed: Positive = 0.1
    """Share of the samples for which a reward failed."""
    max_unscored: Positive = 0.1
    """Share of the samples without a total reward: a weighted reward failed, or none of them applies."""
    max_truncated: Positive = 0.5
    """Share of the completions cut off before they ended."""
    length_factor: Positive = 4.0
    """Completions this many times shorter or longer than at the start."""
    min_entropy: Positive = 0.1
    """Least entropy of the next token, as a multiple of that at the start."""
    max_entropy: Positive = 2.5
    """Largest entropy of the next token, as a multiple of that at the start."""
    max_clip_frac: Positive = 0.5
    """Share of the actions whose ratio was clipped, so that they did not train."""
    grad_factor: Positive = 10.0
    """Norm of the gradient, as a multiple of the median over the window before."""
    max_kl: Positive = 1.0
    """KL divergence from the reference, per action."""
    max_kl_old: Positive = 0.1
    """KL divergence from the weights that sampled, within a step."""
    max_log_ratio: Positive = 0.1
    """Mean |log ratio| between the sampler and the weights that train, before an update, in nats per action."""
    log_ratio_factor: Annotated[float, Range(above=1)] = 5.0
    """The same as a multiple of its value at the start, if it is more than a tenth of max_log_ratio."""
    max_trainer_idle: Positive = 0.5
    """Share of the time that training waits for samples, in a run that samples ahead of it."""
    alarm: AlarmSettings = field(default_factory=AlarmSettings)
    """When a run is suspected of reward hacking."""

    __post_init__ = check_ranges


@dataclass(frozen=True)
class TrainSettings:
    """Counts are over all ranks; a step is one draw of prompts, their rollouts and all updates on them."""

    steps: LargeOrNone = 100
    """Training steps of the whole run, including those before it was resumed."""
    prompts_per_step: Annotated[int, Range(1, 2**16, why="all prompts of a step are in memory")] = 8
    """Prompts drawn at every step; each is sampled algorithm.group_size times."""
    micro_batch: Count | Literal["auto"] = USUAL_POSITIONS
    """Positions (tokens of prompts and completions, padding included) in one forward and backward pass of one rank. auto: starts
    small, grows while the device has room, halves when memory runs out, and remembers in mmrl's cache what fits."""
    max_skipped: CountOrNone = 0
    """Number of prompts with unreadable pictures or clips that the whole run may skip, each with a warning; others are drawn
    instead. 0 = the first one stops the run."""
    rollout_parts: Count = 1
    """Number of parts, of whole groups, in which a step's prompts are sampled. With several, slow rewards (judges, servers,
    `async def`) score one part while the next is sampled: only the last part's time is not hidden, but batches are smaller."""
    ahead: Annotated[int, Range(0, 2)] = 0
    """How many steps sampling may be ahead of training, with [policy.engine] or cluster.samplers: step j is sampled by the
    weights that had j - ahead steps, beside the updates before it. The same config still gives the same run. 0 = one after
    the other."""
    ahead_drain: bool = False
    """Checkpoints of save_every are written with no step in flight, so that they hold no weights but the live ones: the step
    behind each is sampled by those, and training waits for it."""
    seed: Seed = 0
    """Seed of everything random in a run: prompts, samples, order of minibatches."""
    deterministic: bool = False
    """The same config gives the same run bit for bit on the same machine; slower. See mmrl.runtime.repeating for the
    limits."""
    evaluate_every: LargeOrNone = 0
    """Steps between evaluations; 0 = before and after training only."""
    save_every: LargeOrNone = 0
    """Steps between checkpoints; 0 = by time, see save_minutes."""
    save_minutes: NonNegative = 10.0
    """With save_every = 0: a checkpoint is written early enough that a killed run loses no more minutes than this, or one step;
    0 = at the end only."""
    samples_every: LargeOrNone = 10
    """Steps between rollouts written to the run's samples; 0 = none."""
    ratio_bound: NonNegative | Literal["auto"] = "auto"
    """Largest |log ratio| of any action before the first update, where sampled and re-evaluated log-probs must agree.

    auto: 2e-5 for text in float32; in bfloat16 twenty times the mean's bound, at most 1; 1e-4 in float32 where an engine samples;
    1e-6 for flow policies, where clip ranges are 1e-4 and less: keep it below a tenth. A number always wins.
    """
    mean_ratio_bound: NonNegative | Literal["auto"] = "auto"
    """Largest mean |log ratio| there. auto: 0.02; in bfloat16 three times what equal readings of the run's own rows differ by, at
    most 2^-7 sqrt(layers); at the first update at most a tenth (bfloat16: a fifth) of the objective's own clip range, besides. A
    number always wins."""
    audit_steps: Large = 3
    """Number of steps, from the start or resumption, in which every row is checked: do media, positions and tokens match?"""
    audit_every: LargeOrNone = 1
    """Steps between later checks of one group; 0 = none."""
    max_unparsed: Share = 0.2
    """Warn when more than this share of a step's completions could not be parsed by a reward."""

    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """How weights follow gradients."""
    health: HealthSettings = field(default_factory=HealthSettings)
    """Bounds beyond which a run gets a warning."""

    @property
    def saves_by_time(self) -> bool:
        """Is it the clock that asks for checkpoints?"""
        return self.save_every == 0 and self.save_minutes > 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.deterministic and self.micro_batch == "auto":
            raise ValueError(
                'deterministic is true and micro_batch is "auto", whose size differs from run to run and rounds otherwise: set '
                "micro_batch to a number of positions"
            )
