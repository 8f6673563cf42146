"""How far ahead of its training a method may be sampled, and which weights then write which step."""

from dataclasses import dataclass

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.hooks import PlannerHooks, TermHooks, defines, with_hooks

PREVIOUS = "previous"


@dataclass(frozen=True)
class Lag:
    """Which weights write which step: v(j) = max(0, j - k, the last scheduled checkpoint up to j, if sampling waits for those).

    Steps are counted from 0, and weights are named by the steps that they have had.
    """

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


def max_ahead(algorithm: Algorithm) -> int:
    """The most steps that sampling may be ahead of training.

    0 where a part follows weights or scores step by step, or looks at samples with the weights of now; 2 with a correction of the
    sampler's record; 1 for all others.
    """
    if reason_for_none(algorithm):
        return 0
    return 2 if any(reading.model == "rollout" for reading in algorithm.all_reads) else 1


def reason_for_none(algorithm: Algorithm) -> str:
    """Why a method cannot be sampled ahead at all; empty if it can."""
    planner, kind = with_hooks(algorithm.planner, PlannerHooks), type(algorithm.planner).__name__
    rebasing = [type(term).__name__ for _, term in algorithm.objective if with_hooks(term, TermHooks).rebase_after]
    if rebasing:
        return f"{rebasing[0]} changes its reference at the end of a step"
    if PREVIOUS in algorithm.shadows:
        return "it reads the weights of the step before"
    if defines(algorithm.planner, PlannerHooks.watch):
        return f"{kind} plans by what the step before trained on"
    if planner.inspects or planner.views:
        return f"{kind} looks at samples with the network that trains meanwhile"
    weights: str = getattr(algorithm.planner, "model", "policy")
    if weights != "policy":
        return f"{kind} samples with the weights {weights!r}, which the network has that trains meanwhile"
    return ""


def refuse_lag(algorithm: Algorithm, ahead: int) -> None:
    """Raise ValueError if samples may not be drawn so many steps ahead."""
    most = max_ahead(algorithm)
    if ahead <= most:
        return
    reason = reason_for_none(algorithm) or "nothing in it corrects for the sampler's older weights (algorithm.importance)"
    raise ValueError(f"ahead is {ahead}, and the algorithm allows {most}: {reason}; set ahead = {most}, or take another one")
