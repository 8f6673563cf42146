"""Sampling beside training: the same weights whatever takes how long, after a stop or beside a judge, and no other rows."""

import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.learned import Thompson
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.app.run.signals import listen
from mmrl.core.ranks import Ranks
from mmrl.core.readings import WEIGHTS_VERSION
from mmrl.core.samples import Scored
from mmrl.core.types import Group, Rollouts
from mmrl.runtime.blame import RewardUnavailableError, UnavailableError
from mmrl.serving.judges.judge import Endpoint, Question, ask_for_scores
from mmrl.training.ahead import producer
from mmrl.training.ahead.producer import OtherVersionError
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.checkpoints.state import copy_state
from mmrl.training.collect import Collected
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.stopping import AskedToStopError, TrainingStoppedError
from mmrl.training.trainer import Records, Trainer
from tests.attacks.client import COMPLETION
from tests.support import fakes
from tests.support.published import ENDS_S, PublishingPolicy, await_thread, random_waits
from tests.support.refused import refused
from tests.support.rude_servers import answers, rude
from tests.support.trainers import make_trainer, weights

CORRECTION = RolloutCorrection(mode="token_truncate", high=2.0)


def corrected(name: str = "grpo") -> Algorithm:
    algorithm = PRESETS[name]
    return replace(algorithm, old="reread", importance=(*algorithm.importance, CORRECTION))


def moody(group: Group) -> list[float]:
    """The right letter, and a number of the reward's own; Python's generator serves the checks of types besides."""
    return [reward + 0.01 * np.random.random() for reward in fakes.right_letter(group)]


def make(ahead: int, steps: int = 6, algorithm: Algorithm | None = None, evaluates: bool = False, **more: Any) -> Trainer:
    policy = more.pop("policy", None) or PublishingPolicy()
    np.random.seed(0)
    trainer = make_trainer(algorithm or corrected(), policy=policy, steps=steps, ahead=ahead, **more)
    if evaluates:
        trainer.evaluator = Evaluator(policy, fakes.prompts()[:2], trainer.collector.rewards, EvaluationSettings(), "greedy")
    return trainer


def run(trainer: Trainer) -> Tensor:
    trainer.fit()
    return weights(trainer)


def test_without_a_lag_there_is_no_thread():
    trainer, before = make_trainer(corrected()), set(threading.enumerate())
    trainer.step()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("ahead", "name"), [(1, "grpo"), (2, "grpo"), (1, "dapo")])
def test_latencies_decide_nothing(ahead: int, name: str):
    ends = list[Tensor]()
    for seed in range(3):
        policy = PublishingPolicy(waits=random_waits(seed))
        sampler = Thompson(fakes.prompts(), seed=0)
        more: dict[str, Any] = {"policy": policy, "sampler": sampler, "function": moody}
        ends.append(run(make(ahead, algorithm=corrected(name), evaluates=True, evaluate_every=2, **more)))
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])
    plain = make(0, algorithm=corrected(name), policy=fakes.FakeTextPolicy(), sampler=Thompson(fakes.prompts(), seed=0))
    assert not torch.equal(ends[0], run(plain)), "the lag is real"


def test_steps_are_written_by_the_weights_of_so_many_steps_before(monkeypatch: pytest.MonkeyPatch):
    trainer = make(2, algorithm=replace(corrected(), epochs=2))
    rows, audit, found = list[Rollouts](), trainer.audit, list[tuple[set[float], float]]()
    monkeypatch.setattr(trainer, "audit", lambda rollouts, step: rows.append(rollouts) or audit(rollouts, step))
    for _ in range(6):
        metrics = trainer.step()
        versions = rows[-1].recorded[WEIGHTS_VERSION]
        found.append((set(versions.flatten().tolist()), metrics["rollout/staleness"]))
    trainer.producer.close()
    assert found == [({0.0}, 0.0), ({0.0}, 1.0), ({0.0}, 2.0), ({2.0}, 2.0), ({4.0}, 2.0), ({6.0}, 2.0)]


@pytest.mark.parametrize(("ahead", "drains"), [(1, False), (2, False), (2, True)])
def test_a_run_that_goes_on_ends_with_the_same_weights(ahead: int, drains: bool, monkeypatch: pytest.MonkeyPatch):
    more: dict[str, Any] = {"function": moody, "evaluates": True, "evaluate_every": 2, "save_every": 4, "ahead_drain": drains}
    whole = run(make(ahead, sampler=Thompson(fakes.prompts(), seed=0), **more))
    first, states = make(ahead, sampler=Thompson(fakes.prompts(), seed=0), **more), dict[int, Any]()
    wanted = first.records.requests

    def note() -> Collection[str]:
        states[first.index] = copy_state(first.state_dict())
        return wanted()

    monkeypatch.setattr(first, "records", replace(first.records, requests=note))
    assert torch.equal(run(first), whole)
    for stop in (1, 2, 4):
        again = make(ahead, policy=PublishingPolicy(waits=random_waits(5)), sampler=Thompson(fakes.prompts(), seed=0), **more)
        np.random.seed(99)
        again.load_state_dict(states[stop])
        assert torch.equal(run(again), whole), f"stopped after step {stop}"
    assert bool(states[4]["versions"]) is not drains, "with no step in flight the live weights are enough"
    refused(f"of a run with ahead = {ahead}, and this one has 0: set ahead = {ahead}", make(0, **more).load_state_dict, states[2])
    states[1]["ahead"]["random"] = states[1]["ahead"]["random"][0]
    refused(r"ahead.random is not a list .* another version of mmrl wrote it", make(ahead, **more).load_state_dict, states[1])


def test_before_a_scheduled_checkpoint_nothing_is_in_flight():
    trainer = make(2, steps=8, save_every=3, ahead_drain=True)
    assert [trainer.step()["rollout/staleness"] for _ in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]
    state = copy_state(trainer.state_dict())
    trainer.producer.close()
    state["versions"] = []
    with pytest.raises(ValueError, match=r"lacks the weights after step 6, .* another save_every with ahead_drain"):
        make(2, steps=8, save_every=3, ahead_drain=True).load_state_dict(state)


def kept(trainer: Trainer, patch: pytest.MonkeyPatch) -> list[Any]:
    """The states that a trainer saves from now on."""
    states = list[Any]()

    def save(before: Any = None, final: bool = False) -> None:
        states.append(copy_state(trainer.state_dict() | (before or {})))

    patch.setattr(trainer, "save", save)
    return states


def test_a_thread_that_was_left_behind_does_not_go_on_in_a_run_that_began_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producer, "CLOSE_S", 0.0)
    whole, held, go, written = run(make(2)), threading.Event(), threading.Event(), list[str]()

    def waits(what: str) -> None:
        written.append(what)
        if what == "rollout" and written.count(what) == 3:
            held.set()
            go.wait(ENDS_S)

    trainer = make(2, policy=PublishingPolicy(waits=waits))
    state = copy_state(trainer.state_dict())
    trainer.step()
    assert held.wait(ENDS_S)
    trainer.load_state_dict(state)
    go.set()
    await_thread()
    assert torch.equal(run(trainer), whole)


def test_a_signal_ends_a_run_whose_samples_never_come(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producer, "CLOSE_S", 0.1)
    whole, never = run(make(2, function=moody)), threading.Event()
    written = list[str]()

    def hangs(what: str) -> None:
        written.append(what)
        # once: a second signal would end the program
        if what == "rollout" and written.count(what) == 5:
            os.kill(os.getpid(), signal.SIGINT)
            never.wait()

    first = make(2, function=moody, policy=PublishingPolicy(waits=hangs))
    states = kept(first, monkeypatch)
    with listen(first.stop):
        first.fit()
    never.set()
    await_thread()
    assert first.is_stopped and first.index < 5
    again = make(2, function=moody)
    again.load_state_dict(states[-1])
    assert torch.equal(run(again), whole)


def test_a_stop_within_a_step_loses_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producer, "CLOSE_S", 0.0)
    whole = run(make(1, function=moody))
    first = make(1, function=moody)
    states, take = kept(first, monkeypatch), first.producer.take

    def interrupt(*args: Any) -> Collected:
        if first.index == 3:
            raise AskedToStopError("SIGINT")
        return take(*args)

    monkeypatch.setattr(first.producer, "take", interrupt)
    first.fit()
    await_thread()
    assert first.is_stopped
    again = make(1, function=moody)
    again.load_state_dict(states[-1])
    assert torch.equal(run(again), whole)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("lost", "version 1, and ahead = 1 says 2: an update was lost"),
        ("twice", "version 3, and ahead = 1 says 2: .* or given twice"),
    ],
)
def test_a_publication_that_is_lost_or_applied_twice_is_refused_by_name(fault: str, words: str):
    policy = PublishingPolicy()
    setattr(policy, fault, frozenset({2}))
    refused(f"step 4: .* {words}", make(1, policy=policy).fit, error=OtherVersionError)


@pytest.mark.parametrize("ahead", [1, 2])
def test_older_weights_under_the_name_of_later_ones_do_not_fit_their_record(ahead: int):
    """Versions say nothing here, so the first steps are read again under the weights that are named."""
    with pytest.raises(TrainingStoppedError, match=r"Likely cause: another version .* with the weights after 0 steps"):
        make(ahead, policy=PublishingPolicy(denied=frozenset({1}))).fit()


def test_errors_of_the_thread_reach_the_trainer_with_their_trace():
    calls = list[str]()

    def breaks(what: str) -> None:
        calls.append(what)
        if what == "rollout" and calls.count(what) == 3:
            raise UnavailableError("no server answers")

    raised = refused("step 3: no server answers", make(1, policy=PublishingPolicy(waits=breaks)).fit, error=TrainingStoppedError)
    assert raised.value.__cause__ is not None
    assert "sample_and_score" in [frame.name for frame in traceback.extract_tb(raised.value.__cause__.__traceback__)]


def test_what_cannot_be_sampled_ahead_is_refused(monkeypatch: pytest.MonkeyPatch):
    class Remembers:
        def __call__(self, group: Group) -> list[float]:
            return fakes.right_letter(group)

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    peeking = type("Peeks", (Once,), {"asked": lambda self, request: [replace(request, view="blind")]})
    peeks = make(1, algorithm=replace(corrected(), planner=peeking()))
    refused("Peeks asks for samples of the view 'blind', .* set ahead = 0", peeks.fit)
    refused("of a run with ahead = 0, and this one has 1: set ahead = 0", make(1).load_state_dict, make(0).state_dict())
    monkeypatch.setattr(Ranks, "apart", lambda ranks: pytest.fail("a group for threads was made"))
    refused(
        "ahead is 2, and the algorithm allows 1: nothing in it corrects", make, 2, algorithm=replace(corrected(), importance=())
    )
    refused("FakeTextPolicy writes with the network that trains", make, 1, policy=fakes.FakeTextPolicy())
    refused(r"reward 'letter' has a state_dict, .* set ahead = 0", make, 1, function=Remembers())


PROMPTS = 4
"""Of a step: a question for each."""


def judged(url: str, ahead: int, steps: int, policy: fakes.FakeTextPolicy | None = None, **more: Any) -> Trainer:
    """A trainer whose samples a server judges, with one question per group."""
    endpoint = Endpoint(f"{url}/v1", "m", retries=0)

    def judge(group: Group) -> list[float]:
        [scored] = ask_for_scores(endpoint, [Question(group.prompt.text)], lambda reply: Scored(float(reply.text)))
        return [(scored.value or 0.0) + reward for reward in fakes.right_letter(group)]

    policy = policy or PublishingPolicy()
    return make_trainer(corrected(), judge, policy=policy, steps=steps, ahead=ahead, prompts_per_step=PROMPTS, **more)


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
def undisturbed() -> Tensor:
    with rude(answers(200, COMPLETION)) as server:
        return run(judged(server.url, 2, QUESTIONS // PROMPTS))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_judge_that_dies_at_some_question_leaves_no_trace(moment: int, undisturbed: Tensor, tmp_path: Path):
    """With max_failed = 0 the run stops, and goes on when a judge answers again, at another address."""

    def dies(connection: socket.socket, request: bytes) -> None:
        if len(server.requests) <= moment:
            answers(200, COMPLETION)(connection, request)

    checkpoints = Checkpoints(tmp_path)
    with rude(dies) as server:
        first = judged(server.url, 2, QUESTIONS // PROMPTS, records=Records(checkpoints=checkpoints), save_every=1)
        for reward in first.collector.rewards.rewards:
            reward.__dict__["max_failed"] = 0.0
        refused("cannot be reached", first.fit)
    with rude(answers(200, COMPLETION)) as server:
        again = judged(server.url, 2, QUESTIONS // PROMPTS)
        if checkpoints.steps():
            again.load_state_dict(checkpoints.load())
        assert torch.equal(run(again), undisturbed)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_judge_that_is_gone_at_an_evaluation_ends_the_run_which_is_saved(ahead: int, tmp_path: Path):
    asked = list[str]()

    def gone_at_the_second(group: Group) -> list[float]:
        asked.append(group.prompt.id)
        if len(asked) == PROMPTS + 1:
            raise RewardUnavailableError("the judge is gone")
        return fakes.right_letter(group)

    def trainer(url: str, records: Records = Records()) -> Trainer:
        policy = PublishingPolicy() if ahead else fakes.FakeTextPolicy()
        rewards = RewardRunner([NamedReward("held", gone_at_the_second)])
        evaluator = Evaluator(policy, fakes.prompts()[:PROMPTS], rewards, EvaluationSettings())
        return judged(url, ahead, 4, policy, evaluator=evaluator, records=records, evaluate_every=2)

    records = Records(checkpoints=Checkpoints(tmp_path))
    with rude(answers(200, COMPLETION)) as server:
        with pytest.raises(TrainingStoppedError, match="evaluation after step 2: the judge is gone; saved after step 2: mend it"):
            trainer(server.url, records).fit()
        again = trainer(server.url)
        again.load_state_dict(Checkpoints(tmp_path).load())
        again.fit()
        assert len(asked) == 4 * PROMPTS, "after 0, 2 (twice) and 4 steps, all groups of each"
        assert torch.equal(weights(again), run(trainer(server.url)))


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
