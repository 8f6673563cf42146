"""Numbers that updates leave behind beside losses: how far the sampler was off, and how many rows had nothing to train."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Bool
from torch import Tensor

from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Reading

NAMES = ("gap", "compared", "idle", "rows")


@dataclass
class UpdateFigures:
    """Sums over the updates of one step."""

    first: bool = True
    """True until the step's first update is over: the weights are still those that sampled."""
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))

    def compare(self, micro_batch: Batch, live: Mapping[Reading, Tensor]) -> None:
        """Note |log ratio| between what the sampler noted and what the first update reads, where actions train."""
        noted = micro_batch.rollouts.recorded.get(ROLLOUT_LOGPROBS)
        if not self.first or noted is None or LOGPROBS not in live or not bool(micro_batch.share.any()):
            return
        known = micro_batch.rollouts.action_mask & noted.isfinite() & ~micro_batch.rollouts.is_replayed()[:, None]
        self.sums["gap"] += float((live[LOGPROBS].detach() - noted)[known].abs().sum())
        self.sums["compared"] += int(known.sum())

    def count(self, batch: Batch, idle: Bool[Tensor, " n"]) -> None:
        """Note how many rows an update has, and how many of them are idle."""
        self.sums["rows"] += int(batch.rollouts.action_mask.any(1).sum())
        self.sums["idle"] += int(idle.sum())

    def end_update(self) -> None:
        """An optimizer step is taken: the weights have moved."""
        self.first = False

    def drain(self, ranks: Ranks) -> dict[str, float]:
        """rollout/log_ratio, where a sampler noted anything, and policy/idle; every process must ask. Sums begin anew."""
        found = dict(zip(NAMES, ranks.sum([self.sums[name] for name in NAMES]), strict=True))
        self.first, self.sums = True, dict.fromkeys(NAMES, 0.0)
        gap = {"rollout/log_ratio": found["gap"] / found["compared"]} if found["compared"] else {}
        return gap | ({"policy/idle": found["idle"] / found["rows"]} if found["idle"] else {})
