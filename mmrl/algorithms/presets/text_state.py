"""Methods of single papers for text that remember something from step to step, or whose clip or penalty differs by action.

The string under each assignment is its documentation, as in text.py: a one-line summary, then the paper, what it sets, how many
updates it takes, and what is not implemented.
"""

from dataclasses import replace

from mmrl.algorithms.advantages.budget import EntropyBudget
from mmrl.algorithms.advantages.bundles import Bundles
from mmrl.algorithms.advantages.entropy import NearEntropy
from mmrl.algorithms.advantages.group import GroupNorm, TokenAverage
from mmrl.algorithms.advantages.on_top import Bold, GoodTempered
from mmrl.algorithms.advantages.remembered import AmongSeen, SingleStream
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.moving_clip import EntropyClip, MovingClip
from mmrl.algorithms.objectives.references import BetweenReferences, LooserWhereGood
from mmrl.algorithms.objectives.surrogates import Clip, Reinforce
from mmrl.algorithms.planners.replay import ReplayGroups, ReplayInformative
from mmrl.algorithms.planners.tempered import ByDoubt, Tempered
from mmrl.algorithms.presets.text import grpo
from mmrl.algorithms.weights.aggregate import TokenMean

CLIPPED = replace(grpo, objective=((1.0, Clip()),), minibatches=4)

spo = replace(
    CLIPPED,
    objective=((1.0, Clip(low=0.2, high=0.28)),),
    advantage=SingleStream(),
    aggregation=TokenMean(),
    group_size=1,
)
"""One sample per prompt, compared with a success rate that is tracked for every prompt.

Single-stream Policy Optimization (SPO), arXiv:2509.13232.
Rewards in [0, 1]. Take `sampler.kind = "Prioritized"` with it, which draws prompts by how uncertain their rate is. 4 updates per
step are ours; with one the clip never acts. Not implemented: 8 real samples of every prompt before training (imagined ones
stand for them); the sampler's own tracker forgets at a fixed rate.
"""

riskpo = replace(CLIPPED, advantage=Bundles(), aggregation=TokenMean())
"""Five prompts are one exam: what counts is the lower part of the exams' scores, against quantiles of all steps.

RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training, arXiv:2510.00911.
Quantile levels 0.2 and 0.8, tail weight 1.5, as in its script. No KL. prompts_per_step is best a multiple of 5. 4 updates per
step are ours; with one the clip never acts. Nothing else is left out.
"""

hapo = replace(
    grpo,
    objective=((1.0, EntropyClip()),),
    planner=ByDoubt(),
    advantage=TokenAverage(),
    aggregation=TokenMean(),
    group_size=16,
    minibatches=4,
)
"""Uncertain tokens are drawn hotter, may move further and count more, certain ones less; rewards are standardized over tokens.

From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature (HAPO), arXiv:2509.16591. As the paper's
words have it; its code's rule for certain tokens never acts (`algorithm.objective.0.sign = "code"`). On one process only, for
entropies are ranked in the minibatch, of whole groups, which is never cut. The temperature follows each token's entropy, without
an engine. 4 updates per step are ours; with one the clip never acts. Not implemented: its dynamic sampling beside these
temperatures (dapo's planner samples without them); take dapo's penalty for length with it.
"""

dcpo = replace(CLIPPED, advantage=NearEntropy(), aggregation=TokenMean())
"""Right answers count as they would be likely at another temperature, which pulls the entropy to a target.

Distribution-Centric Policy Optimization Dominates Exploration-Exploitation Trade-off (DCPO), arXiv:2601.12730.
Target 0.5 nats, temperatures 1.2 and 0.8. One reading more per step. No KL. 4 updates per step are ours; with one the clip never
acts. Nothing else is left out.
"""

hart = replace(grpo, objective=((1.0, Reinforce()), (0.04, LooserWhereGood())), advantage=Bold())
"""Samples above their group's mean count more, and may leave the reference further.

Annotation-Free Visual Reasoning for High-Resolution Large Multimodal Models via Reinforcement Learning (HART, AP-GRPO),
arXiv:2602.23615. The gain is the paper's 0.6; the KL's coefficient 0.04 is ours. No clip is printed in the paper: one update per
step. Not implemented: the turn that asks for a crop, the stage of supervised training.
"""

aepo = replace(grpo, objective=((1.0, Reinforce()),), advantage=GoodTempered(), planner=Tempered(), aggregation=TokenMean())
"""A quarter of the prompts is sampled again hotter or colder, and the good ones of these answers train as they are.

Arbitrary Entropy Policy Optimization Breaks The Exploration Bottleneck of Reinforcement Learning, arXiv:2510.08141.
Temperature 1.2 up to the target of 0.5 nats, 0.8 above; with an engine these rows are written there too. No ratio, no KL: one
update per step. Not implemented: replacing the first rows of the batch (the rows are added).
"""

ares = replace(CLIPPED, objective=((1.0, Clip(low=0.2, high=0.28)),), advantage=EntropyBudget(), aggregation=TokenMean())
"""A bonus for as many uncertain passages as a prompt's difficulty asks for: few where it is easy, many where it is hard.

ARES: Multimodal Adaptive Reasoning via Difficulty-Aware Token-Level Entropy Shaping (AEPO), arXiv:2510.08457. The bonus is its
reward file's. No KL. 4 updates per step are ours; with one the clip never acts. Not implemented: the KL budget per difficulty, of
which no formula was found, the supervised stage, skipping prompts that are too easy.
"""

remix = replace(
    grpo,
    objective=((1.0, MovingClip()), (0.04, BetweenReferences())),
    planner=ReplayGroups(until=100),
    aggregation=TokenMean(),
    epochs=2,
)
"""Two fifths of the rows come from the last two steps, clipped around where this step found them; KL to two references.

Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement Finetuning for Large Language Model (ReMix), arXiv:2507.06892.
2 updates per step, passes over all rows, as in the paper; with one fresh rows are plain REINFORCE. The clip range 0.2 and the
KL's coefficient 0.04 were not found and are grpo's. After 100 steps only new rows train, and the policy of then is the base:
`algorithm.planner.until` and `algorithm.objective.1.switch`. Nothing else is left out.
"""

ssr = replace(CLIPPED, planner=ReplayInformative(), advantage=AmongSeen(GroupNorm(drop_zero=True)), aggregation=TokenMean())
"""Groups whose answers are all right or all wrong give their place to rows of earlier steps with large advantages.

VL-Rethinker: Incentivizing Self-Reflection of Vision-Language Models with Reinforcement Learning (SSR), arXiv:2504.08837.
Selective sample replay alone. Rows without an advantage leave every count. Replayed rows keep their old log-probabilities and the
statistics of their first group. 4 updates per step are ours; with one, fresh rows are plain REINFORCE and replayed ones are
clipped. Not implemented: forced rethinking.
"""

PRESETS: dict[str, Algorithm] = {
    name: value for name, value in globals().items() if isinstance(value, Algorithm) and name.islower() and name != "grpo"
}
