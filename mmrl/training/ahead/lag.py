"""Which weights write which step: v(j) = max(0, j - k, the last scheduled checkpoint up to j, where sampling waits for those)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lag:
    """Steps are counted from 0, and weights are named by the steps that they have had."""

    ahead: int
    steps: int
    drains: int = 0
    """The distance of steps before which none is in flight; 0: there are none."""

    def writes(self, step: int) -> int:
        """The weights that write a step."""
        return max(0, step - self.ahead, step // self.drains * self.drains if self.drains else 0)

    def reach(self, step: int) -> int:
        """The last step that may be collected while this one trains."""
        last = min(step + self.ahead, self.steps - 1)
        return min(last, (step // self.drains + 1) * self.drains - 1) if self.drains else last

    def first(self, step: int) -> list[int]:
        """The weights that write at first, in a run that begins at this step."""
        return sorted({version for i in range(self.ahead) if (version := self.writes(step + i)) <= step})
