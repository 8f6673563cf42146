"""Is the IoU of the predicted box with the true one at least a half? A reward that says no more than that."""

from dataclasses import dataclass

from mmrl import Group, Scored
from mmrl.answers.boxes.attempts import AnySpace, Attempt, score_attempts
from mmrl.answers.boxes.box import iou


@dataclass(frozen=True)
class RightBox:
    """1 where it is, else 0; the IoU is written down beside it."""

    space: AnySpace = "auto"

    def __call__(self, group: Group) -> list[float | Scored | None]:
        return score_attempts(group, self.space, None, self._score)

    def _score(self, attempt: Attempt) -> Scored:
        value = attempt.best(iou)
        return Scored(float(value >= 0.5), {"iou": value, **attempt.parts()})
