"""Methods for text, each on a task made for its claim, against the same without its idea."""

from dataclasses import replace
from typing import Any

from mmrl.algorithms.advantages.group import GroupNorm, Halves, ReinforcePlusPlus, Strata
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip, Reinforce
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.aggregate import SequenceMean
from tests.evidence import text_tasks as tasks
from tests.evidence.task import Row, Task, against, unclipped, uncompared
from tests.support.presets import DISTILLED

STALE = 16
"""Updates per step where a method is made for weights that have moved away from those that sampled."""
GROUP = GroupNorm()
FEW = {"samples": 2_000}


def many(name: str) -> Algorithm:
    """The preset with STALE updates per step."""
    return replace(PRESETS[name], epochs=STALE // 4, minibatches=4)


def in_place_of_the_clip(name: str) -> Row:
    """A surrogate of its own against no limit at all, with many updates on the same samples."""
    return Row(name, many(name), unclipped(many(name)), f"REINFORCE, {STALE} updates per step as here", tasks.PAIRS)


def advantage_row(name: str, task: Task, **more: Any) -> Row:
    """An advantage of its own against that of grpo."""
    return against(name, "advantages of grpo", task, advantage=GROUP, **more)


TRUST = ("gspo", "gspo_token", "cispo", "sapo", "vespo", "gmpo", "dppo", "dro", "rec", "r2vpo", "disco", "nft_text")
ROWS = [
    Row("grpo", PRESETS["grpo"], uncompared(PRESETS["grpo"]), "rewards compared with nothing", tasks.GUESS),
    against("dr_grpo", "division by the deviation and by the length", tasks.UNSOLVABLE,
        aggregation=SequenceMean(), advantage=GROUP),
    against("dapo", "no penalty for length", tasks.OVERLONG, shaping=()),
    against("dapo", "every prompt sampled once", tasks.TOO_EASY, planner=Once(),
        changes={"prompts_per_step": 12}),
    Row("rloo", PRESETS["rloo"], uncompared(PRESETS["rloo"]), "rewards compared with nothing", tasks.NOISY),
    advantage_row("opo", tasks.NOISY),
    advantage_row("d3s", tasks.MANY),
    Row("luspo", PRESETS["luspo"], PRESETS["gspo"], "rollouts averaged over their actions", tasks.LONG),
    advantage_row("gpg", tasks.HARD),
    *(in_place_of_the_clip(name) for name in TRUST),
    Row("kl_cov", PRESETS["kl_cov"], unclipped(PRESETS["kl_cov"]), "no penalty", tasks.MANY),
    against("clip_cov", "the clip alone", tasks.MANY, objective=((1.0, Clip()),)),
    against("high_entropy", "all tokens", tasks.MANY, importance=()),
    Row("reinforce_pp", PRESETS["reinforce_pp"], uncompared(PRESETS["reinforce_pp"]), "plain rewards", tasks.NOISY,
        changes={"prompts_per_step": 192}),
    advantage_row("reinforce_pp_baseline", tasks.NOISY),
    Row("pass_at_k", PRESETS["pass_at_k"], PRESETS["grpo"], "advantages of grpo", tasks.BEST_OF_MANY),
    advantage_row("gdpo", tasks.TWO),
    Row("mc_grpo", replace(PRESETS["mc_grpo"], group_size=5), replace(PRESETS["grpo"], group_size=5), "the group's mean",
        tasks.NOISY, changes={"prompts_per_step": 40}),
    advantage_row("ngrpo", tasks.ALL_WRONG),
    advantage_row("bnpo", tasks.HARD),
    Row("canon", replace(PRESETS["canon"], advantage=Halves(by="length", cross=1.0, favour=0.5)), PRESETS["dr_grpo"],
        "one mean for the whole group", tasks.SHORT),
    Row("stratified_grpo", replace(PRESETS["stratified_grpo"], advantage=Strata(pattern="d")),
        replace(PRESETS["stratified_grpo"], advantage=GROUP), "one mean for the whole group", tasks.CALLS),
    advantage_row("a_grae", tasks.HARD),
    advantage_row("seed_grpo", tasks.NOISY),
    advantage_row("copo", tasks.HARD),
    advantage_row("polychromic", tasks.RARE),
    advantage_row("adora", tasks.LONG),
    Row("drpo", PRESETS["drpo"], PRESETS["disco"], "all right answers alike", tasks.SHORT),
    Row("llds", many("llds"), replace(many("llds"), objective=((1.0, Clip()),)), "no penalty", tasks.PAIRS),
    against("reinforce_ada", "every prompt sampled once", tasks.HARD, planner=Once(), advantage=GROUP),
    against("reinforce_ada", "every prompt sampled once", tasks.HARD_STEPS, planner=Once(), advantage=GROUP),
    against("dars", "every prompt sampled once", tasks.HARD_STEPS, planner=Once()),
    against("dars", "every prompt sampled once", tasks.HARD, planner=Once()),
    against("xrpo", "every prompt sampled once, no bonus", tasks.RARE, planner=Once(), advantage=GROUP),
    advantage_row("gtpo", tasks.MANY, importance=()),
    against("spo", "the mean of the step for a baseline", tasks.NOISY, advantage=ReinforcePlusPlus(),
        changes={"prompts_per_step": 96, **FEW}),
    advantage_row("riskpo", tasks.HARD),
    against("hapo", "one clip and one temperature for all tokens, advantages of grpo", tasks.MANY,
        advantage=GROUP, planner=Once(), objective=((1.0, Clip()),), changes=FEW),
    advantage_row("dcpo", tasks.MANY),
    against("hart", "advantages and KL of grpo", tasks.HARD,
        advantage=GROUP, objective=((1.0, Reinforce()), (0.04, ReferenceKL()))),
    against("aepo", "nothing sampled hotter", tasks.MANY, advantage=GROUP, planner=Once()),
    advantage_row("ares", tasks.HARD, changes=FEW),
    Row("remix", PRESETS["remix"],
        replace(PRESETS["remix"], planner=Once(), objective=((1.0, Clip()), (0.04, ReferenceKL()))),
        "rows of this step alone, KL to the base", tasks.FEW_SAMPLES),
    against("ssr", "rows of this step alone", tasks.TOO_EASY, planner=Once(),
        changes={"prompts_per_step": 12, **FEW}),
]  # fmt: skip
"""Presets for text of most ideas."""
ELSEWHERE = {
    "mm_upt": "without labels better than at the start, three seeds: tests/learning/test_unlabelled.py",
    **dict.fromkeys(DISTILLED, "they compare distributions of real models: python -m tests.evidence.teachers"),
}
"""Presets whose evidence is a test of another room."""
