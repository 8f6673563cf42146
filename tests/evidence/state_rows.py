"""Methods that remember, or whose clip or penalty differs by action, each on a task made for its claim."""

from dataclasses import replace

from mmrl.algorithms.advantages.group import GroupNorm, ReinforcePlusPlus
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip, Reinforce
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.presets import PRESETS
from tests.evidence import text_tasks as tasks
from tests.evidence.task import Row

GROUP = GroupNorm()
FEW = {"samples": 2_000}
ONE = {"prompts_per_step": 96, **FEW}
ROWS = [
    Row("spo", PRESETS["spo"], replace(PRESETS["spo"], advantage=ReinforcePlusPlus()), "the mean of the step for a baseline",
        tasks.NOISY, changes=ONE),
    Row("riskpo", PRESETS["riskpo"], replace(PRESETS["riskpo"], advantage=GROUP), "advantages of grpo", tasks.HARD),
    Row("hapo", PRESETS["hapo"], replace(PRESETS["hapo"], advantage=GROUP, planner=Once(), objective=((1.0, Clip()),)),
        "one clip and one temperature for all tokens, advantages of grpo", tasks.MANY, changes=FEW),
    Row("dcpo", PRESETS["dcpo"], replace(PRESETS["dcpo"], advantage=GROUP), "advantages of grpo", tasks.MANY),
    Row("hart", PRESETS["hart"], replace(PRESETS["hart"], advantage=GROUP, objective=((1.0, Reinforce()), (0.04, ReferenceKL()))),
        "advantages and KL of grpo", tasks.HARD),
    Row("aepo", PRESETS["aepo"], replace(PRESETS["aepo"], advantage=GROUP, planner=Once()), "nothing sampled hotter", tasks.MANY),
    Row("ares", PRESETS["ares"], replace(PRESETS["ares"], advantage=GROUP), "advantages of grpo", tasks.HARD, changes=FEW),
    Row("remix", PRESETS["remix"],
        replace(PRESETS["remix"], planner=Once(), objective=((1.0, Clip()), (0.04, ReferenceKL()))),
        "rows of this step alone, KL to the base", tasks.FEW_SAMPLES),
    Row("ssr", PRESETS["ssr"], replace(PRESETS["ssr"], planner=Once()), "rows of this step alone", tasks.TOO_EASY,
        changes={"prompts_per_step": 12, **FEW}),
]  # fmt: skip
