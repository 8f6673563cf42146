"""When a stage may end early: a figure of prompts that score nothing else is high enough."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mmrl.core.protocols import State
from mmrl.core.types import Prompt
from mmrl.training.evaluate import Evaluator
from mmrl.training.settings import Until

Note = Callable[[int, Mapping[str, float]], None]
log = logging.getLogger("mmrl")


@dataclass
class Goal:
    """Looks every few steps whether a stage has reached what it was for."""

    until: Until
    evaluator: Evaluator
    """Of the prompts to look at."""
    note: Note
    """Called on every process with the step and the metric `until/<name>`."""
    place: str = ""
    """The stage, for messages."""
    is_reached: bool = False
    looked_at: int = 0
    """The last step that was looked at."""

    def is_due(self, step: int, own_steps: int) -> bool:
        """Is this the time to look? `own_steps` are those since the stage began."""
        return own_steps > 0 and own_steps % self.until.every == 0 and self.looked_at != step and not self.is_reached

    def look(self, step: int) -> None:
        """Score the prompts, the same on all processes; ValueError where the metric is none of theirs."""
        metrics, _ = self.evaluator.run(step)
        name = self.until.metric.removeprefix("eval/")
        if f"eval/{name}" not in metrics:
            known = ", ".join(sorted(one.removeprefix("eval/") for one in metrics))
            raise ValueError(f"until.metric is {self.until.metric!r}, and what is measured is {known}: take one of them")
        value = metrics[f"eval/{name}"]
        self.is_reached, self.looked_at = value >= self.until.at_least, step
        self.note(step, {f"until/{name}": value})

    def say(self) -> None:
        """Warn where the stage ended without it."""
        if not self.is_reached:
            wanted = f"{self.until.metric} of {self.until.at_least:g}"
            log.warning(f"{self.place} has not reached a {wanted} in its {self.until.most} steps: the chain goes on as it is")

    def state_dict(self) -> State:
        return {"is_reached": self.is_reached, "looked_at": self.looked_at}

    def load_state_dict(self, state: State) -> None:
        self.is_reached, self.looked_at = state["is_reached"], state["looked_at"]


def goal_of(until: Until, evaluator: Evaluator, prompts: Sequence[Prompt], note: Note, place: str) -> Goal:
    """The goal of a stage, whose prompts are answered and scored as the evaluator's."""
    own = replace(evaluator, prompts=prompts, settings=replace(evaluator.settings, by=()), variants=())
    return Goal(until, own, note, place)
