"""A judge on a server, asked beside the updates: it overlaps with them, and holds up no stop."""

import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.core.samples import Scored
from mmrl.core.types import Group
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.serving.judges.judge import Endpoint, Question, ask_for_scores
from mmrl.training.ahead import producer
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.stopping import TrainingStoppedError
from mmrl.training.trainer import Records, Trainer
from tests.attacks.client import COMPLETION
from tests.support import fakes
from tests.support.published import ENDS_S, PublishingPolicy, await_thread
from tests.support.rude_servers import answers, rude
from tests.support.trainers import make_trainer

PROMPTS = 4
"""Of a step: a question for each."""


def judged(url: str, ahead: int, steps: int, policy: fakes.FakeTextPolicy | None = None, **more: Any) -> Trainer:
    """A trainer whose samples a server judges, with one question per group."""
    endpoint = Endpoint(f"{url}/v1", "m", retries=0)

    def judge(group: Group) -> list[float]:
        [scored] = ask_for_scores(endpoint, [Question(group.prompt.text)], lambda reply: Scored(float(reply.text)))
        return [(scored.value or 0.0) + reward for reward in fakes.right_letter(group)]

    correction = RolloutCorrection(mode="token_truncate", high=2.0)
    algorithm = replace(PRESETS["grpo"], old="reread", importance=(correction,))
    policy = policy or PublishingPolicy()
    return make_trainer(algorithm, judge, policy=policy, steps=steps, ahead=ahead, prompts_per_step=PROMPTS, **more)


def test_a_judge_answers_while_the_step_before_is_trained():
    """Each answer waits for the update of the step before to begin, and each update for a question about the step behind it."""
    steps, met = 4, list[bool]()
    asked, begun = ([threading.Event() for _ in range(steps + 1)] for _ in range(2))

    def update(what: str) -> None:
        if what == "read" and torch.is_grad_enabled():
            begun[trainer.index].set()
            met.append(asked[trainer.index + 1].wait(ENDS_S))

    def judge(connection: socket.socket, request: bytes) -> None:
        step = (len(server.requests) - 1) // PROMPTS
        asked[step].set()
        met.append(step == 0 or begun[step - 1].wait(ENDS_S))
        answers(200, COMPLETION)(connection, request)

    asked[steps].set()
    with rude(judge) as server:
        trainer = judged(server.url, 1, steps, PublishingPolicy(waits=update))
        trainer.fit()
    assert all(met) and len(met) == steps + steps * PROMPTS == steps + len(server.requests)


QUESTIONS = 6 * PROMPTS
MOMENTS = [pytest.param(n, marks=() if n in (2, 9, 17) else pytest.mark.evidence) for n in range(QUESTIONS - 4)]


@pytest.fixture(scope="module")
def undisturbed() -> list[Tensor]:
    with rude(answers(200, COMPLETION)) as server:
        trainer = judged(server.url, 2, QUESTIONS // PROMPTS)
        trainer.fit()
    return [weight.detach() for weight in trainer.policy.parameters()]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_judge_that_dies_at_some_question_leaves_no_trace(moment: int, undisturbed: list[Tensor], tmp_path: Path):
    """With max_failed = 0 the run stops, and goes on when a judge answers again, at another address."""

    def dies(connection: socket.socket, request: bytes) -> None:
        if len(server.requests) <= moment:
            answers(200, COMPLETION)(connection, request)

    kept = Records(checkpoints=Checkpoints(tmp_path))
    with rude(dies) as server:
        first = judged(server.url, 2, QUESTIONS // PROMPTS, records=kept, save_every=1)
        for reward in first.collector.rewards.rewards:
            reward.__dict__["max_failed"] = 0.0
        with pytest.raises(ValueError, match="cannot be reached"):
            first.fit()
    with rude(answers(200, COMPLETION)) as server:
        again = judged(server.url, 2, QUESTIONS // PROMPTS)
        if kept.checkpoints is not None and kept.checkpoints.steps():
            again.load_state_dict(kept.checkpoints.load())
        again.fit()
    assert all(torch.equal(one, other) for one, other in zip(again.policy.parameters(), undisturbed, strict=True))


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_judge_that_is_gone_at_an_evaluation_ends_the_run_which_is_saved(ahead: int, tmp_path: Path):
    asked = list[str]()

    def gone_at_the_second(group: Group) -> list[float]:
        asked.append(group.prompt.id)
        if len(asked) == PROMPTS + 1:
            raise RewardUnavailableError("the judge is gone")
        return fakes.right_letter(group)

    def trainer(url: str, records: Records = Records()) -> Trainer:
        policy, rewards = (
            PublishingPolicy() if ahead else fakes.FakeTextPolicy(),
            RewardRunner([NamedReward("held", gone_at_the_second)]),
        )
        evaluator = Evaluator(policy, fakes.prompts()[:PROMPTS], rewards, EvaluationSettings())
        return judged(url, ahead, 4, policy, evaluator=evaluator, records=records, evaluate_every=2)

    kept = Records(checkpoints=Checkpoints(tmp_path))
    with rude(answers(200, COMPLETION)) as server:
        with pytest.raises(TrainingStoppedError, match="evaluation after step 2: the judge is gone; saved after step 2: mend it"):
            trainer(server.url, kept).fit()
        again = trainer(server.url)
        again.load_state_dict(Checkpoints(tmp_path).load())
        again.fit()
        num_asked, whole = len(asked), trainer(server.url)
        whole.fit()
    assert num_asked == 4 * PROMPTS, "after 0, 2 (twice) and 4 steps, all groups of each"
    assert all(torch.equal(one, other) for one, other in zip(again.policy.parameters(), whole.policy.parameters(), strict=True))


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_stop_does_not_wait_for_a_judge_that_never_answers(ahead: int, monkeypatch: pytest.MonkeyPatch):
    ended, left = threading.Event(), threading.Event()
    monkeypatch.setattr(producer, "CLOSE_S", 0.01)

    def judge(connection: socket.socket, request: bytes) -> None:
        if len(server.requests) <= 2 * PROMPTS:
            answers(200, COMPLETION)(connection, request)
            return
        until = time.monotonic() + ENDS_S
        # what was answered is trained on first, however far ahead this was asked
        while trainer.index < 2 and time.monotonic() < until:
            time.sleep(0.01)
        while not ended.is_set() and time.monotonic() < until:
            # again, should the first one come at a moment that is never interrupted
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            ended.wait(0.5)
        left.set()

    before = signal.getsignal(signal.SIGUSR1)
    with rude(judge) as server:
        trainer = judged(server.url, ahead, steps=5)
        signal.signal(signal.SIGUSR1, lambda number, frame: trainer.stop.ask("SIGUSR1", frame) and None)
        trainer.fit()
        assert trainer.is_stopped and not left.is_set(), "the judge still thinks"
        # before it hangs up, for which a thread that was left behind may ask again
        assert trainer.index == 2 and len(server.requests) == 2 * PROMPTS + 1
        torch.rand(1)
        random = torch.get_rng_state()
        ended.set()
        assert left.wait(ENDS_S)
    await_thread()
    assert torch.equal(torch.get_rng_state(), random), "a thread that was left behind puts nothing back"
    signal.signal(signal.SIGUSR1, before)
