"""The plan of a run: one step counted and its memory estimated, with a network that has no weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from mmrl.app.config.plug_ins import read_plug_ins
from mmrl.app.config.run import Resolved, RunConfig
from mmrl.app.modality.registry import modality_of
from mmrl.app.modality.taught import bind_taught
from mmrl.app.planning.count_calls import FEWEST, Calls, CountedRun
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
from mmrl.app.run.build import check_ranks, first_prompts, load_prompts
from mmrl.app.run.context import refuse_idle_methods
from mmrl.core.types import Prompt
from mmrl.policies.text.settings import TextPolicyConfig


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
        return modality_of(self.config.policy).name != "flow"


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
        kind = modality_of(config.policy)
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
