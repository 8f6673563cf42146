"""A few training prompts, answered with fixed seeds every few steps, so that a run without held-out prompts can be looked at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mmrl.core.protocols import Policy
from mmrl.core.ranks import Ranks
from mmrl.core.types import Prompt, Scores
from mmrl.runtime.process_state import keep_random_state
from mmrl.runtime.spans import in_span
from mmrl.training.callbacks import Examples
from mmrl.training.evaluate import EvaluationSettings, request_for, rollouts_of


@dataclass(frozen=True)
class SeenPrompts:
    """The prompts, and how they are answered: as held-out ones are, one sample each.

    No reward scores them: a good score on prompts that train says nothing, and rewards may remember. The run trains as if they
    had never been asked.
    """

    policy: Policy
    prompts: Sequence[Prompt]
    settings: EvaluationSettings
    sampling: object
    ranks: Ranks
    keep: Callable[[int, Examples], None]
    """Called with the step and the answers, on the main process."""

    @in_span("evaluate")
    def __call__(self, step: int) -> None:
        """Answer every prompt with the weights after this step; every process must call it."""
        mine = range(len(self.prompts))[self.ranks.rank :: self.ranks.world]
        requests = [request_for(self.settings, self.prompts[i], i, self.settings.weights) for i in mine]
        with keep_random_state():
            parts = list(rollouts_of(self.policy, requests, self.sampling, self.settings.batch_size, self.ranks))
        answers = self.ranks.gather([group for part in parts for group in part.groups])
        groups = sorted((group for own in answers for group in own), key=lambda group: group.id)
        if self.ranks.is_main:
            self.keep(step, Examples(groups, no_scores(sum(len(group.samples) for group in groups))))


def no_scores(rows: int) -> Scores:
    """The scores of samples that no reward looks at."""
    nothing = torch.zeros(rows, 0)
    return Scores((), nothing, nothing.long(), torch.zeros(0))
