"""The quantities of flow policies that parts read, besides `logprobs`: the names, in one place.

Those under `old` depend on no weights: a policy answers them from its trace, without a forward pass. Latent-shaped ones are
(n, t, ...), the others (n, t); all are finite everywhere and right where the action mask is True.
"""

from mmrl.core.types import Reading

VELOCITY = Reading("velocity")
"""The model's output (after guidance) at the latent before the step, or at the noised sample of a forward plan."""
MEAN = Reading("mean")
"""Mean of the Gaussian that the step's latent was drawn from."""
SAMPLED_MEAN = Reading("sampled_mean", "old")
"""The mean as it was while sampling, kept in the trace."""
STD = Reading("std", "old")
"""S of the density: the deviation of every step that the plan trains, for every row alike; 0 at steps it never trains."""
DT = Reading("dt", "old")
"""sigma - sigma of the next step, > 0."""
SIGMA = Reading("sigma", "old")
"""t of the step's latent, or of the noised sample."""
TARGET_VELOCITY = Reading("target_velocity", "old")
"""noise - data of the noised sample (forward plans only)."""
