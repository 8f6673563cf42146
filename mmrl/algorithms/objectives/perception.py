"""Terms that check whether the policy looks at its pictures: its probabilities with them against those without."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.objectives.terms import Penalty, actions_only
from mmrl.algorithms.views import MaskPatches
from mmrl.core.protocols import View
from mmrl.core.readings import LOGPROBS, MASKED_LOGPROBS
from mmrl.core.types import Batch, Reading


@dataclass(frozen=True)
class Perception(Penalty):
    """-(exp(d) - d - 1), d = log old(y | masked pictures) - log policy(y | pictures): away from answers given unseen (PAPO).

    arXiv:2507.06448. Raises actions that the pictures make likelier, lowers those they make less likely.
    d is clamped to 20 and the value to 10, as in the paper's code; tokens beyond have no gradient. The masked
    reading is taken once per step, without gradient.
    """

    view: MaskPatches = field(default_factory=MaskPatches)
    """How the pictures are hidden in the reading that the policy is pushed away from."""

    @property
    def views(self) -> Mapping[str, View]:
        return {"masked": self.view}

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (LOGPROBS, MASKED_LOGPROBS)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        gap = actions_only(readings[MASKED_LOGPROBS] - readings[LOGPROBS], batch.rollouts.action_mask).clamp(-20, 20)
        divergence = (gap.exp() - gap - 1).clamp(-10, 10)
        return -divergence, {"policy/perception": divergence.detach()}


@dataclass(frozen=True)
class Surprise(Penalty):
    """-log policy of the sampled actions: a positive coefficient makes the policy more certain (PAPO, arXiv:2507.06448).

    PAPO calls it an entropy loss; it is a one-sample estimate of the entropy, and its gradient is not the entropy's.
    """

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (LOGPROBS,)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        surprise = -actions_only(readings[LOGPROBS], batch.rollouts.action_mask)
        return surprise, {"policy/surprise": surprise.detach()}
