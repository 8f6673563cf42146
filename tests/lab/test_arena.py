"""`mmrl arena`: what is refused before anything is loaded, places by intervals, a killed contest, and mixtures of data."""

import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest

from mmrl.app.config import run as configs
from mmrl.lab.arena import lane as lane_module
from mmrl.lab.arena.command import arena, half_width, is_clearly_better, standings
from mmrl.lab.arena.contest import TASKS, Contest, check_prompts, contest_of, resolve_run
from mmrl.lab.arena.lane import Lane, Point, Stint
from mmrl.lab.arena.mixtures import best_mixture, fit, shares_of
from tests.support.each import for_each
from tests.support.forked import run
from tests.support.presets import BY_PIXELS, FLOW
from tests.support.refused import refused


def contest(*methods: str, task: str = "grounding", **more: object) -> Contest:
    return Contest(task, methods, 5.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("grounding", "grpo", 5.0, "0,x", None, []), r"--seeds is '0,x': write whole numbers with commas"),
        (("grounding", "", 5.0, "0", None, []), r"an arena needs at least one method"),
        (("grounding", "grpo,grpo", 5.0, "0", None, []), r"--methods names grpo twice"),
        (("grounding", "grpo", 5.0, "0,0", None, []), r"--seeds names 0 twice"),
        (("grounding", "grpo", 5.0, "-1", None, []), r"seeds are 0 or more"),
        (("grounding", "grpo", 0.0, "0", None, []), r"--budget-seconds is 0: it must be above 0"),
        (("chess", "grpo", 5.0, "0", None, []), r"there is no task 'chess': choose one of grounding, video, t2i"),
    ],
)
def test_words_that_make_no_contest_are_refused(words: tuple, told: str):
    refused(told, contest_of, *words)


@pytest.mark.parametrize(
    ("method", "task", "told"),
    [
        ("grqo", "grounding", r"there is no method 'grqo': did you mean 'grpo'\?.* or give a TOML file"),
        ("flow_grpo", "grounding", r"flow_grpo is a method of image generators .* or --task t2i"),
        ("grpo", "t2i", r"grpo is a method of models that write .* or --task grounding or video"),
        ("mm_upt", "grounding", r"'mm_upt', a method that trains on the reward 'majority_vote'"),
        ("missing.toml", "grounding", r"the method missing.toml is not there"),
    ],
)
def test_a_method_that_does_not_fit_is_refused_by_its_config(method: str, task: str, told: str):
    refused(told, resolve_run, contest(method, task=task), method, 0, error=(ValueError, FileNotFoundError))


def test_a_method_that_cannot_work_with_the_prompts_is_refused_before_a_model_is_loaded():
    asked = contest("temp_samp_r1", overrides=("data.size=8",))
    with pytest.raises(ValueError, match=r"temp_samp_r1 cannot take part in the task grounding: prompt .* leave it out"):
        check_prompts(asked, [resolve_run(asked, "temp_samp_r1", 0)])


@pytest.mark.parametrize(("task", "method"), [("grounding", "grpo"), ("video", "tw_grpo"), ("t2i", "flow_grpo")])
def test_a_task_is_looked_at_before_its_model_is_taught(task: str, method: str):
    asked = contest(method, task=task, overrides=("data.size=8",))
    check_prompts(asked, [resolve_run(asked, method, 0)])


@pytest.mark.parametrize("key", ["data.size = 8", "seed = 3", 'policy.model = "x"', "reward = []"])
def test_a_file_may_not_change_the_task(tmp_path: Path, key: str):
    file = tmp_path / "mine.toml"
    file.write_text(key, encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine.toml: .* belongs to the task, which is the same for all methods"):
        resolve_run(contest(str(file)), str(file), 0)


def test_a_file_of_changes_is_a_method(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('prompts_per_step = 3\n[algorithm]\npreset = "gspo"\nminibatches = 2\n[optimizer]\nlr = 1e-5\n')
    found = resolve_run(contest(str(file)), str(file), 1)
    assert found.name == "mine" and found.config.algorithm.preset == "gspo"
    assert (found.config.algorithm.algorithm.minibatches, found.config.optimizer.lr) == (2, 1e-5)
    assert (found.config.prompts_per_step, found.config.seed) == (3, 1)


def test_all_methods_get_as_many_samples_per_step():
    sizes = [resolve_run(contest(name), name, 0).config for name in ("grpo", "dapo", "reinforce_pp")]
    assert [one.prompts_per_step * one.algorithm.algorithm.group_size for one in sizes] == [128] * 3
    assert {one.optimizer.lr_schedule for one in sizes} == {"constant"}


ELSEWHERE = {
    "diffusion_opd": r"diffusion_opd cannot take part .*: .* follows teachers, and policy.teachers is empty",
    "pref_grpo": r"'pref_grpo', a method that trains on the reward 'pairwise_win_rate'",
}
"""Preset for generators -> why it cannot take part."""


@for_each("name", sorted(FLOW | BY_PIXELS))
def test_methods_for_generators_are_cut_to_the_small_model(name: str):
    asked = contest(name, task="t2i")
    if name in ELSEWHERE:
        with pytest.raises(ValueError, match=ELSEWHERE[name]):
            check_prompts(asked, [resolve_run(asked, name, 0)])
        return
    resolved = resolve_run(asked, name, 0)
    check_prompts(asked, [resolved])
    made = resolved.config.algorithm.algorithm
    assert made.schedule is not None and made.schedule.at(0).num_steps <= 10
    if (forward := made.schedule.at(0).forward) is not None and forward.kind == "rollout":
        assert forward.count < made.schedule.at(0).num_steps
    assert all(getattr(term, "low", 1e-2) == 1e-2 for _, term in made.objective)
    betas = {"dgpo": 100 / 16, "flow_dpo": 100 / 16}
    assert name not in betas or getattr(made.objective[0][1], "beta", 0.0) == betas[name]
    assert all(reading.guidance in (None, 1) for reading in made.all_reads)


def test_methods_on_gradients_need_rewards_that_have_one():
    asked = contest("draft_k", task="t2i", overrides=('reward.0.use="jpeg_size"',))
    with pytest.raises(ValueError, match=r"draft_k cannot take part .*: .* 'jpeg_size' has none: .*; leave it out of --methods"):
        check_prompts(asked, [resolve_run(asked, "draft_k", 0)])


def lanes(folder: Path, **finals: tuple[float, ...]) -> list[Lane]:
    found = [Lane(folder / name / f"seed-{seed}", name, seed) for name, values in finals.items() for seed in range(len(values))]
    for lane in found:
        lane.folder.mkdir(parents=True)
        lane.add(Point(0.0, 0, {"eval/total": 0.1}))
        lane.add(Point(5.0, 7, {"eval/total": finals[lane.label][lane.seed]}))
    return found


def test_a_place_counts_those_that_are_clearly_better(tmp_path: Path):
    made = lanes(tmp_path, low=(0.1, 0.2, 0.3), high=(0.5, 0.6, 0.7), noisy=(0.1, 0.9, 0.3))
    table = standings(made, "eval/total", 5.0)
    assert [(one.label, one.place) for one in table] == [("high", 1), ("noisy", 1), ("low", 2)]
    assert table[0].half_width == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-5)
    assert table[0].curve == [(0.0, pytest.approx(0.1)), (5.0, pytest.approx(0.6))] and table[0].steps == 7


def test_one_seed_claims_nothing(tmp_path: Path):
    table = standings(lanes(tmp_path, a=(0.9,), b=(0.1,)), "eval/total", 5.0)
    assert [one.place for one in table] == [1, 1] and math.isnan(table[0].half_width)
    assert not is_clearly_better({0: 0.9}, {0: 0.1}) and math.isnan(half_width([1.0]))


def test_a_run_that_failed_has_no_place(tmp_path: Path):
    made = lanes(tmp_path, a=(0.2, 0.2), b=(0.4, 0.4))
    (made[2].folder / "failed.txt").write_text("no group is informative")
    (made[3].folder / "failed.txt").write_text("no group is informative")
    table = standings(made, "eval/total", 5.0)
    assert [(one.label, one.place) for one in table] == [("a", 1), ("b", 0)]
    assert table[1].failures == ["no group is informative"] * 2


def test_a_torn_last_line_counts_for_nothing(tmp_path: Path):
    lane = lanes(tmp_path, a=(0.2,))[0]
    with lane.points_file.open("a") as file:
        file.write('{"seconds": 9, "st')
    assert [point.seconds for point in lane.points()] == [0.0, 5.0]
    lane.add(Point(6.0, 8, {"eval/total": 0.3}))
    assert [point.seconds for point in lane.points()] == [0.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("costs", "steps", "used", "measured"),
    [
        ([3.0] * 9, 2, 6.0, [6.0]),
        ([2.0] * 9, 4, 8.0, [4.0, 8.0]),
        ([11.3] * 9, 1, 11.3, [11.3]),
        ([4.0, 1.0, 1.0, 1.0, 1.0, 9.0], 5, 8.0, [4.0, 8.0]),
        ([1.0, 1.0, 9.0], 3, 11.0, [11.0]),
    ],
)
def test_no_step_begins_that_would_pass_the_budget(tmp_path: Path, costs: list[float], steps: int, used: float, measured: list):
    """By the time of the step before: one that is suddenly slower is counted as it is."""
    asked = contest("grpo")
    lane = Lane(tmp_path, "grpo", 0)
    stint = Stint(lane, resolve_run(asked, "grpo", 0), 8.0, 2, None)
    passed, made = [0.0], list[float]()

    def step() -> None:
        made.append(costs[len(made)])
        passed[0] += made[-1]

    def measure() -> None:
        lane.add(Point(stint.spent, len(made), {"eval/total": 0.5}, not stint.has_time))

    stint.train(step, measure, lambda: passed[0])
    assert (len(made), stint.spent) == (steps, pytest.approx(used))
    points = lane.points()
    assert [point.seconds for point in points] == measured and [point.is_last for point in points][-1]
    assert lane.is_finished(8.0) and lane.seconds_left(8.0) == 0
    assert standings([lane], "eval/total", 8.0)[0].seconds == pytest.approx(used)


REWARD = """
def by_letters(group):
    return [sum(sample.token_ids) % 97 / 97 for sample in group.samples]
"""


def small_contest(folder: Path) -> Contest:
    """Of random weights; rewards are a number of a completion's tokens, so that there is something to learn."""
    reward = folder.parent / "by_letters.py"
    reward.write_text(REWARD, encoding="utf-8")
    small = (
        *("policy.sampling.max_new_tokens=6", "data.size=32", "evaluation.num_prompts=4", "evaluation.data.size=4"),
        *("prompts_per_step=2", "algorithm.group_size=4", f"reward.0.use={str(reward)!r}"),
    )
    return Contest("grounding", ("grpo", "rloo"), 4.0, (0,), "tiny:qwen3_vl", marks=2, overrides=small)


def ticks(kill_at: int | None = None) -> Iterator[float]:
    """A clock by which every step costs one second, asked before and after; at this step of all the process kills itself."""
    for tick in count():
        if kill_at is not None and tick == 2 * kill_at + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield float((tick + 1) // 2)


@pytest.mark.slow
def test_a_contest_that_was_killed_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Killed in the third step of the second run, whose checkpoint is of the second step."""

    def said(folder: Path) -> str:
        """What the contest says in this process."""
        clock = ticks()
        monkeypatch.setattr(lane_module, "clock_of", lambda job: lambda: next(clock))
        arena(small_contest(folder), folder)
        return capsys.readouterr().err

    whole, broken = tmp_path / "one" / "whole", tmp_path / "two" / "broken"
    for folder in (whole, broken):
        folder.parent.mkdir()
    said(whole)
    killed = run("-m", "tests.lab.test_arena", str(broken), "6")
    assert killed.returncode == -signal.SIGKILL
    assert "2 runs (2 methods, 1 seeds) of 4 seconds: 8 s of training. Besides, 2 evaluations of 4 prompts" in killed.stderr
    assert [len(Lane(broken / name / "seed-0", name, 0).points()) for name in ("grpo", "rloo")] == [3, 2]
    assert "1 are done, 2 s are left" in said(broken)
    points = [
        [(folder / name / "seed-0" / "points.jsonl").read_text() for name in ("grpo", "rloo")] for folder in (whole, broken)
    ]
    assert points[0] == points[1]
    found = json.loads((broken / "arena.json").read_text())
    assert found["rows"] == json.loads((whole / "arena.json").read_text())["rows"] and len(found["rows"]) == 2
    page = (broken / "arena.html").read_text()
    assert "Equal compute: 4 seconds of training" in page and "://" not in page and not list(broken.rglob("checkpoints"))
    assert "2 are done, 0 s are left" in said(whole)


def test_the_tasks_rewards_add_up_to_one():
    for name, task in TASKS.items():
        method = task.base
        assert sum(reward.weight for reward in resolve_run(contest(method, task=name), method, 0).config.reward) == 1


A, B, C = ({"a": x, "b": 1 - x} for x in (0.2, 0.5, 0.9))


SIX = [(0.6, 0.2, 0.2), (0.2, 0.6, 0.2), (0.2, 0.2, 0.6), (0.4, 0.4, 0.2), (0.4, 0.2, 0.4), (0.2, 0.4, 0.4)]


def write(folder: Path, shares: tuple[float, ...], *scores: float) -> Path:
    """A run of three data sets as far as this looks at it: its config, and what it measured."""
    folder.mkdir()
    resolved = configs.load("tiny/mixture", [f"data.{i}.weight={share}" for i, share in enumerate(shares)])
    configs.save(resolved.config, folder / "config.toml")
    lines = [json.dumps({"step": i, "eval/total": score}) for i, score in enumerate(scores)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_shares_are_all_ways_to_divide():
    assert sorted(shares_of(3, 2)) == [(0, 0, 2), (0, 1, 1), (0, 2, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)]


def test_a_surface_that_is_known_is_found():
    found = fit([A, B, C], [1 - (one["a"] - 0.7) ** 2 for one in (A, B, C)])
    weights, score = found.best()
    assert weights == pytest.approx({"a": 0.7, "b": 0.3}) and score == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("mixtures", "said"),
    [
        ([A, B], "2 runs do not tell a surface of 3 numbers for 2 data sets: make 3 runs or more"),
        ([A, B, B], "3 runs do not tell .* of mixtures that differ"),
        ([A, B, {"a": 0.5, "c": 0.5}], "one run mixes a, b, and another one a, c"),
        ([], "0 runs do not tell"),
    ],
)
def test_too_little_is_refused(mixtures: list[dict[str, float]], said: str):
    refused(said, fit, mixtures, [0.5] * len(mixtures))


def test_runs_tell_their_mixture_and_their_last_score(tmp_path: Path):
    runs = [write(tmp_path / str(i), one, 0.0, 1 - (one[0] - 0.7) ** 2 - (one[1] - 0.2) ** 2) for i, one in enumerate(SIX)]
    told = best_mixture(runs)
    assert (
        "expected best: " in told and " 0.7, " in told and " 0.2, " in told and "eval/total 1.000; best of the 6 runs: " in told
    )
    (runs[0] / "metrics.jsonl").write_text('{"step": 1}\n')
    refused("has no eval/total: give it", best_mixture, runs)
    with pytest.raises(ValueError, match=r"odd has eval/total = nan at last: leave the run out"):
        best_mixture([write(tmp_path / "odd", SIX[0], 0.5, float("nan"))])
    alone = write(tmp_path / "alone", SIX[0], 1.0)
    configs.save(configs.load("tiny/image").config, alone / "config.toml")
    refused(r"is no run of \[\[data\]\] tables with weights", best_mixture, [alone])


def test_the_verb_takes_runs_or_methods():
    import_module("mmrl.app.cli.program")
    arena = import_module("mmrl.lab.verbs").arena
    refused("give --task, --methods and --budget-seconds, or --mixtures", arena, None, None, None)
    refused("--mixtures reads finished runs, and nothing else", arena, "grounding", None, None, mixtures="a,b")


def main(folder: Path, kill_at: int) -> None:
    """The contest that is killed, in a process of its own."""
    clock = ticks(kill_at)
    lane_module.clock_of = lambda job: lambda: next(clock)
    arena(small_contest(folder), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
