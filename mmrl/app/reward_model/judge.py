"""A judge that was trained here: a run's policy that answers questions in place of a model on a server."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from mmrl.app.config import run as configs
from mmrl.app.reward_model.scorer import PolicyNet, hold_policy
from mmrl.app.run.folder import RunDir
from mmrl.core.types import Prompt, Request, Sample
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import Sampling, TextPolicyConfig
from mmrl.runtime.process_state import keep_random_state
from mmrl.serving.scorers.models import HeldModel


@dataclass(frozen=True)
class Judge:
    """Answers questions with a run's policy, sampled as the run's held-out prompts are."""

    policy: TextPolicy
    sampling: Sampling | None
    held: HeldModel

    def answers(self, questions: Sequence[Prompt], batch_size: int = 8) -> list[Sample]:
        """One answer per question, in order, `batch_size` at a time; equal questions get equal answers."""
        return [found for i in range(0, len(questions), batch_size) for found in self._some(questions[i : i + batch_size])]

    def _some(self, questions: Sequence[Prompt]) -> list[Sample]:
        requests = [Request(question, 1, i, seed=0) for i, question in enumerate(questions)]
        with keep_random_state(), self.held.ready():
            groups = self.policy.rollout(requests, self.sampling).groups
        return [group.samples[0] for group in sorted(groups, key=lambda group: group.id)]


def judge_of(run: Path, step: int | None = None, device: str = "auto") -> Judge:
    """The judge of a run's checkpoint `step`, or of its newest; loaded once per process.

    Raises:
        FileNotFoundError: there is no such run.
        ValueError: its model draws; CheckpointError where the checkpoint is damaged or not there.
    """
    config = configs.load(str(RunDir.open(run).config_file)).config
    if not isinstance(config.policy, TextPolicyConfig):
        raise ValueError(f"{run} trained a model that draws, and a judge writes: name a run whose policy.kind is text")
    held = hold_policy(run, config, step, device)
    return Judge(cast(PolicyNet, held.model).policy, config.evaluation.sampling, held)
