"""Texts that drift away from those of the first steps are noticed; one odd step, noise and pictures are not."""

from typing import Any

import pytest

from mmrl.training.measure import commonest, form, repetition
from mmrl.training.settings import AlarmSettings, HealthSettings
from mmrl.training.watch.alarm import drifts
from mmrl.training.watch.health import Health
from tests.training.watch.test_health import GOOD, evaluation

LENGTHS = [2.0, 2.1, 1.9, 2.0, 9.0, 2.0]
"""Median 2; distances from it 0, 0.1, 0.1, 0, 7, 0 with a median of 0.05: a spread of 0.074."""
TEXTS = GOOD | {"train/form": 0.9, "train/repetition": 0.1}


def found(
    first: list[float], last: list[float], measure: str = "rollout/length", factor: float = 1.5
) -> list[tuple[float, float]]:
    around = {"train/form": [0.9]}
    return [(drift.before, drift.after) for drift in drifts(around | {measure: first}, {measure: last}, factor)]


def test_a_form_is_what_stays_of_a_text_without_its_words_and_numbers():
    assert form("<answer>It lasts from 1.5 to 20 s</answer>") == "<a>a 0 a 0 a</a>"
    assert form("The cat  sat\n on it. Über 3") == "a. a 0"
    assert form("") == ""
    assert commonest([form(text) for text in ("A", "B", "A, B", "C")]) == 0.75
    assert commonest([]) is None


def test_repetition_is_the_share_of_runs_of_four_words_that_came_before():
    assert repetition("one two three four five") == 0
    # runs: abcd, bcda, cdab, dabc, abcd: four of five are new
    assert repetition("a b c d a b c d") == pytest.approx(0.2)
    assert repetition("no no no no no no no no") == pytest.approx(0.8)
    assert repetition("no no no no") == repetition("") == 0


@pytest.mark.parametrize(
    ("last", "drifted"),
    [
        ([2.0, 2.0, 2.0, 3.1, 3.0, 3.2], True),
        ([2.0, 2.0, 2.0, 3.1, 2.9, 3.2], False),  # one step within 1.5 times
        ([3.5, 3.5, 3.5, 3.5, 3.5, 2.0], False),  # over again
        ([2.0, 2.0, 2.0, 1.3, 1.2, 1.3], True),
        ([2.0, 2.0, 2.0, 1.4, 1.3, 1.3], False),
        ([2.0, 2.0, 2.0, 0.0, 0.0, 0.0], True),
    ],
)
def test_length_drifts_where_it_stays_half_as_much_again_or_two_thirds(last: list[float], drifted: bool):
    assert bool(found(LENGTHS, last)) == drifted


def test_the_spread_of_the_first_steps_counts_and_one_odd_step_does_not():
    wild = [1.0, 3.0, 2.0, 1.0, 3.0, 2.0]  # distances 1, 1, 0, 1, 1, 0: a spread of 1.48, so 3 are 4.45
    assert found(wild, [6.0] * 6) == [] and found(wild, [6.5] * 6) == [(2.0, 6.5)]
    assert found(LENGTHS, [3.1] * 6) == [(2.0, 3.1)]


def test_shares_drift_by_the_same_factor():
    assert found([0.9] * 4, [0.59] * 4, "train/form") and not found([0.9] * 4, [0.61] * 4, "train/form")
    # what is not repeated: 0.9 to 0.59, and to 0.61
    assert found([0.1] * 4, [0.41] * 4, "train/repetition") and not found([0.1] * 4, [0.39] * 4, "train/repetition")
    assert found([0.0] * 4, [1.0] * 4, "train/repetition") and not found([0.5] * 4, [0.1] * 4, "train/repetition")
    assert not found([0.9] * 4, [0.4] * 4, "train/form", factor=3.0)


def test_pictures_have_no_length_that_could_drift():
    assert list(drifts({"rollout/length": [4.0] * 4}, {"rollout/length": [9.0] * 4}, 1.5)) == []


DRIFTS: dict[str, dict[str, float]] = {
    "completions became longer": {"rollout/length": 160.0},
    "completions became shorter": {"rollout/length": 60.0},
    "the form that most completions had was given up": {"train/form": 0.4},
    "completions repeat themselves": {"train/repetition": 0.6},
}


def alarms(changed: dict[str, float], reward: float = 0.9, watched: bool | None = None, **alarm: Any) -> list[str]:
    """What is said of eight steps as they were and eight that changed; `watched`: with an evaluation before, and by a reward?"""
    health = Health(settings=HealthSettings(window=4, alarm=AlarmSettings(**alarm)))
    if watched is not None:
        step, groups, scores = evaluation(0, 0.5, 0.5)
        if not watched:
            scores.weights[1] = 1.0
        health.after_evaluation(step, groups, scores)
    said: list[str] = []
    for step in range(16):
        now = {"reward/total": (reward if step > 7 else 0.5) + 0.01 * (step % 3)} | (changed if step > 7 else {})
        said += health.after_step(step + 1, TEXTS | now)
    return [sentence for sentence in said if "alarm" in sentence]


@pytest.mark.parametrize("what", DRIFTS)
def test_a_drift_is_an_alarm_where_the_reward_rises_and_none_is_watched(what: str):
    changed = DRIFTS[what]
    for watched in (None, False):
        (sentence,) = alarms(changed, watched=watched)
        assert what in sentence and "[[evaluation.reward]]" in sentence and "health.alarm.max_drift" in sentence
    assert alarms(changed, reward=0.5) == alarms(changed, watched=True) == alarms(changed, max_drift=4.0) == []
    assert len(alarms(changed, watched=True, ignore=("truth",))) == 1


def test_completions_that_were_cut_off_may_become_shorter_but_not_longer():
    cut = {"rollout/truncated": 0.4}
    health = Health(settings=HealthSettings(window=4))
    for length, expected in ((60.0, 0), (160.0, 1)):
        said: list[str] = []
        for step in range(16):
            late = step > 7
            reward = {"reward/total": (0.9 if late else 0.5) + 0.01 * (step % 3), "rollout/length": length if late else 100.0}
            said += health.after_step(step + 1, TEXTS | cut | reward)
        assert len([sentence for sentence in said if "alarm" in sentence]) == expected
        health = Health(settings=HealthSettings(window=4))
