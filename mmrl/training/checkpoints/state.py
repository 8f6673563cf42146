"""Everything of a run that moves from step to step: what checkpoints hold so that a resumed run is the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from mmrl.algorithms.notes import Held
from mmrl.core.protocols import Policy, State, Stateful
from mmrl.core.ranks import OwnState, Ranks
from mmrl.runtime.process_state import random_state, set_random_state
from mmrl.training.optim import load_whole_state, whole_state
from mmrl.training.rewards.runner import RewardRunner

if TYPE_CHECKING:
    from mmrl.training.ahead.producer import Producer

PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class RunState:
    """The parts of a run that have state, apart from the step number."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    lr_schedule: torch.optim.lr_scheduler.LambdaLR
    shuffle: torch.Generator
    producer: "Producer"
    watched: RewardRunner | None
    """The evaluation's rewards, if it has separate ones."""
    health: Stateful
    ranks: Ranks

    def state_dict(self) -> State:
        """Every process must call it, and the main one alone gets weights and moments.

        Tensors may be the live ones: `copy_state` takes a state away from them.
        """
        return {
            "policy": self.policy.state_dict(),
            "optimizer": whole_state(self.optimizer, self.ranks.engine, keep=self.ranks.is_main),
            "num_updates": self.lr_schedule.last_epoch,
            "shuffle": self.shuffle.get_state(),
            "health": self.health.state_dict(),
            **self.draws(),
            **self.producer.versions(),
        }

    def draws(self) -> State:
        """The state that collecting and evaluating move on: prompts to come, random generators, rewards' memories."""
        return self.producer.draws(self)

    def now(self) -> State:
        """The same as it is, with steps that are collected and do not train yet."""
        collector = self.producer.collector
        rewards = [rewards_state(collector.rewards), *self.of_evaluation()]
        return {**collector.state_dict(), "rewards": rewards, "random": collector.ranks.gather(random_state())}

    def of_evaluation(self) -> list[State]:
        """The memories of the evaluation's own rewards, if it has any."""
        return [] if self.watched in (None, self.producer.collector.rewards) else [rewards_state(self.watched)]

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when a part is missing, or belongs to another run."""
        missing = {"policy", "optimizer", "num_updates", "shuffle", "health", *self.now()} - set(state)
        if missing:
            raise ValueError(
                f"the checkpoint lacks {', '.join(sorted(missing))}: another version of mmrl wrote it, so the run cannot go on "
                "exactly; start a new one"
            )
        self.policy.load_state_dict(state["policy"])
        load_whole_state(self.optimizer, state["optimizer"], self.ranks.engine)
        rates, self.lr_schedule.last_epoch = self.lr_schedule, state["num_updates"]
        for group, lr, factor in zip(self.optimizer.param_groups, rates.base_lrs, rates.lr_lambdas, strict=True):
            group["lr"] = lr * factor(rates.last_epoch)
        self.producer.load_state_dict(state)
        self.health.load_state_dict(state["health"])
        for runner, known in zip((self.producer.collector.rewards, self.watched), state["rewards"], strict=False):
            if runner is not None:
                load_rewards(runner, known)
        self.shuffle.set_state(state["shuffle"])
        by_rank = state["random"]
        set_random_state(by_rank[self.ranks.rank if len(by_rank) == self.ranks.world else 0])


def load_parts(parts: Mapping[str, Stateful], state: Mapping[str, State]) -> None:
    """Put back what parts of the algorithm remembered; ValueError where the state lacks one of them."""
    missing = sorted(set(parts) - set(state))
    if missing:
        raise ValueError(
            f"the checkpoint lacks what algorithm.{missing[0]} ({type(parts[missing[0]]).__name__}) remembered: another "
            "algorithm wrote it, so the run cannot go on exactly; start a new one"
        )
    for name, part in parts.items():
        part.load_state_dict(state[name])


def remembers(function: object) -> bool:
    """True if a reward keeps state that checkpoints should hold. A network's weights are not such state: they do not move."""
    return isinstance(function, Stateful) and not isinstance(function, nn.Module | type)


def rewards_state(runner: RewardRunner) -> State:
    """By reward, what it remembers (running statistics), and its cache of answers.

    Raises ValueError where a reward that remembers runs in processes of its own, which cannot be asked.
    """
    found: State = {}
    for lane in runner.callers:
        if remembers(lane.function):
            if lane.where == "process":
                raise ValueError(
                    f"reward {lane.name!r} has a state_dict, and in processes of its own there are several states that no "
                    'checkpoint can hold: leave where = "process" out'
                )
            found.setdefault(lane.name, {})["function"] = cast(Stateful, lane.function).state_dict()
        if lane.cache is not None:
            found.setdefault(lane.name, {})["cache"] = lane.cache.held()
    return found


def load_rewards(runner: RewardRunner, state: State) -> None:
    """Put back what rewards remembered, apart from what the run has no use for (a cache that is now off)."""
    for lane in runner.callers:
        known = state.get(lane.name, {})
        if remembers(lane.function) and "function" in known:
            cast(Stateful, lane.function).load_state_dict(known["function"])
        if lane.cache is not None and "cache" in known:
            lane.cache.load_state_dict(known["cache"])


def copy_state(value: Any, where: str = "the state", own: bool = False, hold: bool = False) -> Any:
    """Copy a state to memory of its own on the CPU, so that training can go on while it is written.

    Args:
        own: its tensors are already exclusive copies, as in an OwnState, and are not copied again.
        hold: the copy will hardly ever be looked at, so what is `Held` stays so.

    Raises:
        TypeError: something that a checkpoint cannot hold; names where it is.
    """
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=not own)
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        if hold and isinstance(value, Held):
            return value
        own, table = own or isinstance(value, OwnState), cast(Mapping[object, object], value)
        return {key: copy_state(item, f"{where} {key!r}", own, hold) for key, item in table.items()}
    if isinstance(value, list | tuple):
        items = [copy_state(item, where, own, hold) for item in cast(list[object], value)]
        return items if isinstance(value, list) else tuple(items)
    raise TypeError(
        f"{where} holds {type(value).__name__}, which no checkpoint can keep: state_dict gives tensors, numbers, texts, "
        "lists and dicts of these"
    )
