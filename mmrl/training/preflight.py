"""Refuse a run that would train on nonsense."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from mmrl.core.protocols import Diagnosable, Policy
from mmrl.core.ranks import Ranks
from mmrl.core.types import Rollouts
from mmrl.training.settings import TrainSettings


class TrainingStoppedError(ValueError):
    """Training cannot go on; the message says at which step, why, and what to look at."""


@dataclass
class Audit:
    """Looks at what the policy recorded: at the first steps of a run at every row, later at one group per step."""

    policy: Policy
    settings: TrainSettings
    ranks: Ranks
    steps: int = field(default=0, init=False)

    def __call__(self, rollouts: Rollouts, step: int) -> None:
        """Raises TrainingStoppedError on all ranks, with the row that the first of them found."""
        self.steps += 1
        if not isinstance(self.policy, Diagnosable):
            return
        if self.steps > self.settings.audit_steps:
            if self.settings.audit_every == 0 or step % self.settings.audit_every:
                return
            rollouts = one_group(rollouts, random.Random(f"{self.settings.seed}/{step}"))
        found = ""
        try:
            self.policy.diagnostics.audit(rollouts)
        except ValueError as error:
            found = str(error)
        first = next(filter(None, self.ranks.gather(found)), "")
        if first:
            raise TrainingStoppedError(f"step {step}: {first}")


def one_group(rollouts: Rollouts, chance: random.Random) -> Rollouts:
    """The rows of one group."""
    ids = rollouts.group_ids.unique().tolist()
    return rollouts.take((rollouts.group_ids == chance.choice(ids)).nonzero()[:, 0]) if len(ids) > 1 else rollouts


def refuse_broken_weights(parameters: Iterable[nn.Parameter], step: int, lr: float) -> None:
    """Stop before weights that are not finite are sampled from, evaluated or saved.

    Raises:
        TrainingStoppedError: the optimizer's step made some of them infinite or NaN.
    """
    largest = [local_part(p).abs().amax() for p in parameters if p.requires_grad and local_part(p).numel()]
    if largest and not bool(torch.stack([one.float().cpu() for one in largest]).isfinite().all()):
        raise TrainingStoppedError(
            f"step {step}: the update made weights infinite or NaN at a learning rate of {lr:g}: lower optimizer.lr and "
            "start again, or resume from the last checkpoint, which is from before"
        )


def local_part(parameter: nn.Parameter) -> torch.Tensor:
    """This process's part of a parameter that may be spread over several."""
    whole = getattr(parameter, "to_local", None)
    return parameter.detach() if whole is None else whole().detach()
