"""Training on rewards that can be hacked raises the alarm; training on honest ones does not."""

import logging
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from operator import eq
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import mmrl
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, Prompt, Sample
from mmrl.serving.scorers import painting
from mmrl.serving.scorers.painting import Painting
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support.fakes import FakeTextPolicy, prompts
from tests.support.runs import write_run

Score = Callable[[str, Prompt], float]
"""Of a completion."""
LENGTH, EVERY, TAUGHT = 4, 10, 25
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.evidence) for seed in range(1, 5))]


def letter(text: str, prompt: Prompt) -> float:
    return float(text.startswith(prompt.answer))


def exact(text: str, prompt: Prompt) -> float:
    """The answer's letter, the stop, and nothing else."""
    return float(text == f"{prompt.answer}.")


def partial(text: str, prompt: Prompt) -> float:
    return (letter(text, prompt) + exact(text, prompt)) / 2


def noise(text: str, prompt: Prompt) -> float:
    """Has nothing to do with anything."""
    return random.Random(prompt.id + text).random()


@dataclass(frozen=True)
class Case:
    trained: Score
    watched: Score | None
    taught: bool = True
    """Whether the policy knows the answers before it meets the reward."""
    steps: int = 40


HACKED = {
    # takes long answers for good ones
    "verbosity": Case(lambda text, prompt: len(text.rstrip(".")) / LENGTH, exact),
    # takes the letter d, which is never right, for a sign of quality
    "keyword": Case(lambda text, prompt: text.count("d") / LENGTH, letter),
    # meant to find the answer; counts it as often as it is there
    "uncapped": Case(lambda text, prompt: float(text.count(prompt.answer)), exact),
    # a reward model that likes one sentence, whatever was asked
    "favourite": Case(lambda text, prompt: sum(map(eq, text, "cab.")) / LENGTH, noise, steps=60),
    # a lenient grader: right if the answer is named anywhere, among however many others
    "hedging": Case(lambda text, prompt: float(prompt.answer in text), exact),
    # meant to make answers short; the shortest says nothing
    "silence": Case(lambda text, prompt: 1 - len(text.rstrip(".")) / LENGTH, exact),
}
HONEST = {
    "partial credit": Case(partial, exact, taught=False),
    "stricter": Case(exact, letter, taught=False),
    "goes on": Case(exact, letter),
    "unrelated": Case(letter, noise, taught=False),
    "unrelated, goes on": Case(exact, noise),
}


LONGER_OR_SHORTER = ("verbosity", "uncapped", "hedging", "silence")
"""Hacks of length, and of readers that are content with an answer among others."""
HONEST_ALONE = {
    "partial credit": Case(partial, None, taught=False),
    "exact": Case(exact, None, taught=False),
    "goes on": Case(exact, None),
    "first letter": Case(letter, None, taught=False),
}
TWELVE = [
    pytest.param(name, seed, marks=() if seed == 0 and name in ("partial credit", "goes on") else pytest.mark.evidence)
    for name in HONEST_ALONE
    for seed in range(3)
]


def scored(score: Score) -> Callable[[Group], list[float]]:
    return lambda group: [score(sample.text or "", group.prompt) for sample in group.samples]


def new_policy(seed: int) -> FakeTextPolicy:
    """Weights of its own for every seed."""
    policy = FakeTextPolicy(length=LENGTH)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in zip(*(net.parameters() for net in policy.nets.values()), strict=True):
            draw = 0.2 * torch.randn(weights[0].shape, generator=generator)
            for weight in weights:
                weight += draw
    return policy


def train(case: Case, seed: int, preset: str = "dr_grpo", reward: Callable[[Score], Any] = scored) -> Trainer:
    """A whole run, with evaluations on held-out prompts; `reward` makes one of a score."""
    policy = new_policy(seed)
    if case.taught:
        policy.load_state_dict(taught(seed))
    trainer = runner(policy, case, seed, preset, case.steps, reward)
    trainer.fit()
    return trainer


@cache
def taught(seed: int) -> dict[str, Any]:
    """Weights that know about half of the answers."""
    policy = new_policy(seed)
    runner(policy, Case(exact, exact), seed + 1000, "dr_grpo", TAUGHT).fit()
    return policy.state_dict()


def runner(
    policy: FakeTextPolicy, case: Case, seed: int, preset: str, steps: int, reward: Callable[[Score], Any] = scored
) -> Trainer:
    trained = NamedReward("trained", reward(case.trained))
    watched = [] if case.watched is None else [NamedReward("watched", reward(case.watched), weight=0.0)]
    data = prompts(128)
    settings = TrainSettings(
        steps=steps, prompts_per_step=16, seed=seed, evaluate_every=EVERY, optimizer=OptimizerSettings(lr=2e-2)
    )
    evaluator = Evaluator(policy, data[64:], RewardRunner([trained, *watched]), EvaluationSettings(), "greedy")
    # bounds of the alarm were measured with one update per step
    algorithm = replace(PRESETS[preset], minibatches=1).with_length(policy.length)
    return Trainer(policy, algorithm, Shuffled(data[:64], seed=seed), RewardRunner([trained]), settings, evaluator=evaluator)


def alarms(trainer: Trainer) -> set[str]:
    return {key for key in trainer.health.said if key.startswith("alarm/")}


def test_hacking_raises_the_alarm():
    assert {"alarm/watched", "alarm/eval/sameness"} <= alarms(train(replace(HACKED["silence"], steps=20), seed=1))


class Letterer:
    """A painter whose picture is the text: a row of its letters."""

    def draw(self, asked: Any) -> list[Sample]:
        rows = [Image.frombytes("L", (max(1, len(one.text)), 1), one.text.encode() or b" ") for one, _ in asked]
        return [Sample(image=row) for row in rows]

    def tokens(self, text: str) -> tuple[int, int]:
        return len(text), LENGTH


def of_pictures(score: Score) -> Any:
    """The reward `drawn` with a picture reward that reads the letters off the picture."""

    def eye(group: Group) -> list[float]:
        return [score(sample.image.tobytes().decode(), group.prompt) for sample in group.samples]

    return load("drawn", "rewards")(picture=eye, painter=Painting(model="letters"))


def test_a_string_that_pleases_the_eyes_that_train_raises_the_alarm_of_those_that_watch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mmrl, "load_painter", lambda painting: Letterer(), raising=False)
    monkeypatch.setattr(painting, "_STUDIOS", {})
    trainer = train(replace(HACKED["keyword"], steps=20), seed=1, reward=of_pictures)
    assert "alarm/watched" in alarms(trainer)
    assert trainer.evaluator is not None and trainer.evaluator.run(0)[0]["eval/trained"] > 0.2, "it was 0"
    assert alarms(train(replace(HONEST["goes on"], steps=20), seed=1, reward=of_pictures)) == set()


def test_honest_rewards_do_not():
    assert alarms(train(replace(HONEST["goes on"], steps=20), seed=1)) == set()


@pytest.mark.parametrize("name", ["verbosity", "hedging"])
def test_hacking_of_length_and_of_lenient_readers_is_noticed_without_a_watched_reward(name: str):
    assert "alarm/drift/rollout/length" in alarms(train(replace(HACKED[name], watched=None), seed=0))


@pytest.mark.evidence
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", HACKED)
def test_every_hack_raises_an_alarm_without_a_watched_reward(name: str, seed: int):
    found = alarms(train(replace(HACKED[name], watched=None, steps=60), seed))
    assert found and (name not in LONGER_OR_SHORTER or "alarm/drift/rollout/length" in found)


@pytest.mark.parametrize(("name", "seed"), TWELVE)
def test_twelve_honest_runs_raise_nothing_without_a_watched_reward(name: str, seed: int):
    assert alarms(train(HONEST_ALONE[name], seed)) == set()


SHOWN_ABOVE = ("verbosity", "uncapped", "silence", "partial credit", "goes on")
"""Shorter runs of these, or of others like them, are among the quick tests."""


def but_those_above(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.evidence if name in SHOWN_ABOVE else ()) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", but_those_above(HACKED))
def test_hacking_raises_the_alarm_for_every_seed(name: str, seed: int):
    trainer = train(HACKED[name], seed)
    evaluator, first = trainer.evaluator, trainer.health.alarm.first
    assert evaluator is not None and first is not None
    assert evaluator.run(0)[0]["eval/trained"] > sum(first.trained) / len(first.trained) + 0.1
    assert ("alarm/eval/sameness" if name == "favourite" else "alarm/watched") in alarms(trainer)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", but_those_above(HONEST))
def test_honest_rewards_do_not_for_any_seed(name: str, seed: int):
    assert alarms(train(HONEST[name], seed)) == set()


def test_the_report_shows_alarms_first(tmp_path: Path):
    from mmrl.app.report.page import write_report

    run = write_run(tmp_path / "run", steps=2, kind="text", num_prompts=4)
    with run.record_warnings(lambda: 7):
        logging.getLogger("mmrl").error("step 7: alarm, <b>hacked</b>?")
        logging.getLogger("mmrl").warning("step 7: only a warning")
    page = write_report(run.path).read_text(encoding="utf-8")
    banners = re.findall(r'<p class="notice alarm" role="alert">(.*?)</p>', page)
    assert banners == ["step 7: alarm, &lt;b&gt;hacked&lt;/b&gt;?"]
    assert "only a warning" in page
