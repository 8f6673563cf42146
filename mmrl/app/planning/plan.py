"""The plan of a run: one step counted and its memory estimated, with a network that has no weights."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.pixels import with_rewards
from mmrl.algorithms.planners.video import DifficultyAware
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.app.config.plug_ins import read_plug_ins
from mmrl.app.config.run import Resolved, RunConfig
from mmrl.app.modality.base import PolicyNeeds
from mmrl.app.modality.taught import bind_taught
from mmrl.app.planning.known import note_of, with_settings
from mmrl.app.planning.memory import (
    CONTEXT,
    Memory,
    RewardMemory,
    add_server,
    estimate,
    of_sampler,
    reward_memory,
    sandbox_memory,
)
from mmrl.app.run.beforehand import refuse_unknown_space
from mmrl.app.run.build import check_ranks, first_prompts, load_prompts, shadows_of
from mmrl.app.run.context import refuse_idle_methods
from mmrl.core.protocols import Planner, Policy
from mmrl.core.types import Group, Prompt, Revision, Scores
from mmrl.policies.shared.dry_run import CallCount, DryRun
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import USUAL_POSITIONS
from mmrl.training.trainer import Trainer

FEWEST = 32
"""Prompts that are looked at, where a step needs fewer."""


@dataclass
class Calls:
    """The calls that a step makes to the policy of one process."""

    counts: dict[str, CallCount]
    """By phase: rollout, read (no gradient) and update (gradient)."""
    rounds: int
    scored: int
    """Samples that rewards see, probes included."""
    trained: int
    """Rows that a pass over the step's rollouts trains on."""
    updates: int
    """Optimizer steps."""
    drawn: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Width and height of pictures -> samples."""


@dataclass
class Stubborn:
    """A planner whose groups show no difference before its last round: the most it can ask for."""

    planner: Planner
    looked: int = 0
    """Rounds of this step that are over."""

    def __getattr__(self, name: str) -> Any:
        """Everything else is the planner's; a copy that is being made has none yet."""
        if name == "planner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.planner, name)

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        self.looked = round_index + 1
        return self.planner.revise(groups, scores, group_ids, wanted, round_index)


@dataclass
class StandInReward:
    """A reward that tells the samples of a group apart, once `planner` has come to its last round."""

    planner: Stubborn | None = None
    scored: int = 0

    def __call__(self, group: Group) -> list[float]:
        count = len(group.samples)
        self.scored += count
        if self.planner is not None and self.planner.looked + 1 < self.planner.max_rounds:
            return [0.0] * count
        return [(i + 1) / count for i in range(count)]

    def of_pixels(self, pixels: Float[Tensor, "n 3 y x"], prompts: Sequence[Prompt]) -> Float[Tensor, " n"]:
        """Scores with a gradient, for methods that take one."""
        return pixels.flatten(1).mean(1)


@dataclass
class CountedRun:
    """A run without weights: the policy that counts, and the trainer that asks it."""

    config: RunConfig
    """With the folder of the model in place of a name such as tiny:qwen3_vl."""
    algorithm: Algorithm
    prompts: Sequence[Prompt]
    processes: int = 1
    dry_run: DryRun = field(init=False)
    policy: Policy[Any] = field(init=False)

    def __post_init__(self) -> None:
        policy, environment = self.config.policy, self.config.environment
        limits = None if environment is None else environment.limits
        if isinstance(policy, TextPolicyConfig) and (self.config.cluster.samplers or policy.engine is not None):
            # others write, and keep nothing here
            policy = replace(policy, episode_cache_mib=0)
        needs = PolicyNeeds(shadows_of(self.config, self.algorithm), views=self.algorithm.views, limits=limits)
        self.dry_run = self.config.modality.build_dry_run(policy, needs)
        self.policy = self.dry_run.policy

    def calls(self, worst: bool = False, prompts: Sequence[Prompt] | None = None) -> Calls:
        """The calls of the second step, for the first checks ratios, too; in the `worst` case the planner samples all it can."""
        trainer, rewards = self.trainer(worst, prompts)
        self.dry_run.log.clear()
        with silence():
            trainer.step()
            self.dry_run.log.clear()
            for reward in rewards:
                reward.scored = 0
                if reward.planner is not None:
                    reward.planner.looked = 0
            metrics = trainer.step()
        trained = round(metrics["rollout/actions"] / metrics["rollout/length"])
        log, rounds = self.dry_run.log, int(metrics["rollout/rounds"])
        return Calls(log.counts, rounds, rewards[0].scored if rewards else 0, trained, self.algorithm.updates, log.drawn)

    def trainer(self, worst: bool, prompts: Sequence[Prompt] | None = None) -> tuple[Trainer, list[StandInReward]]:
        """A trainer of one process's share of the prompts, and what stands for its rewards."""
        asked = () if self.algorithm.unscored else self.config.reward
        stand_ins = [StandInReward() for _ in asked]
        rewards = [NamedReward(one.label, stand_in, one.weight) for one, stand_in in zip(asked, stand_ins, strict=True)]
        size = counted_size(self.config)
        settings = replace(
            self.config, ahead=0, micro_batch=size, prompts_per_step=self.config.prompts_per_step // self.processes
        )
        sampler = Shuffled(self.prompts if prompts is None else prompts, self.config.seed)
        # with one process's share of the prompts there may be fewer units than minibatches, of which all have at least one here
        minibatches = min(self.algorithm.minibatches, self.algorithm.units(settings.prompts_per_step))
        planner = deepcopy(self.algorithm.planner)
        if worst and isinstance(planner, DifficultyAware):
            planner.memory.rewards.extend([1.0] * planner.window)
        algorithm = replace(
            self.algorithm,
            objective=with_rewards(self.algorithm.objective, [(one.name, one.weight, one.function) for one in rewards]),
            minibatches=minibatches,
            planner=cast(Planner, Stubborn(planner)) if worst else planner,
        )
        trainer = Trainer(self.policy, algorithm, sampler, RewardRunner(rewards, algorithm.unscored), settings)
        for stand_in in stand_ins:
            # the trainer's own copy
            stand_in.planner = trainer.collector.planner if isinstance(trainer.collector.planner, Stubborn) else None
        return trainer, stand_ins


def counted_size(config: RunConfig) -> int:
    """The micro-batches that are counted; of "auto", which grows with the device, the usual ones."""
    return USUAL_POSITIONS if config.micro_batch == "auto" else config.micro_batch


@contextmanager
def silence() -> Iterator[None]:
    """Hide the warnings of training, and leave the random state outside alone."""
    log = logging.getLogger("mmrl")
    before, state = log.level, torch.get_rng_state()
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
        torch.set_rng_state(state)


@dataclass(frozen=True)
class Plan:
    """The parts of a run, counted and estimated for one of its processes."""

    config: RunConfig
    processes: int
    prompts: int
    """Looked at to learn how long prompts are."""
    usual: Calls
    most: Calls | None
    """Where the planner may sample again."""
    memory: Memory
    readings: Sequence[str]
    """The readings before the first update."""
    rewards: RewardMemory = field(default_factory=RewardMemory)
    sampler: Memory | None = None
    """Of each process of `cluster.samplers`; None: there are none."""
    note: str = ""
    """A sentence about a model that is not on this machine; empty for one that is."""
    episode: str = ""
    """The longest sample of several turns, in words; empty where samples have one."""
    heaviest: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Width and height of pictures -> samples, in a step of the largest prompts, which the memory is for; empty where prompts
    are alike."""

    @property
    def is_text(self) -> bool:
        """Are actions tokens, and micro-batches positions?"""
        return self.config.modality.name != "flow"


def draw_up(resolved: Resolved, processes: int | None = None, on_card: bool | None = None, card: int | None = None) -> Plan:
    """Count one step and estimate memory, without weights.

    `processes`: of the run; None: the trainers of `mmrl launch`, and at least as many as read a row together. `on_card`: does
    the run have a card, where rewards hold their models too (None: as this machine)? `card`: its bytes, of which an engine's
    server may take a part. Raises FileNotFoundError without a plug-in, data file or the model's config, and ValueError for what
    `mmrl train` would refuse.
    """
    if processes is None:
        together = resolved.config.policy.context if isinstance(resolved.config.policy, TextPolicyConfig) else 1
        processes = max(resolved.config.cluster.trainers, together)
    check_geometry(resolved, processes)
    refuse_unknown_space(with_settings(resolved.config))
    on_card = torch.cuda.is_available() if on_card is None else on_card
    rewards = reward_memory(resolved, on_card)
    beside = replace(rewards, host={**rewards.host, **sandbox_memory(resolved, processes)})
    return Estimates(processes, prompts_of(resolved), beside, card).of(resolved)


def check_geometry(resolved: Resolved, processes: int) -> None:
    """Raise ValueError for steps that cannot be shared out, and for a method that one update per step leaves idle."""
    check_ranks(resolved.config, processes)
    refuse_idle_methods(resolved.config.algorithm)
    resolved.config.algorithm.algorithm.check_step(resolved.config.prompts_per_step)


def prompts_of(resolved: Resolved) -> Sequence[Prompt]:
    """The prompts of a run that are looked at."""
    return first_prompts(load_prompts(read_plug_ins(resolved).data, f"[data] {resolved.config.data.use}"))


@dataclass(frozen=True)
class Estimates:
    """Plans of one run with other settings: its data is loaded once, and so are the configs of its rewards' models."""

    processes: int
    prompts: Sequence[Prompt]
    rewards: RewardMemory = field(default_factory=RewardMemory)
    card: int | None = None
    """Bytes of the card, of which an engine's server may take a part; None: there is none, or it does not matter."""

    def of(self, resolved: Resolved) -> Plan:
        """The plan of these settings; errors as in `draw_up`."""
        config = with_settings(resolved.config)
        kind = config.modality
        kind.check_prompts(config.policy, self.prompts)
        algorithm = kind.adapt_algorithm(config.algorithm.algorithm, config.policy, config.algorithm.label, self.prompts)
        algorithm = bind_taught(algorithm, config.policy, kind.box_space(config.policy), self.prompts)
        share = config.prompts_per_step // self.processes
        few = self.prompts[: max(FEWEST, 2 * share)]
        counted = CountedRun(config, algorithm, few, self.processes)
        usual = counted.calls()
        largest = counted.dry_run.largest_of(self.prompts, share)
        heaviest = counted.calls(prompts=largest).drawn if largest else {}
        alone, sampler = estimate(counted.dry_run, config, self.processes), None
        if config.cluster.samplers:
            sampler = of_sampler(counted.dry_run, alone)
        if sampler is not None and config.cluster.samplers_share:
            name = f"{config.cluster.samplers} sampler(s) that share it"
            alone = replace(alone, stays={**alone.stays, name: config.cluster.samplers * (sampler.peak + CONTEXT)})
        held = self.rewards
        alone = replace(alone, stays={**alone.stays, **held.stays}, host={**alone.host, **held.host})
        memory = add_server(alone, config, self.card)
        most = counted.calls(worst=True) if algorithm.planner.max_rounds > 1 else None
        readings = [f"{reading.quantity} of {reading.model}" for reading in algorithm.frozen_reads if reading.model != "rollout"]
        targets = {reading.target.model for reading in algorithm.all_reads if reading.target is not None}
        readings += [f"states of {model}, at every update" for model in sorted(targets)]
        shown = replace(config, policy=replace(config.policy, model=resolved.config.policy.model))
        note, episode = note_of(resolved.config), counted.dry_run.log.episode
        return Plan(
            shown, self.processes, len(few), usual, most, memory, readings, self.rewards, sampler, note, episode, heaviest
        )
