"""Rewards that work while the policy samples: the same run, and the time of the slow one hidden."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mmrl.algorithms.planners.base import DynamicSampling
from mmrl.algorithms.presets import PRESETS
from mmrl.core.types import Group, Request
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.rewards.runner import RewardError
from mmrl.training.stopping import TrainingStoppedError
from mmrl.training.trainer import Records
from tests.support.fakes import FakeTextPolicy, right_letter
from tests.support.trainers import make_trainer


@dataclass
class Watched(FakeTextPolicy):
    """Remembers what it was asked, and waits for `meanwhile` before every sampling but the first."""

    asked: list[list[int]] = field(default_factory=list)
    meanwhile: Any = None

    def rollout(self, requests: Sequence[Request], sampling: Any = None):
        self.asked.append(sorted({request.group_id for request in requests}))
        if self.meanwhile is not None and len(self.asked) > 1:
            self.meanwhile()
        return super().rollout(requests, sampling)


def run(parts: int, algorithm: Any = PRESETS["grpo"], function: Any = right_letter) -> tuple[list[dict[str, float]], Watched]:
    policy = Watched()
    trainer = make_trainer(algorithm, function, policy=policy, rollout_parts=parts)
    return [trainer.step() for _ in range(4)], policy


@pytest.mark.parametrize("parts", [2, 3, 4, 9])
@pytest.mark.parametrize("preset", ["grpo", "dapo"])
def test_a_run_in_parts_is_the_same_run(parts, preset):
    whole, _ = run(1, PRESETS[preset])
    some, policy = run(parts, PRESETS[preset])
    for a, b in zip(whole, some, strict=True):
        same = {name for name in a if not name.startswith("time/")}
        assert {name: b[name] for name in same} == pytest.approx({name: a[name] for name in same}, abs=1e-6, nan_ok=True)
    first = policy.asked[: min(parts, 4)]
    assert sorted(group for part in first for group in part) == [0, 1, 2, 3] and max(map(len, first)) - min(map(len, first)) <= 1


def test_rewards_work_while_the_policy_samples():
    """Each sampling but the first waits for the reward of the part before: without overlap this would never end."""
    scored = threading.Semaphore(0)

    async def slow(group: Group) -> list[float]:
        scored.release()
        return right_letter(group)

    def meanwhile() -> None:
        assert scored.acquire(timeout=10), "the reward did not start before the next part was sampled"

    policy = Watched(meanwhile=meanwhile)
    trainer = make_trainer(PRESETS["grpo"], slow, policy=policy, rollout_parts=4)
    trainer.step()
    assert len(policy.asked) == 4


def test_budgets_of_failures_are_for_the_whole_step():
    """One prompt of four fails: within the micro_batch, though it is all of its part."""
    count = {"failed": 0}

    def fussy(group: Group) -> list[float]:
        if group.id % 4 == 2:
            count["failed"] += 1
            raise RuntimeError("judge is asleep")
        return right_letter(group)

    metrics, _ = run(4, function=fussy)
    assert count["failed"] == 4 and metrics[0]["reward/letter/failed"] == pytest.approx(0.25)

    def broken(group: Group) -> list[float]:
        raise RuntimeError("judge is asleep")

    with pytest.raises(RewardError, match="failed on 32 of 32"):
        run(4, function=broken)


def test_dynamic_sampling_scores_later_rounds_in_parts_too():
    from dataclasses import replace

    algorithm = replace(PRESETS["grpo"], planner=DynamicSampling())
    whole, _ = run(1, algorithm)
    some, _ = run(2, algorithm)
    assert [a["rollout/rounds"] for a in whole] == [b["rollout/rounds"] for b in some]


def test_the_step_tells_what_rewards_cost():
    metrics, _ = run(2)
    assert metrics[0]["time/reward/letter/p95_s"] >= metrics[0]["time/reward/letter/p50_s"] >= 0
    assert metrics[0]["time/rollout_s"] > 0


def test_a_reward_that_is_gone_stops_with_a_checkpoint_and_the_resumed_run_is_the_uninterrupted_one(tmp_path: Path):
    here = {"gone": True}

    def remote(group: Group) -> list[float]:
        if group.id >= 9 and here["gone"]:
            raise RewardUnavailableError("reward server http://127.0.0.1:1/x does not answer")
        return right_letter(group)

    whole = make_trainer(function=right_letter)
    expected = [whole.step() for _ in range(4)]
    records = Records(checkpoints=Checkpoints(tmp_path))
    trainer = make_trainer(function=remote, records=records)
    found = [trainer.step() for _ in range(2)]
    with pytest.raises(
        TrainingStoppedError, match=r"step 3: reward server .* does not answer; saved after step 2: mend it and resume"
    ):
        trainer.step()
    here["gone"] = False
    again = make_trainer(function=remote)
    again.load_state_dict(Checkpoints(tmp_path).load())
    found += [again.step() for _ in range(2)]
    for a, b in zip(expected, found, strict=True):
        assert b["loss"] == pytest.approx(a["loss"]) and b["reward/letter"] == pytest.approx(a["reward/letter"])


def test_the_next_prompts_are_announced_before_the_update():
    class Ahead(Watched):
        prefetches = True
        announced: list[list[str]] = []  # noqa: RUF012 - one policy per test
        drawn: list[list[str]] = []  # noqa: RUF012

        def prefetch(self, prompts: Any) -> None:
            self.announced.append([prompt.id for prompt in prompts])

        def rollout(self, requests: Sequence[Request], sampling: Any = None):
            self.drawn.append([request.prompt.id for request in requests])
            return super().rollout(requests, sampling)

    trainer = make_trainer(PRESETS["grpo"], right_letter, policy=Ahead())
    for _ in range(3):
        trainer.step()
    assert Ahead.announced[:2] == Ahead.drawn[1:]
    assert Ahead.announced[0] != Ahead.announced[1]
