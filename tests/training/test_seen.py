"""Training prompts that a run without held-out ones answers on the way."""

from pathlib import Path
from typing import Any

import torch

from mmrl.core.ranks import Ranks
from mmrl.core.types import Rollouts
from mmrl.training.callbacks import Examples
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import SEED_STEP, EvaluationSettings, Evaluator, SeenPrompts
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.stopping import AskedToStopError
from mmrl.training.trainer import Records
from tests.support.fakes import FakeTextPolicy, prompts, right_letter
from tests.support.trainers import make_trainer


class Greedy(FakeTextPolicy):
    """Draws from the global generator, too, and notes how much is sampled together."""

    def rollout(self, requests: Any, sampling: Any = None) -> Rollouts:
        torch.rand(3)
        self.together = [*getattr(self, "together", []), [(request.prompt.id, request.seed) for request in requests]]
        return super().rollout(requests, sampling)


def test_answers_have_fixed_seeds_no_scores_and_leave_random_states_alone():
    policy, found = Greedy(), dict[int, Examples]()
    settings = EvaluationSettings(seed=7, batch_size=2)
    seen = SeenPrompts(policy, prompts(3), settings, None, Ranks(), found.__setitem__)
    # beartype, which checks types in tests, draws from Python's own generator
    before = torch.get_rng_state()
    seen(0)
    seen(4)
    assert torch.equal(torch.get_rng_state(), before)
    numbers = [(prompt.id, 7 * SEED_STEP + i) for i, prompt in enumerate(prompts(3))]
    assert policy.together == [numbers[:2], numbers[2:]] * 2
    assert [group.id for group in found[4].groups] == [0, 1, 2]
    assert [group.samples for group in found[0].groups] == [group.samples for group in found[4].groups]
    assert found[0].scores.names == () and found[0].scores.total().isnan().all() and len(found[0].scores.total()) == 3


class Steps:
    """Notes when it is called; asks to stop at one of them."""

    def __init__(self, stop_at: int = -1) -> None:
        self.steps, self.stop_at = list[int](), stop_at

    def __call__(self, step: int) -> None:
        if step == self.stop_at:
            raise AskedToStopError("test")
        self.steps.append(step)


def test_prompts_are_answered_at_the_start_every_few_steps_and_at_the_end():
    seen = Steps()
    make_trainer(steps=5, samples_every=2, records=Records(seen=seen)).fit()
    assert seen.steps == [0, 2, 4, 5]


def test_a_run_that_is_stopped_there_answers_once_more_when_it_goes_on(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    first = make_trainer(steps=4, samples_every=2, records=Records(checkpoints=checkpoints, seen=Steps(stop_at=2)))
    first.fit()
    assert first.is_stopped and checkpoints.steps() == [2]
    again = make_trainer(steps=4, samples_every=2, records=Records(seen=(seen := Steps())))
    again.load_state_dict(checkpoints.load())
    again.fit()
    assert seen.steps == [2, 4]


def test_a_run_with_held_out_prompts_answers_none_of_those_it_trains_on():
    policy, seen, settings = FakeTextPolicy(), Steps(), EvaluationSettings()
    evaluator = Evaluator(policy, prompts(2), RewardRunner([NamedReward("letter", right_letter)]), settings)
    records = Records(seen=seen)
    make_trainer(steps=2, samples_every=1, policy=policy, evaluator=evaluator, records=records).fit()
    assert seen.steps == []
