"""Every metric of a run, as metrics.jsonl, trackers and reports name it. {name} is a reward's, a part's or a variant's."""

import re
from dataclasses import dataclass

PER_ACTION = "mean over the actions that train, weighted as in the loss"


@dataclass(frozen=True)
class Metric:
    """`Metric("policy/grad_norm", "norm", "Of the gradient, before clipping.")`."""

    name: str
    """May hold {name}, for one or more words between slashes."""
    unit: str
    meaning: str

    def fits(self, name: str) -> bool:
        """True if this entry describes a metric of that name."""
        pattern = "".join(
            r"[^/]+(?:/[^/]+)*" if part == "{name}" else re.escape(part) for part in re.split(r"(\{name\})", self.name)
        )
        return re.fullmatch(pattern, name) is not None


METRICS = (
    Metric("step", "count", "The training step, from 1 on; 0 is before training."),
    Metric("loss", "loss", "The sum of all terms over the step's updates; often near 0, which is right."),
    Metric("reward/total", "reward", "Mean weighted sum of the rewards over the samples that have one."),
    Metric("reward/no_spread", "share of groups", "Groups whose samples all have the same total: they teach nothing."),
    Metric("reward/{name}/std", "reward", "Deviation of this reward over all samples of the step."),
    Metric("reward/{name}/failed", "share of samples", "The reward raised, timed out or answered NaN; there only if it did."),
    Metric("reward/{name}/na", "share of samples", "The reward said None, it does not apply; there only if it did."),
    Metric("reward/{name}/unparsed", "share of samples", "Completions in which the reward did not find what it reads."),
    Metric("reward/{name}/format", "share of samples", "Completions that keep the reward's template; there only with one."),
    Metric("reward/{name}/retried", "count", "Calls that were repeated after a failure; there only if there were any."),
    Metric("reward/{name}/cached", "share of samples", "Answers that were remembered from before; there only with a cache."),
    Metric("reward/{name}", "reward", "Mean of one reward, or of a part of it (reward/iou/hit), over the samples that have it."),
    Metric("source/{name}/share", "share of prompts", "Of the step's prompts that are of this source; with several [[data]]."),
    Metric("source/{name}/total", "reward", "Mean weighted sum of the rewards over the samples of one source."),
    Metric("rollout/length", "actions", "Mean number of actions of a sample that may train: tokens, or denoising steps."),
    Metric("rollout/length_max", "actions", "The longest sample's."),
    Metric("rollout/actions", "actions", "All actions of the step that may train."),
    Metric("rollout/truncated", "share of samples", "Completions cut at max_new_tokens."),
    Metric("rollout/entropy", "nats per token", "Mean of -log p of what was sampled. Texts only."),
    Metric("rollout/log_ratio", "nats per action", "Mean |log ratio| of the sampler to the first update's reading."),
    Metric("rollout/ratio_of_lag", "nats per action", "The same in a run that samples ahead: mostly what updates since moved."),
    Metric("rollout/staleness", "steps", "How many steps before the step's own its samples were written; with ahead only."),
    Metric("rollout/unscored", "share of samples", "Samples without a total, which do not train; there only if there are any."),
    Metric("rollout/rounds", "count", "Rounds of sampling in this step (dynamic sampling takes several)."),
    Metric("rollout/discarded", "count", "Samples drawn and thrown away by the planner."),
    Metric("rollout/turns", "count", "Mean number of turns of a sample; with an environment, as all of these."),
    Metric("rollout/pictures", "count", "Mean number of pictures that a sample was shown between its turns."),
    Metric("rollout/observed_tokens", "tokens", "Mean number of tokens of a sample that the environment wrote."),
    Metric("rollout/kept_tokens", "share of tokens", "Of the tokens in front of turns, those that were kept and not read again."),
    Metric("rollout/dropped_turns", "count", "Turns that policy.episode_cache_mib had no room for: they are read again."),
    Metric("rollout/ended_{name}", "share of samples", "Samples that ended so: stop, length, turns, room, done or error."),
    Metric("environment/retried", "count", "Answers that were asked for again after a failure."),
    Metric("environment/{name}", "sum per sample", "Mean over samples of a fact that observations state."),
    Metric("train/diversity", "distance", "How different the pictures of one prompt are."),
    Metric("train/diversity_prompts", "distance", "How different pictures of different prompts are."),
    Metric("train/distinct", "share of samples", "Different texts among the samples of a prompt."),
    Metric("train/sameness", "share of pairs", "Chance that texts for two different prompts are the same."),
    Metric("train/form", "share of samples", "Texts of the commonest form: the same but for words and numbers."),
    Metric("train/repetition", "share of runs", "Runs of four words that a text has had before."),
    Metric("policy/grad_norm", "norm", "Norm of the gradient before clipping, mean over the step's updates."),
    Metric("policy/idle", "share of samples", "No term trains on them, so policy/ metrics are of the others; there only if any."),
    Metric("run/stage", "number", "Of a chain: the stage that the step belongs to, from 1 on."),
    Metric("until/{name}", "reward", "The figure that may end a stage, of held-out prompts that do not score."),
    Metric("mined/prompts", "count", "Prompts that a stage of the kind filter or pairs has sampled."),
    Metric("mined/rows", "count", "Rows that it found for a later stage: prompts, or pairs."),
    Metric("mined/right", "share of samples", "Samples that were right there (success_at), mean over its prompts."),
    Metric("mined/solved", "share of prompts", "Prompts with a right sample: pass@k, k being its samples of a prompt."),
    Metric("policy/lr", "rate", "Learning rate after the step."),
    Metric("policy/ratio", "ratio", f"Probability now over that when sampled, {PER_ACTION}."),
    Metric("policy/clip_frac", "share of actions", "Actions whose ratio was clipped or gated."),
    Metric("policy/kl", "nats per action", "KL divergence from the reference (of pictures: per element of a transition)."),
    Metric("policy/kl_old", "nats per action", "KL divergence from the weights that sampled: how far one step leads."),
    Metric("policy/kl_{name}", "per element", "The same from another model, such as averaged weights."),
    Metric("policy/entropy", "nats per action", "Entropy of the next action's distribution, where a term asks for it."),
    Metric("policy/log_ratio", "nats", "Standardized log-ratio of rollouts that a regression fits (Reg-GRPO)."),
    Metric("policy/imitation", "nats per action", "How unlikely the policy finds what it is taught: mean of -log p."),
    Metric("policy/value_error", "reward", f"How far what the value head expects is from the reward, {PER_ACTION}."),
    Metric("policy/margin", "nats", "DPO: beta times how much the chosen gained on the rejected since the reference."),
    Metric("policy/preferred", "share of pairs", "Pairs whose chosen one gained more (DPO), or has the larger score."),
    Metric("policy/error", "rating", "Stages of the kind ratings: how far scores are from the ratings."),
    Metric("policy/perception", "nats per action", "How much hiding the pictures changes what is said (PAPO)."),
    Metric("policy/surprise", "nats per action", "Entropy terms of PAPO's two readings."),
    Metric("policy/score", "nats per action", "DisCO, DRPO: mean log-probability (or ratio) of a rollout."),
    Metric("policy/rarer", "share of actions", "LLDS: actions of good rollouts that became less likely as a whole."),
    Metric("policy/ratio_variance", "squared ratio", "R2VPO: mean (ratio - 1)^2."),
    Metric("policy/phi", "weight", "VESPO's weight of a rollout."),
    Metric("policy/goodness", "share", "DiffusionNFT, CRD: how good a sample is, from 0 to 1."),
    Metric("policy/moved", "squared velocity", "DiffusionNFT, CRD: how far velocities are from the old weights'."),
    Metric("policy/disorder", "share", "DGPO: how little a group's errors are ordered as rewards say; 0.5 at the reference."),
    Metric("policy/matching_error", "squared velocity", "The flow-matching error of noised samples, or of taught pictures."),
    Metric("teacher/taught", "share of actions", "Those that a teacher has; 0: the step trained nothing."),
    Metric("teacher/agreement", "share of tokens", "Those that speculative decoding with the teacher would accept."),
    Metric("teacher/kl", "nats per action", "The divergence from the teacher, as the term has it."),
    Metric("teacher/{name}/{name}", "see above", "The same of one of several teachers: teacher/agreement/big."),
    Metric("time/rollout_s", "seconds", "Sampling."),
    Metric("time/reward_s", "seconds", "Waiting for rewards after sampling."),
    Metric("time/read_s", "seconds", "Readings without gradient: old and reference."),
    Metric("time/update_s", "seconds", "Forward, backward and optimizer."),
    Metric("time/step_s", "seconds", "The whole step."),
    Metric("time/idle_share", "share of the step", "What no timed part took: planning, credit, waiting for others."),
    Metric("time/idle/trainer", "share of the step", "Training waited for samples. With ahead only, as all of these."),
    Metric("time/idle/sampler", "share of the step", "Sampling waited for weights."),
    Metric("time/publish_s", "seconds", "Setting the weights aside for the engine, and a copy for checkpoints."),
    Metric("time/beside/{name}_s", "seconds", "Sampling, or waiting for rewards, beside training."),
    Metric("time/{name}_share", "share of the step", "Rollout, reward, read, update: with idle 1. Mean over processes."),
    Metric("time/reward/{name}/p50_s", "seconds", "Half of the calls of this reward, one group each, were faster."),
    Metric("time/reward/{name}/p95_s", "seconds", "Nineteen of twenty were."),
    Metric("time/environment/p50_s", "seconds", "Half of the answers of worlds came faster."),
    Metric("time/environment/p95_s", "seconds", "Nineteen of twenty did."),
    Metric("time/{name}_s", "seconds", "Another part of the step that was timed."),
    Metric("eval/total", "reward", "Mean total over held-out prompts."),
    Metric("eval/completion_length", "tokens", "Mean length of held-out completions."),
    Metric("eval/diversity", "distance", "How different several pictures of a held-out prompt are."),
    Metric("eval/source/{name}/{name}", "reward", "Mean of a reward, or of the total, over the held-out prompts of one source."),
    Metric("eval/by/{name}", "reward", "The same of each value of a column in [evaluation] by: eval/by/split/testA/total."),
    Metric("eval/{name}", "reward", "Mean over held-out prompts of a reward, a part of it, or a variant (evaluation.also)."),
)  # fmt: skip


def metric_of(name: str) -> Metric | None:
    """The metric of this name, the most specific one that fits; None if it is not documented."""
    return next((metric for metric in METRICS if metric.fits(name)), None)
