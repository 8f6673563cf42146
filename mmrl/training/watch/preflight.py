"""Refuse a run that would train on nonsense."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from mmrl.core.hooks import PolicyHooks, with_hooks
from mmrl.core.protocols import Policy
from mmrl.core.ranks import Ranks
from mmrl.core.types import Rollouts, Scores
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
        diagnostics = with_hooks(self.policy, PolicyHooks).diagnostics
        if diagnostics is None:
            return
        if self.steps > self.settings.audit_steps:
            if self.settings.audit_every == 0 or step % self.settings.audit_every:
                return
            rollouts = one_group(rollouts, random.Random(f"{self.settings.seed}/{step}"))
        found = ""
        try:
            diagnostics.audit(rollouts)
        except ValueError as error:
            found = str(error)
        first = next(filter(None, self.ranks.gather(found)), "")
        if first:
            raise TrainingStoppedError(f"step {step}: {first}")


def refuse_nothing_to_train(step: int, ranks: Ranks, trained: Rollouts, scores: Scores) -> None:
    """Stop where masks and the advantage left no action of any process.

    Raises:
        TrainingStoppedError: says which of rewards, masks and lengths left nothing.
    """
    if ranks.sum([int(trained.action_mask.any())])[0]:
        return
    if not bool(scores.total().isfinite().any()):
        reason = f"no reward ({', '.join(scores.names)}) answered for any sample: all said None or failed"
    elif bool(trained.truncated().all()):
        reason = "every completion was cut before it stopped and masks drop cut ones: raise max_new_tokens"
    else:
        reason = "masks and the advantage dropped every row: look at algorithm.masks"
    raise TrainingStoppedError(f"step {step} has nothing to train on: {reason}")


def one_group(rollouts: Rollouts, chance: random.Random) -> Rollouts:
    """The rows of one group."""
    ids = rollouts.group_ids.unique().tolist()
    return rollouts.take((rollouts.group_ids == chance.choice(ids)).nonzero()[:, 0]) if len(ids) > 1 else rollouts


def refuse_broken_weights(parameters: Iterable[nn.Parameter], step: int, lr: float) -> None:
    """Stop before weights that are not finite are sampled from, evaluated or saved.

    Raises:
        TrainingStoppedError: the optimizer's step made some of them infinite or NaN.
    """
    parts = [part for p in parameters if p.requires_grad and (part := local_part(p)).numel()]
    if parts and not bool(nn.utils.get_total_norm(parts, math.inf).isfinite()):
        raise TrainingStoppedError(
            f"step {step}: the update made weights infinite or NaN at a learning rate of {lr:g}: lower optimizer.lr and "
            "start again, or resume from the last checkpoint, which is from before"
        )


def local_part(parameter: nn.Parameter) -> torch.Tensor:
    """This process's part of a parameter that may be spread over several."""
    whole = getattr(parameter, "to_local", None)
    return parameter.detach() if whole is None else whole().detach()
