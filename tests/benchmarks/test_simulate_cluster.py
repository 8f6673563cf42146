"""The simulator beside closed forms, and beside a clock that goes from one whole second to the next."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mmrl.app.plugins.resolve import shipped_folder


def ticked(steps: Sequence[tuple[tuple[int, ...], int, int]], samplers: int, ahead: int) -> list[int]:
    """When each step ends, where every second each sampler, the collector and the trainer do what they can."""
    ended, scored, now = list[int](), 0, 0
    waiting, busy, scoring, training = list[int](), [0] * samplers, 0, 0
    is_drawing = False
    while len(ended) < len(steps):
        if training and not (training := training - 1):
            ended.append(now)
        busy = [max(0, one - 1) for one in busy]
        if is_drawing and not waiting and not any(busy):
            # scoring takes at least a second here
            if not scoring:
                scoring = steps[scored][1] + 1
            scoring -= 1
            if not scoring:
                scored, is_drawing = scored + 1, False
        if not is_drawing and scored < len(steps) and len(ended) >= scored - ahead:
            waiting, is_drawing = list(steps[scored][0]), True
        for i in range(samplers):
            if waiting and not busy[i]:
                busy[i] = waiting.pop(0)
        if not training and len(ended) < scored and len(ended) < len(steps):
            training = steps[len(ended)][2]
        now += 1
    return ended


@pytest.mark.parametrize("samplers", [1, 2, 3])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_steps_end_when_a_clock_says_so(script, samplers: int, ahead: int):
    sim, draw = script("simulate_cluster"), random.Random(f"{samplers}/{ahead}")
    steps = [
        (tuple(draw.randint(1, 9) for _ in range(draw.randint(1, 5))), draw.randint(1, 5), draw.randint(1, 20)) for _ in range(30)
    ]
    works = [sim.Work(tuple(map(float, chunks)), float(scoring), float(update), 0.0) for chunks, scoring, update in steps]
    assert sim.ends(works, sim.Layout(1, samplers, ahead)) == ticked(steps, samplers, ahead)


def test_constant_steps_take_their_sum_or_their_slower_side(script):
    sim = script("simulate_cluster")
    work = sim.Work((2.0,) * 6, 1.0, 8.0, 0.5)
    seconds = {(n, k): sim.seconds_of([work], sim.Layout(1, n, k)) for n in (1, 4, 6) for k in (0, 1, 2)}
    assert [seconds[n, 0] for n in (1, 4, 6)] == [21.5, 13.5, 11.5]
    assert [seconds[n, 1] for n in (1, 4, 6)] == [seconds[n, 2] for n in (1, 4, 6)] == [13.0, 8.5, 8.5]
    assert sim.seconds_of([work], sim.Layout(4)) == 3.0 + 1.0 + 2.0 + 0.5
    assert sim.seconds_of([work], sim.Layout(4, 6, 1), exchange=2.0) == 4.5


def test_the_best_layout_is_small_and_one_that_runs(script):
    sim = script("simulate_cluster")
    measured = sim.Measured((sim.Work((1.0,) * 8, 0.0, 4.0, 0.0),), 8, False)
    assert [sim.best(measured, cards, 0.0, False)[0] for cards in (1, 3, 256)] == [
        sim.Layout(1),
        sim.Layout(1, 2, 1),
        sim.Layout(4, 8, 1),
    ]
    assert not sim.Layout(4, 6).runs(False) and sim.Layout(4, 6).runs(True), "each trainer has as many samplers"
    assert sim.best(measured, 256, 0.0, True)[0] == sim.Layout(4, 8, 1)
    assert sim.best(replace(measured, is_text=True), 256, 0.0, True)[0] == sim.Layout(4, 8, 1), "engines write for several"


def test_what_a_run_s_spans_say(script, tmp_path):
    sim, file = script("simulate_cluster"), tmp_path / "spans.jsonl"
    spans = [["rollout", 0.0, 5.0], ["generate", 0.5, 4.0], ["decode", 3.0, 1.0], ["reward", 5.0, 1.0], ["read", 6.0, 2.0]]
    spans += [["update", 8.0, 6.0], ["forward", 8.0, 2.0], ["backward", 10.0, 2.0], ["optimizer", 12.0, 1.5]]
    lines = [{"step": step, "seconds": 15.0, "is_first": step == 1, "spans": spans} for step in (1, 2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert sim.read_steps(file, 4) == (sim.Work((1.0,) * 4, 2.0, 6.5, 2.5),)
    file.write_text(json.dumps(lines[0]))
    with pytest.raises(ValueError, match=r"spans.jsonl has no steps but first ones of a process: train a few more"):
        sim.read_steps(file, 4)


@pytest.mark.parametrize("key", ["ahead", "cluster.samplers"])
def test_a_run_that_samples_ahead_does_not_say_what_sampling_takes(script, tmp_path, key: str):
    plain = (shipped_folder("configs") / "tiny" / "flow.toml").read_text()
    (tmp_path / "config.toml").write_text(f"{key} = 2\n{plain}")
    with pytest.raises(ValueError, match="measure a run with ahead = 0 and at most one"):
        script("simulate_cluster").read_run(tmp_path)
