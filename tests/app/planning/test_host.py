"""The memory of a run's host: libraries as this process holds them, and a checkpoint's copy while it is written."""

from dataclasses import replace
from pathlib import Path

import pytest

from mmrl.app.commands import plan as planning
from mmrl.app.commands.options import PlanArguments
from mmrl.app.config import run as configs
from mmrl.app.planning.memory import CONTEXT, LIBRARIES, WRITTEN, Memory, overlap, resident_now, size_text

TEXT = ["data.size=16", "algorithm.group_size=2", "prompts_per_step=2", "policy.sampling.max_new_tokens=4"]


def told(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines[name].split()[0])


@pytest.mark.parametrize("words", [["policy.lora.rank=2"], ["checkpoint.asynchronous=false"]])
def test_a_plan_counts_what_lies_beside_a_card(words: list[str]):
    before = resident_now()
    memory = planning.draw_up(configs.load("tiny/image", [*TEXT, "steps=4", "save_every=2", *words])).memory
    assert 100 * 2**20 < memory.host[LIBRARIES] <= told("VmHWM")
    assert memory.host[LIBRARIES] >= before // 2
    shadows = sum("kept beside" in name for name in memory.stays)
    copied = memory.checkpoint(shadows) if "checkpoint.asynchronous=false" not in words else 0
    assert memory.host.get(WRITTEN, 0) == copied
    assert memory.resident == memory.peak + memory.host[LIBRARIES] + copied - memory.overlap
    assert 0 <= memory.overlap <= copied


def test_a_copy_counts_beside_sampling_where_steps_follow_it_and_else_instead_of_the_largest_phase():
    config = configs.load("tiny/image", [*TEXT, "steps=4"]).config
    config = replace(config, save_minutes=0.0)
    assert [overlap(50, 0, {"update": 30, "read": 20}, replace(config, save_every=every)) for every in (0, 1, 3, 4, 9)] == [
        *(30, 10, 10, 30, 30)
    ]
    assert overlap(25, 0, {"update": 30}, config) == 25
    by_time = [overlap(25, 0, {"update": 30}, replace(config, save_minutes=10.0, steps=steps)) for steps in (1, 2)]
    assert by_time == [25, 25], "the clock may ask for a checkpoint after any step, and the last one is followed by none"
    sampling = {"rollout": 28, "update": 30, "optimizer step": 20}
    assert overlap(50, 0, sampling, replace(config, save_every=1)) == 2, "updates wait for it, and sampling does not"
    assert overlap(50, 7, sampling, replace(config, save_every=1)) == 9, "nor are there gradients while it samples"
    memory = Memory({"weights": 100}, {"update": 30, "read": 20}, host={WRITTEN: 50}, overlap=30)
    # weights and the copy, for the update's 30 are free again
    assert memory.resident == 100 + 50


def test_with_a_card_the_sum_is_that_of_the_card(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    made = planning.draw_up(configs.load("tiny/image", TEXT))
    monkeypatch.setattr(planning, "draw_up", lambda *_, **__: made)
    sums: list[str] = []
    for card in (None, "24GB"):
        assert planning.plan(PlanArguments(["tiny/image", *TEXT], card=card))
        [line] = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("at most")]
        sums.append(line.split("at most")[1].strip())
    assert sums == [size_text(made.memory.resident), size_text(made.memory.peak + CONTEXT)]
