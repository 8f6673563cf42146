"""How much an action's credit counts, by how far the samples of a group disagree there. `importance` slot of an Algorithm."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.weights.aggregate import PlainWeight
from mmrl.core.readings import GROUP_DIVERGENCE
from mmrl.core.types import Batch, Counts
from mmrl.runtime.ranges import NonNegative


@dataclass(frozen=True)
class GroupDivergence(PlainWeight):
    """w_t = 1 + (alpha - 1) (D_t - min D) / (max D - min D), D_t = how far a group's distributions differ there (TW-GRPO).

    arXiv:2505.24718. D_t = mean_g sum_v exp(d) - d - 1, d = clamp(mean over the group of log p - log p, 11), the same for all
    rows of a group; rows that have ended count as uniform. At the first token all rows have the same distribution, so min D is 0.
    The code of the paper takes the current weights and lets a gradient through the weight; here it is the weights that sampled,
    so in later passes the values are stale.
    """

    alpha: NonNegative = 1.7
    """Weight where the group disagrees most; 1 = uniform. The paper's script has 1.7, its code 1.4."""

    reads = (GROUP_DIVERGENCE,)
    scope = "group"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        divergence = batch.frozen[GROUP_DIVERGENCE].to(batch.advantages.dtype)
        least, most = divergence.amin(dim=1, keepdim=True), divergence.amax(dim=1, keepdim=True)
        return 1 + (self.alpha - 1) * (divergence - least) / (most - least + 1e-8)
