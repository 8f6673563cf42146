"""When and how long to think, what right and wrong answers weigh, answers cut in places for credit, and how many there are."""

from dataclasses import replace

from mmrl.algorithms.advantages.entropy import MostSpread, NoveltyBonus
from mmrl.algorithms.advantages.group import BySign
from mmrl.algorithms.advantages.remembered import Downsampled
from mmrl.algorithms.advantages.segments import AboveReference, BudgetRelative, SegmentGains, WithinBudgets
from mmrl.algorithms.advantages.tree import PrefixValues, TreeValues
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip, Dro, EvenStart
from mmrl.algorithms.planners.begun import BudgetCuts, Budgets, ThinkOrNot
from mmrl.algorithms.planners.extra_samples import UntilMixed, WhereHard, WhereUncertain
from mmrl.algorithms.planners.helped import SerialExits
from mmrl.algorithms.planners.segments import SegmentValues, TreeBranches
from mmrl.algorithms.presets.baselines import CENTRED, CLIPPED, dr_grpo, grpo
from mmrl.algorithms.shaping.thinking import BudgetReward, ExitDecay, LengthBudget, ModePays, ShorterIsBetter
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

s_grpo = replace(CLIPPED, planner=SerialExits(), shaping=(ExitDecay(),), advantage=CENTRED)
"""Answers that leave one thought at different places: the earliest right one earns most, each later one half of it.

S-GRPO: Early Exit via Reinforcement Learning in Reasoning Models, arXiv:2505.07686. From notes on the paper.
For models that think before `</think>`. A shared thought trains in every answer that goes on from it; trained once, in the whole
answer alone (`algorithm.planner.train_thought = false`), tiny policies forgot to end their thoughts. No KL. 4 updates per step
are ours; with one the clip never acts. Nothing else is left out.
"""

spo_segment = replace(CLIPPED, planner=SegmentValues(), advantage=SegmentGains(), aggregation=TokenMean())
"""Answers are cut where the policy was unsure, and each piece is credited with how much it changed what comes of the answer.

SPO-chain of Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for Large Language Models,
arXiv:2505.23564. Cuts before every fifth token less likely than 0.9, four continuations from each; surer tokens do not train. 1 +
4 cuts samples in place of one: raise `algorithm.planner.interval` for long answers. No KL (its base config has 0.05). 4 updates
per step are ours; with one the clip never acts. Not implemented: the tree form.
"""

tempo = replace(CLIPPED, advantage=PrefixValues())
"""Tokens at which the answers of a group part ways are credited with how much better those that go this way do.

Tree-Estimated Mean Prefix Value for Policy Optimization (TEMPO), arXiv:2509.18314.
From its abstract and reviews; the deviation's ddof and eps are ours. No new samples. No KL. 4 updates per step are ours; with one
the clip never acts. Nothing else is left out.
"""

treerl = replace(CLIPPED, planner=TreeBranches(), advantage=TreeValues(), aggregation=TokenMean(), group_size=6)
"""Answers branch before their least likely tokens, and each piece is credited with what it and its parent are worth.

TreeRL: LLM Reinforcement Learning with On-Policy Tree Search, arXiv:2506.11902.
6 answers, 2 places each, 2 branches from each, one round: 30 samples of a prompt. No KL; its temperature of 1.2 is
policy.sampling.temperature. 4 updates per step are ours; with one the clip never acts. Not implemented: several rounds of
branches.
"""

reinforce_ada = replace(grpo, planner=UntilMixed(), advantage=Downsampled(), objective=((1.0, Clip()),), minibatches=4)
"""Rounds of 8 samples until two are right and two wrong; statistics of all of them, training on four.

Reinforce-Ada: An Adaptive Sampling Framework for Reinforce-Style LLM Training, arXiv:2510.04996. Balanced form, at most 4
rounds; `algorithm.planner.wrong = 0` is its form that only asks for right ones. No KL. 4 updates per step are ours; with one
the clip never acts. Nothing else is left out.
"""

dars = replace(dr_grpo, planner=WhereHard(), aggregation=TokenMean(), epochs=2, minibatches=1)
"""A second round of samples for prompts that are solved less than half of the time, the more the harder they are.

Depth-Breadth Synergy in RLVR: Unlocking LLM Reasoning Gains with Adaptive Exploration (DARS), arXiv:2508.13755.
All samples of a prompt are one group, so hard prompts count more. 2 updates per step, passes over the whole step, as in its
script; with one the clip never acts. Not implemented: dropping prompts that stay all right or all wrong (their advantage is 0).
"""

xrpo = replace(CLIPPED, planner=WhereUncertain(), advantage=NoveltyBonus())
"""More samples where the mean reward is uncertain, and a bonus for right answers that were unlikely.

XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation, arXiv:2510.06672. From a review of the paper.
Rounds add 4 samples to each of 4 prompts, twice: ours. No KL. 4 updates per step are ours; with one the clip never acts. Not
implemented: solved examples in prompts that fail altogether.
"""

d3s = replace(CLIPPED, advantage=MostSpread(), aggregation=TokenMean())
"""The rows of a step whose advantages differ most train, and of their tokens those that were unsure; ever more of both.

D3S: Dynamic dual-level down-sampling, arXiv:2509.22115. From summaries. The shares that train, 0.5 of rows and 0.2 of tokens at
first and all after 100 steps, are ours. 4 updates per step are ours; with one the clip never acts. Nothing else is left out.
"""
