"""The cost of a plan in network forwards."""

from dataclasses import dataclass

from mmrl.flow.layout import lay_out
from mmrl.flow.plan import RolloutPlan


@dataclass(frozen=True)
class Forwards:
    """Network forwards for one group, guidance passes included."""

    images: int
    rollout: int
    update: int
    """Forwards that also have a backward."""
    frozen: int = 0
    """Forwards of reference, averaged or old weights."""
    transitions: int = 0
    """Actions that train."""

    @property
    def per_image(self) -> float:
        return self.rollout / self.images


def forwards(plan: RolloutPlan, group_size: int, guided: bool = False, frozen_models: int = 0) -> Forwards:
    """The cost of a group in network forwards; `guided` = a second pass without the prompt, `frozen_models` = others read."""
    layout = lay_out(plan, [group_size], [0])
    rollout = sum(len(layout.owners(column)) for column in range(plan.num_steps))
    trained = int(layout.trained.sum()) if plan.forward is None else group_size * plan.forward.count
    passes = 2 if guided else 1
    return Forwards(group_size, passes * rollout, passes * trained, passes * trained * frozen_models, trained)
