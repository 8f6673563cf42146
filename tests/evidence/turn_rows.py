"""Methods of several turns: each against the same with one turn, or with the credit or bonus of plain GRPO."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.segments import GiGPO
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.hints import AskedHalves
from mmrl.algorithms.planners.segments import BranchWhereUnsure
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.statistics import with_column
from mmrl.algorithms.turns import uses
from mmrl.algorithms.weights.aggregate import SequenceMean
from mmrl.core.types import Reading, Rollouts, Scores
from tests.evidence import turn_tasks as tasks
from tests.evidence.task import Row, against
from tests.support.fakes import LETTERS


@dataclass(frozen=True)
class Always:
    """Half a reward for every sample that used a tool, whether it helped or not."""

    reads: tuple[Reading, ...] = ()

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        return with_column(scores, self, "used", uses(rollouts), 0.5)


def against_one_turn(name: str, task: tasks.PlayTask) -> Row:
    """The method on its world, and the same without one."""
    return against(name, "one turn, without the world", task, planner=tasks.Alone())


LETTERS_ARPO = replace(PRESETS["arpo"], planner=BranchWhereUnsure(vocabulary=len(LETTERS)))
"""For a model of five tokens."""
UI_S1 = PRESETS["ui_s1"].advantage
assert isinstance(UI_S1, GiGPO)
ASKED = replace(PRESETS["geometry_zero"], planner=AskedHalves(with_text="The first letter is d", without_text="Answer."))
"""In words that the policy of letters follows."""
ROWS = [
    against("gigpo", "episodes compared with episodes alone", tasks.ROOMS, advantage=GroupNorm(scale="none")),
    against("hgpo", "advantages of gigpo", tasks.PATHS, advantage=GiGPO(deviation=True)),
    against_one_turn("deepeyes", tasks.LOOK),
    against_one_turn("thyme", tasks.CODE),
    against_one_turn("openthinkimg", tasks.FORMS),
    against_one_turn("hart", tasks.CROP),
    against("vr_thinker", "no bonus for looking", tasks.SELDOM, shaping=()),
    Row("arpo", LETTERS_ARPO, replace(LETTERS_ARPO, planner=Once()), "whole episodes alone", tasks.CROP),
    against("ui_s1", "returns that go on behind a wrong action", tasks.REPAIRED, advantage=replace(UI_S1, cut="")),
    against("mobile_agent_v3", "every trajectory counts the same, however long", tasks.SCREENS, aggregation=SequenceMean()),
    against("mobile_agent_v3", "nothing comes back", tasks.SCREEN, planner=Once()),
    against("arpo_gui", "nothing comes back", tasks.SCREEN, planner=Once()),
    Row("geometry_zero", ASKED, replace(PRESETS["geometry_zero"], planner=Once(), shaping=(Always(),)),
        "a bonus wherever the tool is used, and nobody is asked", tasks.HELPS),
]  # fmt: skip
"""Presets of turns."""
