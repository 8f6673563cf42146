"""SIGTERM and Ctrl-C: the run saves where it can go on exactly, says how, and ends with 0."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.app.commands import train as commands
from mmrl.app.commands.train import TrainArguments
from mmrl.app.run.signals import Listener, listen
from mmrl.app.toml.tables import said_last
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group
from mmrl.training.callbacks import Callback
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.stopping import AskedToStopError, Stop
from mmrl.training.trainer import Records, Trainer
from tests.reliability.soak import words
from tests.support import forked
from tests.support.fakes import FakeTextPolicy, PlayedRanks, prompts, right_letter
from tests.support.trainers import weights


class Log(Callback):
    """Remembers metrics; times are left out."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []

    def after_step(self, step: int, metrics: Any, examples: Any) -> None:
        self.lines.append((step, {name: x for name, x in metrics.items() if not name.startswith("time/")}))

    def after_evaluation(self, step: int, metrics: Any, examples: Any) -> None:
        self.after_step(step, metrics, examples)


def make(folder: Path | None, log: Log, at: Callable[[str], None] = lambda place: None) -> Trainer:
    """A run with several updates per step that evaluates after every second one; `at` is told of places it comes by."""

    class Policy(FakeTextPolicy):
        def rollout(self, requests: Any, sampling: Any = None) -> Any:
            at("rollout" if sampling is None else "evaluation")
            return super().rollout(requests, sampling)

        def advance(self) -> None:
            at("update")
            super().advance()

    def reward(group: Group) -> list[float]:
        at("reward")
        return right_letter(group)

    algorithm, policy = replace(PRESETS["grpo"], minibatches=2), Policy(shadows=frozenset({"ref", "ema"}))
    runner = RewardRunner([NamedReward("letter", reward)])
    settings = TrainSettings(steps=5, prompts_per_step=3, micro_batch=1000, evaluate_every=2)
    evaluator = Evaluator(policy, prompts()[:3], runner, EvaluationSettings(), "greedy")
    records = Records([log], None if folder is None else Checkpoints(folder, asynchronous=True))
    sampler = Shuffled(prompts(), seed=0)
    return Trainer(policy, algorithm.with_length(4), sampler, runner, settings, evaluator=evaluator, records=records)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("place", "nth", "done"),
    [("rollout", 3, 2), ("reward", 20, None), ("update", 3, 2), ("evaluation", 2, 2), ("evaluation", 1, 0), ("update", 9, 5)],
)
def test_a_stopped_run_goes_on_as_if_undisturbed(tmp_path: Path, number: signal.Signals, place: str, nth: int, done: int | None):
    whole, undisturbed = make(None, log := Log()), log
    whole.fit()
    left = [nth]

    def at(here: str) -> None:
        left[0] -= here == place
        if left[0] == 0 and here == place:
            os.kill(os.getpid(), number)

    cut = make(tmp_path, first := Log(), at)
    before = signal.getsignal(number)
    with listen(cut.stop):
        cut.fit()
    assert signal.getsignal(number) is before
    assert cut.is_stopped and cut.stop.asked_by == number.name
    assert done in (None, cut.index) and Checkpoints(tmp_path).steps()[-1] == cut.index
    again = make(tmp_path, second := Log())
    again.load_state_dict(Checkpoints(tmp_path).load())
    again.fit()
    assert torch.equal(weights(again), weights(whole))
    assert first.lines + second.lines == undisturbed.lines


HANG_UP = signal.SIGHUP


@pytest.mark.parametrize(
    ("usual", "sent", "asked_by"),
    [
        pytest.param(signal.SIG_DFL, [HANG_UP] * 3, "SIGHUP", id="a terminal that closes stops the run once and never kills it"),
        pytest.param(signal.SIG_DFL, [HANG_UP, signal.SIGTERM, HANG_UP], "SIGTERM", id="a request with a hang-up is the first"),
        pytest.param(signal.SIG_IGN, [HANG_UP], "", id="under nohup a closing terminal means nothing"),
    ],
)
def test_a_terminal_that_closes(usual: signal.Handlers, sent: list[signal.Signals], asked_by: str):
    """The kernel and the shell send a SIGHUP each, and both may come before the run is saved.

    Of signals that are pending together, Python handles SIGHUP first; the SIGTERM after it kills nothing.
    """
    stop = Stop()
    before = signal.signal(HANG_UP, usual)
    try:
        with listen(stop):
            for number in sent:
                signal.raise_signal(number)
            assert (signal.getsignal(HANG_UP) is signal.SIG_IGN) == (usual is signal.SIG_IGN)
        assert stop.asked_by == asked_by
    finally:
        signal.signal(HANG_UP, before)


def test_nothing_is_broken_off_while_weights_are_exchanged():
    """A signal that comes while averaged weights are put in place, or back, waits for that."""
    stop, events = Stop(), list[str]()

    class Worn:
        def __enter__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            events.append("in place")

        def __exit__(self, *_: object) -> None:
            events.append("back")

    with pytest.raises(AskedToStopError), listen(stop), stop.interruptible(Ranks()):
        with Worn():
            for _ in range(6000):
                signal.sigtimedwait([], 0.01)
        events.append("never")
    assert events == ["in place", "back"]


def test_a_signal_that_waits_its_turn_kills_no_run_that_has_ended_meanwhile():
    sent: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: sent.append(number))
    listener = Listener(Stop())
    try:
        listener.send_again(signal.SIGTERM)
        assert not sent
        signal.signal(signal.SIGTERM, listener)
        listener.send_again(signal.SIGTERM)
        assert listener.stop.asked_by == "SIGTERM"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_several_processes_stop_together_and_only_at_a_beginning():
    stop = Stop()
    with pytest.raises(AskedToStopError), stop.interruptible(PlayedRanks(lambda x: [x, "SIGTERM"])):
        pytest.fail("the other process was asked")
    assert stop.asked_by == "SIGTERM"
    stop = Stop()
    with stop.interruptible(PlayedRanks(lambda x: [x, ""])):
        assert not stop.ask("SIGTERM")


def test_the_second_signal_leaves_at_once():
    program = Path(__file__).parent / "programs" / "second_signal.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == -signal.SIGINT and done.stdout == "still here\n"
    assert "SIGINT: stopping" in done.stderr


def stopped(words: list[str], number: signal.Signals) -> str:
    """What `mmrl train` says on stderr when it is asked to stop after its first step."""
    reading, writing = os.pipe()
    run = forked.begin(["-m", "mmrl", "train", *said_last(words)], ".", [{}], writing, writing)
    os.close(writing)
    said = ""
    with open(reading) as lines:
        for line in lines:
            if re.match(r"step [1-9]", line) and not re.search(r"^step [1-9]", said, re.MULTILINE):
                os.kill(run.pids[0], number)
            said += line
    assert run.wait(60) == 0, said
    return said


@pytest.mark.slow
def test_the_command_saves_and_ends_with_0_and_prints_what_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Stopped by SIGTERM, resumed, stopped by Ctrl-C, resumed to its end."""
    folder = tmp_path / "run"
    said = stopped([*words("text", 1000), "save_every=0", f"output={str(folder)!r}"], signal.SIGTERM)
    [first] = Checkpoints(folder / "checkpoints").steps()
    assert f"mmrl train --resume {folder}" in said and f"stopped by SIGTERM and saved after step {first}" in said
    said = stopped(["--resume", str(folder)], signal.SIGINT)
    second = max(Checkpoints(folder / "checkpoints").steps())
    assert second > first and f"continuing {folder} after step {first}" in said
    assert f"mmrl train --resume {folder}" in said and f"stopped by SIGINT and saved after step {second}" in said
    monkeypatch.setattr(commands, "announce", lambda run: None)
    given = TrainArguments([f"steps={second + 1}"], resume=folder)
    commands.run_training(given.resolve(), given.resume)
    assert max(Checkpoints(folder / "checkpoints").steps()) == second + 1
