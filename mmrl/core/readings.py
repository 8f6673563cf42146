"""Every reading that parts ask for by name, each defined once.

Those under `old` whose quantity is not a log-probability depend on no weights: a policy answers them from its trace, without a
forward pass. Latent-shaped ones are (n, t, ...), the others (n, t); all are finite everywhere and right where the action mask is
True. Of rows whose latents differ in shape, latent-shaped ones are flat, (n, t, e) with zeros behind, until the policy's `split`
gives every micro-batch rows of one shape.
"""

from mmrl.core.types import Reading

LOGPROBS = Reading("logprobs")
"""log p of every action under the weights that train; the only one with a gradient beside ENTROPY and VELOCITY."""
OLD_LOGPROBS = Reading("logprobs", "old")
"""Under the weights that sampled."""
ROLLOUT_LOGPROBS = Reading("logprobs", "rollout")
"""What was noted while sampling."""
REF_LOGPROBS = Reading("logprobs", "ref")
"""Under the reference."""
START_LOGPROBS = Reading("logprobs", "start")
"""Under the weights at the beginning of the step: of replayed rows another reading than OLD_LOGPROBS."""
PREVIOUS_LOGPROBS = Reading("logprobs", "previous")
"""Under the weights at the beginning of the step before."""
EMA_LOGPROBS = Reading("logprobs", "ema")
"""Under the averaged weights."""
TEACHER_LOGPROBS = Reading("logprobs", "teacher")
"""Under the teacher of the row's prompt."""
MASKED_LOGPROBS = Reading("logprobs", "old", "masked")
"""Under the weights that sampled, with pictures hidden by the view `masked`."""
ENTROPY = Reading("entropy")
"""-sum p log p of the distribution that an action was drawn from, in nats."""
OLD_ENTROPY = Reading("entropy", "old")
GROUP_DIVERGENCE = Reading("group_divergence", "old")
"""How much the distributions of a group's rows differ at the same action."""
ANSWER_MASK = Reading("answer_mask", "old")
"""1 at the tokens of the final answer, 0 elsewhere."""
REFERENCE_PROBABILITY = Reading("reference_probability", "old")
"""Mean probability of the true answer's tokens in place of the row's own one, the same at all actions; -1 without answer tags."""
BASE_PROBABILITY = Reading("base_probability", "old")
"""The same directly behind the prompt, without the completion's thought."""
ATTENTION_DISTANCE = Reading("attention_distance", "old")
"""How many tokens back, up to 10, a token looks among those of its completion, in the local heads of a few middle layers."""
ATTENTION_INFLUENCE = Reading("attention_influence", "old")
"""How much the tokens 10 to 50 places later look at a token, in the global heads of these layers."""
REWARD = Reading("reward", "scores")
"""The row's total reward, NaN where it has none: the trainer's own, as MEAN_REWARD, asked of no policy."""
TAUGHT = Reading("taught", "scores")
"""1 in rows that a teacher has to itself, 0 in the others."""
MEAN_REWARD = Reading("mean_reward", "scores")
"""Mean total of all samples that the row's group had."""
SCORE = "score/"
"""How the quantities of scoring heads begin: `score/overall`."""
VALUE = Reading("value")
"""What the head of a policy's axis `value` expects, before each action, to come of the row; with a gradient."""
OLD_VALUE = Reading("value", "old")
PLACE = Reading("place", "old")
"""Where an action stood before a batch was cut: the trainer's own, asked of no policy."""

VELOCITY = Reading("velocity")
"""The model's output (after guidance) at the latent before the step, or at the noised sample of a forward plan."""
MEAN = Reading("mean")
"""Mean of the Gaussian that the step's latent was drawn from."""
SAMPLED_MEAN = Reading("sampled_mean", "old")
"""The mean as it was while sampling, kept in the trace."""
ORIGIN = Reading("origin", "old")
"""A number of the latent that a step began at: the same for actions of a group that left the same latent."""
STD = Reading("std", "old")
"""S of the density: the deviation of every step that the plan trains, for every row alike; 0 at steps it never trains."""
PULL = Reading("pull", "old")
"""|d log p / d velocity| for a noise of 1 of every step that the plan trains, for every row alike; 0 at the others."""
DT = Reading("dt", "old")
"""sigma - sigma of the next step, > 0."""
SIGMA = Reading("sigma", "old")
"""t of the step's latent, or of the noised sample."""
TARGET_VELOCITY = Reading("target_velocity", "old")
"""noise - data of the noised sample (forward plans only)."""
PIXELS = Reading("pixels")
"""The samples' pictures in [0, 1], (n, 3, y, x), with a gradient along the plan's surrogate path; 0 of rows that do not train."""
WEIGHTS_VERSION = Reading("weights_version", "rollout")
"""The version of the weights that wrote, where a run samples ahead of its training."""
SOUND_FROM = Reading("sound_from", "old")
"""The element of a latent at which the sound begins that is drawn beside a clip; 0 where there is none."""
SOUND_ADVANTAGE = Reading("sound_advantage", "scores")
"""The advantage of the sound, beside that of the clip, which is the batch's own."""
