"""Stopping a run: before it trains on nonsense, on request, at a moment from which it can go on exactly, or at a stage's goal.

Weights move in a step's updates only. While prompts are sampled, scored and read, and while held-out ones are evaluated, a
request is followed at once: the work is thrown away, and the state saved is the one from before it. Updates are finished first.
"""

import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType

from torch import nn

from mmrl.core.hooks import PolicyHooks, with_hooks
from mmrl.core.protocols import Policy, State
from mmrl.core.ranks import Ranks
from mmrl.core.readings import TAUGHT
from mmrl.core.types import Prompt, Rollouts, Scores
from mmrl.runtime.blame import AskedToLeaveError
from mmrl.training.evaluate import Evaluator
from mmrl.training.settings import TrainSettings, Until

log = logging.getLogger("mmrl")
ON_THE_WAY = frozenset({"__enter__", "__exit__"})
"""Functions that swap something in or out, such as averaged weights: they are never interrupted."""


class AskedToStopError(AskedToLeaveError):
    """Raised to leave a step or an evaluation whose work is thrown away."""


class Stop:
    """A request to stop the run, and the moments at which it can be followed."""

    def __init__(self) -> None:
        self.asked_by = ""
        """A signal's name; empty: no one asked."""
        self.is_open = False
        """True while the current work may be thrown away."""

    def ask(self, name: str, frame: FrameType | None = None) -> bool:
        """Ask the run to stop; True if it cannot yet, and should be asked again in a moment.

        Args:
            frame: what the signal interrupted.

        Raises:
            AskedToStopError: the run can stop now.
        """
        self.asked_by = name
        if not self.is_open:
            return False
        while frame is not None:
            if frame.f_code.co_name in ON_THE_WAY:
                return True
            frame = frame.f_back
        raise AskedToStopError(name)

    @contextmanager
    def interruptible(self, ranks: Ranks) -> Iterator[None]:
        """Follow a request at once while inside; of several processes, only here at the beginning, and by all of them.

        Raises AskedToStopError where any of them was asked.
        """
        asked = [name for name in ranks.gather(self.asked_by) if name]
        if asked:
            self.asked_by = asked[0]
            raise AskedToStopError(asked[0])
        self.is_open = ranks.world == 1
        try:
            yield
        finally:
            self.is_open = False


class TrainingStoppedError(ValueError):
    """Training cannot go on; the message says at which step, why, and what to look at."""


@dataclass
class Audit:
    """Checks what the policy recorded: every row in the first steps of a run, later one group at a time."""

    policy: Policy
    settings: TrainSettings
    ranks: Ranks
    steps: int = field(default=0, init=False)

    def __call__(self, rollouts: Rollouts, step: int) -> None:
        """Raises TrainingStoppedError on all ranks, with the row that the first of them found."""
        self.steps += 1
        if self.steps > self.settings.audit_steps:
            if self.settings.audit_every == 0 or step % self.settings.audit_every:
                return
            chosen = random.Random(f"{self.settings.seed}/{step}").choice(rollouts.group_ids.unique().tolist())
            rollouts = rollouts.take((rollouts.group_ids == chosen).nonzero()[:, 0])
        found = ""
        try:
            with_hooks(self.policy, PolicyHooks).audit(rollouts)
        except ValueError as error:
            found = str(error)
        first = next(filter(None, self.ranks.gather(found)), "")
        if first:
            raise TrainingStoppedError(f"step {step}: {first}")


def refuse_nothing_to_train(step: int, ranks: Ranks, trained: Rollouts, scores: Scores) -> None:
    """Raise TrainingStoppedError, with the reason, where rewards, masks and the advantage left no action on any process."""
    taught = trained.recorded.get(TAUGHT)
    some = taught is None or bool((taught > 0).any()), bool(scores.total().isfinite().any())
    trains, has_taught, is_scored = ranks.sum([int(trained.action_mask.any()), *map(int, some)])
    if not trains and is_scored and not has_taught:
        log.warning(
            f"step {step} does not train: its rewards leave no row to a teacher, as where all samples of a prompt are wrong"
        )
    if trains or (is_scored and not has_taught):
        return
    if not bool(scores.total().isfinite().any()):
        reason = f"no reward ({', '.join(scores.names)}) answered for any sample: all said None or failed"
    elif bool(trained.truncated().all()):
        reason = "every completion was cut before it stopped and masks drop cut ones: raise max_new_tokens"
    else:
        reason = "masks and the advantage dropped every row: look at algorithm.masks"
    raise TrainingStoppedError(f"step {step} has nothing to train on: {reason}")


def refuse_broken_weights(parameters: Iterable[nn.Parameter], step: int, lr: float) -> None:
    """Raise TrainingStoppedError for weights that a step made infinite or NaN, before they are sampled from or saved."""
    # of weights that are spread over several processes, this one's part
    parts = [part for p in parameters if p.requires_grad and (part := getattr(p, "to_local", p.detach)().detach()).numel()]
    if parts and not bool(nn.utils.get_total_norm(parts, math.inf).isfinite()):
        raise TrainingStoppedError(
            f"step {step}: the update made weights infinite or NaN at a learning rate of {lr:g}: lower optimizer.lr and "
            "start again, or resume from the last checkpoint, which is from before"
        )


Note = Callable[[int, Mapping[str, float]], None]


@dataclass
class Goal:
    """Looks every few steps whether a stage has reached what it was for."""

    until: Until
    evaluator: Evaluator
    """Of the prompts to look at."""
    note: Note
    """Called on every process with the step and the metric `until/<name>`."""
    place: str = ""
    """The stage, for messages."""
    is_reached: bool = False
    looked_at: int = 0
    """The last step that was looked at."""

    def is_due(self, step: int, own_steps: int) -> bool:
        """Is this the time to look? `own_steps` are those since the stage began."""
        return own_steps > 0 and own_steps % self.until.every == 0 and self.looked_at != step and not self.is_reached

    def look(self, step: int) -> None:
        """Score the prompts, the same on all processes; ValueError where the metric is none of theirs."""
        metrics, _ = self.evaluator.run(step)
        name = self.until.metric.removeprefix("eval/")
        if f"eval/{name}" not in metrics:
            known = ", ".join(sorted(one.removeprefix("eval/") for one in metrics))
            raise ValueError(f"until.metric is {self.until.metric!r}, and what is measured is {known}: take one of them")
        value = metrics[f"eval/{name}"]
        self.is_reached, self.looked_at = value >= self.until.at_least, step
        self.note(step, {f"until/{name}": value})

    def say(self) -> None:
        """Warn where the stage ended without it."""
        if not self.is_reached:
            wanted = f"{self.until.metric} of {self.until.at_least:g}"
            log.warning(f"{self.place} has not reached a {wanted} in its {self.until.most} steps: the chain goes on as it is")

    def state_dict(self) -> State:
        return {"is_reached": self.is_reached, "looked_at": self.looked_at}

    def load_state_dict(self, state: State) -> None:
        self.is_reached, self.looked_at = state["is_reached"], state["looked_at"]


def goal_of(until: Until, evaluator: Evaluator, prompts: Sequence[Prompt], note: Note, place: str) -> Goal:
    """The goal of a stage, whose prompts are answered and scored as the evaluator's."""
    own = replace(evaluator, prompts=prompts, settings=replace(evaluator.settings, by=()), variants=())
    return Goal(until, own, note, place)
