"""When and how long to think, and what right and wrong answers weigh."""

from dataclasses import replace

from mmrl.algorithms.advantages.group import BySign
from mmrl.algorithms.advantages.segments import AboveReference, BudgetRelative, WithinBudgets
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip, Dro, EvenStart
from mmrl.algorithms.planners.begun import BudgetCuts, Budgets, ThinkOrNot
from mmrl.algorithms.presets.baselines import CENTRED, CLIPPED, grpo
from mmrl.algorithms.shaping.thinking import BudgetReward, LengthBudget, ModePays, ShorterIsBetter
from mmrl.algorithms.weights.aggregate import FirstApart, SequenceSum, TokenMean

w_reinforce = replace(CLIPPED, advantage=BySign(), aggregation=TokenMean())
"""Wrong answers are made rarer, right ones a tenth as much more likely: nothing is compared with a group.

The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning (W-REINFORCE), arXiv:2506.01347.
Weight 0.1, clip 0.2, 4 updates per step and no KL as in its code; with one update the clip never acts. Takes every group as it is
sampled: DynamicSampling is refused. Nothing is left out.
"""

nsr = replace(w_reinforce, advantage=BySign(right=0.0))
"""Wrong answers alone train, and are made rarer: what is right keeps its variety.

The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning (NSR), arXiv:2506.01347.
As w_reinforce without right answers, 4 updates per step. Nothing is left out.
"""

psr = replace(w_reinforce, advantage=BySign(right=1.0, wrong=0.0))
"""Right answers alone train, and are made more likely.

The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning (PSR), arXiv:2506.01347.
As w_reinforce without wrong answers, 4 updates per step. Nothing is left out.
"""

kimi_k15 = replace(
    CLIPPED,
    objective=((1.0, Dro(whole=True)),),
    advantage=CENTRED,
    aggregation=SequenceSum(),
    shaping=(ShorterIsBetter(),),
)
"""Of right answers the shorter ones of a group earn more; the policy is pulled back in place of a clip.

Kimi k1.5: Scaling Reinforcement Learning with LLMs, arXiv:2501.12599.
The weight 0.3 of the length reward and the pull 0.5 are not published: ours. No KL. 4 updates per step are ours; with one the
pull never acts. Not implemented: rollouts that go on in the next step, its schedule of the length reward.
"""

adapt_think = replace(CLIPPED, objective=((1.0, EvenStart()),), planner=ThinkOrNot(), advantage=AboveReference(), group_size=16)
"""Half of a group begins without a thought, half with one: not to think pays as long as no accuracy is lost.

AdaptThink: Reasoning Models Can Learn When to Think, arXiv:2505.13417.
delta 0.05, clip 0.2 of a ratio per rollout, 16 samples and no KL as in its code. For templates that open the thought. Take
temperature 0.6. 4 updates per step are ours; with one the clip never acts. Not implemented: answers without a thought that are
cut earlier than others.
"""

thinkless = replace(
    CLIPPED, objective=((1.0, Clip()), (1e-3, ReferenceKL())), advantage=CENTRED, aggregation=FirstApart(), shaping=(ModePays(),)
)
"""The first token, which says whether to think, has a weight of its own; a right short answer earns twice a right thought.

Thinkless: LLM Learns When to Think (DeGRPO), arXiv:2505.13379.
alpha 0.001, KL 0.001 and differences to the mean as in its code, where the paper divides by the deviation. 4 updates per step are
ours; with one the clip never acts. Not implemented: the distillation that teaches both words before.
"""

hbpo = replace(CLIPPED, planner=Budgets(), shaping=(BudgetReward(),), advantage=WithinBudgets())
"""Parts of a group announce budgets of their own, and are paid for keeping to them and compared within and between them.

HBPO: Hierarchical Budget Policy Optimization for Adaptive Reasoning, arXiv:2507.15844.
Budgets of 1/8, 1/4, 1/2 and 5/8 of the longest answer, no KL. Its released advantage cannot run; ours is the formula. 4 updates
per step as in its script (64 prompts, 16 each); with one the clip never acts. Not implemented: training the announcement as well.
"""

anytime = replace(CLIPPED, planner=BudgetCuts(), advantage=BudgetRelative(), aggregation=TokenMean(), group_size=4)
"""Thoughts are cut at four budgets and answered from each: what counts is how right they are whenever they are stopped.

Optimizing Anytime Reasoning via Budget Relative Policy Optimization (AnytimeReasoner, BRPO), arXiv:2505.13438.
4 thoughts, 4 budgets, 4 answers from each: 68 samples of a prompt. Budgets are shares of the longest answer, all as likely. No
KL. 4 thoughts and 4 updates per step are ours; with one the clip never acts. Not implemented: a second network for the answers.
"""

pixelthink = replace(
    grpo,
    objective=((1.0, Clip()), (5e-3, ReferenceKL(estimator="k3"))),
    shaping=(LengthBudget(),),
    minibatches=4,
    needs_rewards=("box_and_points",),
)
"""Answers may be as long as their prompt's difficulty, and the policy's own uncertainty, allow; the rest costs reward.

PixelThink: Towards Efficient Chain-of-Pixel Reasoning, arXiv:2505.23727.
8 samples, KL 0.005 and the budgets of its code: 96 words where it is easy, none in between, 256 and more where it is hard. Needs
the column difficulty. 4 updates per step are ours; with one the clip never acts. Not implemented: the scores of difficulty
themselves.
"""
