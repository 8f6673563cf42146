"""Every warning: when it comes, when it does not, once, and the same after a resume; stale caches, and texts that drift."""

import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.app.cli import program as cli
from mmrl.app.commands.check import check
from mmrl.app.report.page import write_report
from mmrl.app.run.folder import RunDir
from mmrl.core.types import Group, Prompt, Sample, Scores
from mmrl.training.callbacks import Examples
from mmrl.training.measure import commonest, form, repetition
from mmrl.training.settings import AlarmSettings, HealthSettings, TrainSettings
from mmrl.training.watch.alarm import Alarm, HeldOutScores, drifts, independent_change, pairwise_change
from mmrl.training.watch.health import Health, leaps, stale_sentence
from tests.support.trainers import make_trainer

GOOD = {
    "reward/letter": 0.5,
    "reward/letter/std": 0.3,
    "reward/total": 0.5,
    "reward/no_spread": 0.2,
    "rollout/length": 100.0,
    "rollout/truncated": 0.1,
    "rollout/entropy": 1.0,
    "policy/clip_frac": 0.1,
    "policy/grad_norm": 1.0,
    "policy/kl": 0.05,
    "policy/kl_old": 0.01,
    "rollout/log_ratio": 0.001,
    "train/sameness": 0.3,
    "train/diversity": 0.2,
    "train/diversity_prompts": 0.2,
}
LIMITS = HealthSettings(window=4)
FLAT = {"reward/letter/std": 0.0}
# what every step from the ninth on shows, the words of the warning when means first pass the bound, the same within bounds
FINDINGS = {
    "no spread": ({"reward/no_spread": 1.0}, "every group's samples got the same reward", {"reward/no_spread": 0.7}),
    "little spread": ({"reward/no_spread": 0.9}, "in 90% of the groups", {"reward/no_spread": 0.7}),
    "constant": (FLAT, "gave every sample of the last 4 steps 0.5", {"reward/letter/std": 0.01}),
    "failed": ({"reward/letter/failed": 0.2}, "'letter' failed for 15%", {"reward/letter/failed": 0.05}),
    "na": ({"reward/letter/na": 1.0}, "'letter' said None", {"reward/letter/na": 0.75}),
    "unscored": ({"rollout/unscored": 0.3}, "15% of the last steps' samples have no total", {"rollout/unscored": 0.05}),
    "unparsed": ({"reward/letter/unparsed": 0.5}, "50% of the completions could not be parsed by 'letter'", {}),
    "truncated": ({"rollout/truncated": 0.6}, "60% of the completions never stopped", {"rollout/truncated": 0.4}),
    "short": ({"rollout/length": 20.0}, "shrank to 20 tokens, 20%", {"rollout/length": 30.0}),
    "long": ({"rollout/length": 500.0}, "grew to 500 tokens, 5 times", {"rollout/length": 300.0}),
    "entropy low": ({"rollout/entropy": 0.05}, "entropy fell to 0.05", {"rollout/entropy": 0.2}),
    "entropy high": ({"rollout/entropy": 3.0}, "entropy rose to 3", {"rollout/entropy": 2.0}),
    "clipping": ({"policy/clip_frac": 0.6}, "60% of the actions", {"policy/clip_frac": 0.4}),
    "gradient zero": ({"policy/grad_norm": 0.0}, "the gradient was 0", {"policy/grad_norm": 0.01}),
    "kl": ({"policy/kl": 2.0}, "KL to the reference is 1.02 per action", {"policy/kl": 0.1}),
    "still": ({"policy/kl": 1e-10}, "after 12 steps the model is where it began", {"policy/kl": 1e-8}),
    "log ratio": ({"rollout/log_ratio": 0.3}, "log-probabilities are 0.1", {"rollout/log_ratio": 0.01}),
    "log ratio leaps": ({"rollout/log_ratio": 0.04}, "in this step alone the sampler", {"rollout/log_ratio": 0.004}),
    "trainer idle": ({"time/idle/trainer": 0.8}, "training waited for samples", {"time/idle/trainer": 0.4}),
    "log ratio rises": ({"rollout/log_ratio": 0.04}, "nats off per action, 10.8 times the start's", {"rollout/log_ratio": 0.004}),
    "kl_old": ({"policy/kl_old": 0.2}, "within a step the model moves 0.105", {"policy/kl_old": 0.05}),
}


def said(steps: Sequence[dict[str, float]], health: Health | None = None) -> list[str]:
    health = health or Health(settings=LIMITS)
    return [sentence for number, metrics in enumerate(steps, start=1) for sentence in health.after_step(number, GOOD | metrics)]


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_appears_once_and_within_bounds_not_at_all(name: str):
    bad, words, fine = FINDINGS[name]
    found = said([{}] * 8 + [bad] * 12)
    assert [words in sentence for sentence in found].count(True) == 1
    assert not said([{}] * 8 + [fine] * 12)


@pytest.mark.parametrize(("norm", "times"), [(30.0, 1), (5.0, 0)])
def test_one_large_gradient_is_a_spike(norm: float, times: int):
    found = said([{}] * 8 + [{"policy/grad_norm": norm}] + [{}] * 8)
    assert len(found) == times
    assert all("step 9: the gradient's norm is 30, 30 times the usual 1" in sentence for sentence in found)


def test_kl_that_doubles_within_a_window_runs_away():
    found = said([{}] * 6 + [{"policy/kl": 0.05 * 2**step} for step in range(5)])
    assert len(found) == 1 and "KL to the reference rose from" in found[0]
    assert said([{"policy/kl": 0.3 + 0.01 * step} for step in range(20)]) == []


def test_nothing_is_said_before_the_start_is_over_and_again_only_after_a_window_without():
    assert said([{"rollout/length": 10.0 ** (step + 1), "rollout/entropy": 0.1**step} for step in range(4)]) == []
    bad, fine = {"rollout/truncated": 1.0}, {"rollout/truncated": 0.0}
    assert len(said([bad] * 4 + [fine] * 2 + [bad] * 4)) == 1
    assert len(said([bad] * 4 + [fine] * 9 + [bad] * 4)) == 2


def test_the_bound_on_unparsed_is_the_run_s():
    half = [{"reward/letter/unparsed": 0.5}]
    assert said(half, Health(0.6)) == [] and len(said(half, Health(0.4))) == 1


@pytest.mark.parametrize("cut", [3, 9, 11])
def test_a_resumed_run_says_the_same(cut: int):
    steps = [{}] * 8 + [{"rollout/length": 20.0, "policy/kl": 0.3}] * 6 + [{}] * 3
    whole, first, second = (Health(settings=LIMITS) for _ in range(3))
    expected = said(steps, whole)
    before = said(steps[:cut], first)
    second.load_state_dict(first.state_dict())
    after = [s for number, metrics in enumerate(steps[cut:], cut + 1) for s in second.after_step(number, GOOD | metrics)]
    assert expected and before + after == expected
    assert second.state_dict() == whole.state_dict()


def test_checkpoints_keep_it(tmp_path):
    trainer, fresh = make_trainer(steps=2), make_trainer(steps=2)
    trainer.step()
    trainer.health.after_evaluation(*evaluation(1, 0.5, 0.5))
    torch.save(trainer.state_dict()["health"], tmp_path / "health.pt")
    fresh.load_state_dict(trainer.state_dict() | {"health": torch.load(tmp_path / "health.pt", weights_only=True)})
    assert fresh.health.state_dict() == trainer.health.state_dict()
    fresh.health.load_state_dict({})
    assert fresh.health.memory.num_steps == 1


def test_impossible_settings_are_refused():
    health, alarm = {"window": 1, "max_kl": 0.0}, {"fall_chance": 2.0, "least_prompts": 2}
    for kind, name, value in [
        *((HealthSettings, *one) for one in health.items()),
        *((AlarmSettings, *one) for one in alarm.items()),
    ]:
        with pytest.raises(ValueError, match=rf"{kind.__name__}\.{name} is"):
            kind(**{name: value})
    assert TrainSettings(health=LIMITS).health.window == 4


COLLAPSES = {
    "train/sameness": (0.95, 0.85, "answered by the same text"),
    "train/diversity": (0.03, 0.05, "pictures of a prompt"),
    "train/diversity_prompts": (0.03, 0.05, "pictures of different prompts"),
    "rollout/length": (5.0, 70.0, "completions shrank"),
}


@pytest.mark.parametrize("name", COLLAPSES)
def test_collapse_is_an_alarm_only_while_the_reward_rises(name: str):
    bad, fine, words = COLLAPSES[name]

    def alarms(value: float, reward: float) -> list[str]:
        steps = [{"reward/total": 0.5 + 0.01 * (step % 3)} for step in range(8)]
        found = said(steps + [{"reward/total": reward + 0.01 * (step % 3), name: value} for step in range(12)])
        return [sentence for sentence in found if "alarm" in sentence]

    assert len(alarms(bad, 0.9)) == 1 and words in alarms(bad, 0.9)[0]
    assert alarms(bad, 0.5) == alarms(bad, 0.1) == alarms(fine, 0.9) == []


@pytest.mark.parametrize(("now", "trained", "alarmed"), [("a", 0.9, True), ("a", 0.5, False), ("ab", 0.9, False)])
def test_held_out_answers_that_become_alike_while_the_reward_rises(now: str, trained: float, alarmed: bool):
    health = Health()

    def answered(step: int, reward: float, letters: str) -> list[str]:
        _, groups, scores = evaluation(step, reward, 0.5)
        texts = [tuple(Sample(text=letters[i % len(letters)]) for _ in group.samples) for i, group in enumerate(groups)]
        return health.after_evaluation(step, [replace(group, samples=t) for group, t in zip(groups, texts, strict=True)], scores)

    assert answered(0, 0.5, "abcde") == []
    found = answered(10, trained, now)
    assert bool(found) == alarmed and all("at step 0 to 1 at step 10" in sentence for sentence in found)


def test_metrics_that_warnings_need_are_there():
    def moody(group: Group) -> list[float | None]:
        return [None] * len(group.samples) if group.prompt.id == "3" else [float(i) for i in range(len(group.samples))]

    metrics = make_trainer(function=moody, prompts_per_step=8).step()
    assert metrics["rollout/unscored"] == metrics["reward/letter/na"] == 0.125
    # five kinds of letter, about equally likely before training
    assert 1.2 < metrics["rollout/entropy"] < 1.7
    assert 0 <= metrics["train/sameness"] < 0.2 < metrics["train/distinct"] <= 1
    alone = make_trainer(PRESETS["reinforce_pp"]).step()
    assert math.isnan(alone["reward/no_spread"]) and "train/distinct" not in alone


NUM_PROMPTS = 20


def evaluation(step: int, trained: float, watched: float, wobble: float = 0.02) -> tuple[int, list[Group], Scores]:
    """Two samples of every prompt, whose values differ from prompt to prompt."""
    groups = [Group(i, Prompt(str(i)), (Sample(text="a"), Sample(text="b"))) for i in range(NUM_PROMPTS)]
    generator = torch.Generator().manual_seed(step)
    noise = wobble * torch.randn(2 * NUM_PROMPTS, 2, generator=generator)
    values = torch.tensor([[trained, watched]]) + 0.1 * torch.arange(2 * NUM_PROMPTS).sin()[:, None] + noise
    return step, groups, Scores(("proxy", "truth"), values, torch.zeros(values.shape, dtype=torch.long), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(
    ("trained", "watched", "alarmed"),
    [(0.9, 0.2, True), (0.9, 0.5, False), (0.9, 0.9, False), (0.5, 0.2, False), (0.2, 0.2, False), (0.9, 0.49, False)],
)
def test_the_alarm_wants_a_rise_and_a_fall(trained: float, watched: float, alarmed: bool):
    health = Health()
    health.after_evaluation(*evaluation(0, 0.5, 0.5))
    found = health.after_evaluation(*evaluation(20, trained, watched))
    assert bool(found) == alarmed
    assert not alarmed or ("From step 0 to step 20" in found[0] and "'truth' fell from 0.5" in found[0])
    assert health.after_evaluation(*evaluation(40, trained, watched)) == []


def test_the_fall_may_begin_at_the_best_evaluation():
    health = Health()
    for step, trained, watched in ((0, 0.2, 0.3), (10, 0.4, 0.7)):
        assert health.after_evaluation(*evaluation(step, trained, watched)) == []
    (found,) = health.after_evaluation(*evaluation(20, 0.8, 0.4))
    assert "From step 10 to step 20" in found and "was best at step 10" in found


def test_ignored_rewards_and_few_prompts_raise_no_alarm():
    ignoring = Health(settings=HealthSettings(alarm=AlarmSettings(ignore=("truth",))))
    demanding = Health(settings=HealthSettings(alarm=AlarmSettings(least_prompts=30)))
    assert ignoring.after_evaluation(*evaluation(0, 0.5, 0.5)) == []
    assert "20 held-out prompts are too few" in demanding.after_evaluation(*evaluation(0, 0.5, 0.5))[0]
    for health in (ignoring, demanding):
        assert health.after_evaluation(*evaluation(20, 0.9, 0.2)) == []


def test_a_rise_in_training_alone_is_enough():
    health = Health(settings=LIMITS)
    health.after_evaluation(*evaluation(0, 0.5, 0.5))
    said([{"reward/total": 0.5 + 0.01 * (i % 3)} for i in range(4)], health)
    said([{"reward/total": 0.9 + 0.01 * (i % 3)} for i in range(4)], health)
    (found,) = health.after_evaluation(*evaluation(8, 0.5, 0.2))
    assert "in training" in found


def test_a_resumed_run_knows_its_best_evaluation():
    first, second = Health(), Health()
    first.after_evaluation(*evaluation(0, 0.2, 0.3))
    first.after_evaluation(*evaluation(10, 0.4, 0.7))
    second.load_state_dict(first.state_dict())
    assert second.after_evaluation(*evaluation(20, 0.8, 0.4)) == first.after_evaluation(*evaluation(20, 0.8, 0.4)) != []
    assert second.state_dict() == first.state_dict()


@pytest.mark.parametrize(("stop", "steps"), [(True, 2), (False, 6)])
def test_a_run_may_end_at_the_alarm(stop: bool, steps: int, caplog):
    limits = HealthSettings(alarm=AlarmSettings(stop=stop))
    trainer = make_trainer(steps=6, evaluate_every=2)
    trainer.health.settings = limits
    answers = iter([evaluation(0, 0.5, 0.5)] + [evaluation(step, 0.9, 0.2) for step in (2, 4, 6)])

    class Given:
        def run(self, step):
            _, groups, scores = next(answers)
            return {}, Examples(groups, scores)

    saved: list[int] = []
    trainer.evaluator, trainer.save = Given(), lambda **how: saved.append(trainer.index)  # type: ignore[assignment, method-assign]
    trainer.fit()
    assert trainer.index == steps and saved == [steps]
    assert ("The run ends here" in caplog.text) == stop


def test_alarms_are_errors_and_warnings_are_not(caplog):
    health = Health(settings=LIMITS)
    with caplog.at_level(logging.WARNING, "mmrl"):
        health.after_step(1, GOOD | {"rollout/truncated": 1.0})
        health.after_evaluation(*evaluation(0, 0.5, 0.5))
        health.after_evaluation(*evaluation(20, 0.9, 0.2))
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def test_noise_gives_no_alarm():
    """A thousand evaluations of a watched reward that does not change, while the trained one rises."""
    alarm, generator = Alarm(), torch.Generator().manual_seed(0)
    draws = torch.randn(1000, 2, 32, generator=generator)
    found = []
    for step, (trained, watched) in enumerate(draws):
        now = HeldOutScores(step, (trained + step).tolist(), {"w": watched.tolist()}, [], {})
        if step:
            found += list(alarm.after_evaluation(now, []))
        else:
            list(alarm.after_evaluation(now, []))
            alarm.best = dict.fromkeys(alarm.best, now)
    assert len(found) <= 3 * 1000 * 2 * alarm.settings.fall_chance


def test_chances_are_student_s():
    # t = 1 with one degree of freedom is exceeded a quarter of the time
    change = pairwise_change([0.0, 0.0], [0.0, 2.0], sign=1, least=2)
    assert change.chance == pytest.approx(0.25) and change.before == 0 and change.after == 1
    assert pairwise_change([0.0, 0.0], [0.0, 2.0], sign=-1, least=2).chance == pytest.approx(0.75)
    assert pairwise_change([0.5] * 9, [0.4] * 9, sign=-1, least=8) == (0.5, pytest.approx(0.4), 0.0, math.inf)
    assert pairwise_change([0.5] * 9, [0.5 + 1e-9] * 9, sign=1, least=8).chance == 0.5
    assert pairwise_change([0.5] * 7, [0.4] * 7, sign=-1, least=8).chance == 1
    assert independent_change([0.0, 1.0, 2.0], [3.0, 4.0, math.nan]).chance == 1
    low, high = [0.0, 1.0, 2.0], [10.0, 11.0, 12.0]
    assert independent_change(low, high).chance < 0.01 < independent_change(high, low).chance


@pytest.mark.parametrize(
    ("name", "before", "after", "narrow"),
    [
        # texts differ in half of the pairs at first: narrow below 0.2 * 0.5 = 0.1, and only above max_sameness
        ("sameness", 0.5, 0.85, False),
        ("sameness", 0.5, 0.92, True),
        ("sameness", 0.0, 0.85, True),
        ("sameness", 0.0, 0.4, False),
        # the difference of pictures: below 0.2 * 0.5
        ("diversity", 0.5, 0.12, False),
        ("diversity", 0.5, 0.08, True),
    ],
)
def test_variety_is_lost_below_a_part_of_what_it_was(name: str, before: float, after: float, narrow: bool):
    assert Alarm(AlarmSettings(max_sameness=0.5, min_variety=0.2))._is_narrow(name, before, after) == narrow


def usual(size: float, count: int, seed: int = 0, leaps: Mapping[int, float] = MappingProxyType({})) -> list[float]:
    """What rounding makes: about `size`, twice as much at the end as at the beginning; and leaps at some places."""
    draw = random.Random(seed)
    made = [size * (1 + i / count) * draw.uniform(0.5, 2.0) for i in range(count)]
    return [leaps.get(i, x) for i, x in enumerate(made)]


@pytest.mark.parametrize("size", [3e-7, 1e-5, 8e-3])
def test_rounding_alone_is_never_called_stale(size: float):
    assert [leaps(usual(size, 200, seed)) for seed in range(20)] == [[]] * 20


def test_a_stale_cache_is_seen_whichever_it_was_and_steps_without_a_number_are_passed_over():
    assert leaps(usual(3e-7, 50, leaps={1: 0.145, 2: 0.0088, 30: 0.02})) == [1, 2, 30]
    assert leaps(usual(8e-3, 50, leaps={7: 0.24})) == [7]
    assert leaps([3e-7] + [0.1] * 30) == list(range(1, 31)), "every step after the first"
    assert leaps([]) == leaps([math.nan]) == leaps([math.nan, 0.1, 0.1]) == []
    assert leaps([math.nan, 3e-7, math.nan, 0.1]) == [3]


def run_of(path, values: list[float]) -> RunDir:
    run = RunDir.create(path)
    run.config_file.write_text("steps = 8\n")
    for step, value in enumerate(values, start=1):
        run.append(step, {"reward/total": 0.5, "rollout/log_ratio": value})
    return run


def test_the_report_and_the_check_of_a_finished_run_say_where(tmp_path, capsys):
    bad = run_of(tmp_path / "bad", usual(3e-7, 8, leaps={3: 0.145, 5: 0.0088}))
    fine = run_of(tmp_path / "fine", usual(3e-7, 8))
    words = "at 2 of 8 steps (4, 6) the sampler&#39;s log-probabilities are up to 0.145 nats per action off"
    assert words in write_report(bad.path).read_text()
    assert "Stale samples" not in write_report(fine.path).read_text()
    assert not check(str(bad.path)) and check(str(fine.path))
    said = " ".join(capsys.readouterr().out.split())
    assert "FAIL at 2 of 8 steps (4, 6)" in said and "resume from a checkpoint before it" in said
    assert "ok its log-probabilities never leap" in said
    with pytest.raises(cli.typer.Exit) as left:
        cli.check(str(bad.path))
    assert left.value.exit_code == 2
    assert stale_sentence([1.0, 2.0], [1e-7, 1e-7]) == ""
    with pytest.raises(FileNotFoundError, match="give the output folder of a run"):
        check(str(tmp_path))


LENGTHS = [2.0, 2.1, 1.9, 2.0, 9.0, 2.0]
"""Median 2; distances from it 0, 0.1, 0.1, 0, 7, 0 with a median of 0.05: a spread of 0.074."""
TEXTS = GOOD | {"train/form": 0.9, "train/repetition": 0.1}


def found(first: list[float], last: list[float], measure: str = "rollout/length", factor: float = 1.5) -> list[Any]:
    around = {"train/form": [0.9]}
    return [(before, after) for _, _, before, after in drifts(around | {measure: first}, {measure: last}, factor)]


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


def test_shares_drift_by_the_same_factor_and_pictures_have_no_length_that_could():
    assert list(drifts({"rollout/length": [4.0] * 4}, {"rollout/length": [9.0] * 4}, 1.5)) == []
    assert found([0.9] * 4, [0.59] * 4, "train/form") and not found([0.9] * 4, [0.61] * 4, "train/form")
    # what is not repeated: 0.9 to 0.59, and to 0.61
    assert found([0.1] * 4, [0.41] * 4, "train/repetition") and not found([0.1] * 4, [0.39] * 4, "train/repetition")
    assert found([0.0] * 4, [1.0] * 4, "train/repetition") and not found([0.5] * 4, [0.1] * 4, "train/repetition")
    assert not found([0.9] * 4, [0.4] * 4, "train/form", factor=3.0)


DRIFTS: dict[str, dict[str, float]] = {
    "completions became longer": {"rollout/length": 160.0},
    "completions became shorter": {"rollout/length": 60.0},
    "the form that most completions had was given up": {"train/form": 0.4},
    "completions repeat themselves": {"train/repetition": 0.6},
}


def alarms(
    changed: dict[str, float], reward: float = 0.9, watched: bool | None = None, usual: Mapping[str, float] = TEXTS, **alarm: Any
) -> list[str]:
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
        said += health.after_step(step + 1, {**usual, **now})
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
    for length, expected in ((60.0, 0), (5.0, 0), (160.0, 1)):
        assert len(alarms({"rollout/length": length}, usual=TEXTS | {"rollout/truncated": 0.4})) == expected
