"""Collecting: rounds that are merged, prompts that cannot be shown, and rewards that work while the policy samples."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group, Prompt, Request, Revision, Rollouts, Scores, Video
from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
from mmrl.policies.video.sampling import VideoSettings
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.training.callbacks import Examples
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.collect import merge_rollouts
from mmrl.training.evaluate import SEED_STEP, EvaluationSettings, Evaluator, SeenPrompts
from mmrl.training.prompt_source import Drawing
from mmrl.training.rewards.runner import RewardError
from mmrl.training.stopping import AskedToStopError, TrainingStoppedError
from mmrl.training.trainer import Records
from tests.support.fakes import FakeTextPolicy, PlayedRanks, prompts, right_letter
from tests.support.trainers import make_trainer, untimed
from tests.support.videos import even, write_video
from tests.training.test_trainer import half_dead


@dataclass(frozen=True)
class OnceMore:
    """Asks for two samples more of every group, after the first round."""

    max_rounds: int = 2
    asked: list[Prompt] = field(default_factory=list)

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> list[Request]:
        return [Request(prompt, group_size, first_id + i, seed=seed + i) for i, prompt in enumerate(prompts)]

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Any, wanted: int, round_index: int) -> Revision:
        return Revision(requests=[Request(group.prompt, 2, group.id, seed=900 + group.id) for group in groups])


def test_samples_added_to_a_group_follow_those_it_has():
    policy, (a, b, c) = FakeTextPolicy(), prompts()[:3]
    old = policy.rollout([Request(a, 2, 5, seed=1), Request(b, 3, 6, seed=2)])
    new = policy.rollout([Request(b, 2, 6, seed=3), Request(c, 1, 9, seed=4), Request(a, 1, 5, seed=5)])
    merged = merge_rollouts(policy, old, new)
    rows = list(zip(merged.group_ids.tolist(), merged.sample_ids.tolist(), strict=True))
    assert rows == [(5, 0), (5, 1), (6, 0), (6, 1), (6, 2), (6, 3), (6, 4), (9, 0), (5, 2)]
    assert {group.id: len(group.samples) for group in merged.groups} == {5: 3, 6: 5, 9: 1}
    before = [sample for part in (old, new) for _, sample in part.samples()]
    assert [sample for _, sample in merged.samples()] == before


def test_a_step_with_a_later_round_scores_every_sample_by_its_own_answer():
    algorithm = replace(PRESETS["dr_grpo"], planner=OnceMore())
    trainer = make_trainer(algorithm, lambda group: [float(len(sample.token_ids or ())) for sample in group.samples])
    collected = trainer.collector.collect()
    assert collected.rounds == 2 and len(collected.rollouts) == 4 * (8 + 2)
    assert collected.scores.values[:, 0].tolist() == collected.rollouts.action_mask.sum(1).tolist()


def test_longer_rounds_lengthen_the_rows_of_shorter_ones():
    short, long = FakeTextPolicy(length=4), FakeTextPolicy(length=4)
    old = short.rollout([Request(prompts()[0], 2, 0)]).take(torch.arange(2), slice(0, 2))
    new = long.rollout([Request(prompts()[1], 1, 1)])
    merged = merge_rollouts(long, old, new)
    assert merged.action_mask.shape == (3, 4) and not merged.action_mask[:2, 2:].any()
    assert torch.equal(merged.action_mask[2], new.action_mask[0])


def test_a_round_without_prompts_asks_for_nothing_and_uses_no_number():
    collector = make_trainer(PRESETS["dr_grpo"]).collector
    first = collector.requests_for(2)
    assert sorted({request.group_id for request in first}) == [0, 1]
    assert collector.requests_for(0) == []
    assert min(request.group_id for request in collector.requests_for(1)) == 2


@dataclass
class Choosy(FakeTextPolicy):
    """Cannot read the first `bad` prompts."""

    bad: int = 0

    def unreadable(self, prompts: Sequence[Prompt]) -> dict[int, str]:
        return {i: f"prompt {prompt.id!r}: no such clip" for i, prompt in enumerate(prompts) if int(prompt.id) < self.bad}


def test_unreadable_prompts_are_skipped_counted_and_replaced(caplog: pytest.LogCaptureFixture):
    run = make_trainer(policy=Choosy(bad=2), max_skipped=2, prompts_per_step=4, sampler=Shuffled(prompts()[:6], seed=0))
    metrics = [run.step() for _ in range(4)]
    seen = [prompt.id for prompt in run.collector.draw(4)]
    assert metrics[-1]["data/skipped"] == 2 and metrics[0]["rollout/actions"] > 0
    assert not {"0", "1"} & set(seen)
    said = [record.message for record in caplog.records if "skipped" in record.message]
    assert len(said) == 2 and "no such clip" in said[0]


def test_beyond_the_limit_the_run_stops_and_names_the_prompt_and_where_nothing_can_be_read():
    with pytest.raises(TrainingStoppedError, match="no readable prompt"):
        Drawing(Shuffled(prompts()[:2], seed=0), Choosy(bad=2), Ranks(), limit=5)(1)
    run = make_trainer(policy=Choosy(bad=3), max_skipped=2, sampler=Shuffled(prompts()[:6], seed=0))
    with pytest.raises(TrainingStoppedError, match=r"3 prompts could not .* max_skipped is 2; the last: prompt '.*no such clip"):
        for _ in range(4):
            run.step()


def test_a_resumed_run_remembers_what_it_skipped():
    run, fresh = (make_trainer(policy=Choosy(bad=2), max_skipped=2, sampler=Shuffled(prompts()[:6], seed=0)) for _ in range(2))
    for _ in range(3):
        run.step()
    fresh.load_state_dict(run.state_dict())
    assert fresh.collector.skipped == run.collector.skipped != {}


def test_ranks_look_at_their_own_prompts_and_skip_the_same():
    """The bad prompt is the first of the second half, which rank 1 looks at and rank 0 does not."""
    data, found = [prompts()[i] for i in (1, 2, 0, 3)], {2: "prompt '0': no such clip"}
    for ranks in (PlayedRanks(lambda x: [x, found], 0), PlayedRanks(lambda x: [{}, x], 1)):
        assert Drawing(Shuffled(data, 0), Choosy(bad=1), ranks, limit=1).wrong(data) == found


@pytest.mark.parametrize("workers", [0, 1])
def test_a_truncated_clip_is_skipped_by_the_real_policy(tmp_path: Path, workers: int):
    good = [write_video(tmp_path / f"{i}.mp4", even(10)) for i in range(2)]
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(Path(good[0]).read_bytes()[:400])
    data = [
        Prompt(name, "What happens?", (Video(source),), columns={"file_row": f"clips.jsonl, row {row}"})
        for row, (name, source) in enumerate([("good", good[0]), ("cut", str(cut)), ("fine", good[1])], start=1)
    ]
    video = VideoSettings(workers=workers, cache_mb=8)
    policy = TextPolicy(TextPolicyConfig(model=str(build("qwen3_vl", tmp_path / "model")), video=video))
    drawing = Drawing(Shuffled(data, 0), policy, Ranks(), limit=1)
    drawn = drawing(6)
    assert {prompt.id for prompt in drawn} == {"good", "fine"}
    assert "cut.mp4" in drawing.skipped["cut"] and "clips.jsonl, row 2" in drawing.skipped["cut"]
    assert policy.encode(drawn[-1], seed=5).seed == 5


class Greedy(FakeTextPolicy):
    """Draws from the global generator, too, and notes how much is sampled together."""

    def rollout(self, requests: Any, sampling: Any = None) -> Rollouts:
        torch.rand(3)
        self.together = [*getattr(self, "together", []), [(request.prompt.id, request.seed) for request in requests]]
        return super().rollout(requests, sampling)


def test_answers_have_fixed_seeds_no_scores_and_leave_random_states_alone():
    policy, found = Greedy(), dict[int, Examples]()
    settings = EvaluationSettings(seed=7, batch_size=2)
    seen = SeenPrompts(policy, prompts(3), settings, None, Ranks(), found.__setitem__)
    # beartype, which checks types in tests, draws from Python's own generator
    before = torch.get_rng_state()
    seen(0)
    seen(4)
    assert torch.equal(torch.get_rng_state(), before)
    numbers = [(prompt.id, 7 * SEED_STEP + i) for i, prompt in enumerate(prompts(3))]
    assert policy.together == [numbers[:2], numbers[2:]] * 2
    assert [group.id for group in found[4].groups] == [0, 1, 2]
    assert [group.samples for group in found[0].groups] == [group.samples for group in found[4].groups]
    assert found[0].scores.names == () and found[0].scores.total().isnan().all() and len(found[0].scores.total()) == 3


class Steps:
    """Notes when it is called; asks to stop at one of them."""

    def __init__(self, stop_at: int = -1) -> None:
        self.steps, self.stop_at = list[int](), stop_at

    def __call__(self, step: int) -> None:
        if step == self.stop_at:
            raise AskedToStopError("test")
        self.steps.append(step)


def test_prompts_are_answered_at_the_start_every_few_steps_and_at_the_end():
    seen = Steps()
    make_trainer(steps=5, samples_every=2, records=Records(seen=seen)).fit()
    assert seen.steps == [0, 2, 4, 5]


def test_a_run_that_is_stopped_there_answers_once_more_when_it_goes_on(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    first = make_trainer(steps=4, samples_every=2, records=Records(checkpoints=checkpoints, seen=Steps(stop_at=2)))
    first.fit()
    assert first.is_stopped and checkpoints.steps() == [2]
    again = make_trainer(steps=4, samples_every=2, records=Records(seen=(seen := Steps())))
    again.load_state_dict(checkpoints.load())
    again.fit()
    assert seen.steps == [2, 4]


def test_a_run_with_held_out_prompts_answers_none_of_those_it_trains_on():
    trainer = make_trainer(steps=2, samples_every=1, records=Records(seen=(seen := Steps())))
    trainer.evaluator = Evaluator(trainer.policy, prompts(2), trainer.collector.rewards, EvaluationSettings())
    trainer.fit()
    assert seen.steps == []


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


def in_parts(parts: int, preset: str = "grpo", function: Any = right_letter) -> tuple[list[dict[str, float]], Watched]:
    policy = Watched()
    trainer = make_trainer(PRESETS[preset], function, policy=policy, rollout_parts=parts)
    return [trainer.step() for _ in range(4)], policy


@pytest.mark.parametrize("parts", [2, 3, 4, 9])
@pytest.mark.parametrize(("preset", "function", "rounds"), [("grpo", right_letter, 1), ("dapo", half_dead, 2)])
def test_a_run_in_parts_is_the_same_run(parts, preset, function, rounds):
    whole, _ = in_parts(1, preset, function)
    some, policy = in_parts(parts, preset, function)
    assert max(metrics["rollout/rounds"] for metrics in whole) >= rounds
    for a, b in zip(whole, some, strict=True):
        assert untimed(b) == pytest.approx(untimed(a), abs=1e-6, nan_ok=True)
    first = policy.asked[: min(parts, 4)]
    assert sorted(group for part in first for group in part) == [0, 1, 2, 3] and max(map(len, first)) - min(map(len, first)) <= 1


def test_rewards_work_while_the_policy_samples():
    """Each sampling but the first waits for the reward of the part before: without overlap this would never end."""
    scored = threading.Semaphore(0)

    async def slow(group: Group) -> list[float]:
        scored.release()
        return right_letter(group)

    def meanwhile() -> None:
        assert scored.acquire(timeout=60), "the reward did not start before the next part was sampled"

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

    metrics, _ = in_parts(4, function=fussy)
    assert count["failed"] == 4 and metrics[0]["reward/letter/failed"] == pytest.approx(0.25)
    assert metrics[0]["time/reward/letter/p95_s"] >= metrics[0]["time/reward/letter/p50_s"] >= 0 < metrics[0]["time/rollout_s"]
    with pytest.raises(RewardError, match="failed on 32 of 32"):
        in_parts(4, function=lambda group: 1 / 0)


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
    announced, drawn = list[list[str]](), list[list[str]]()

    class Ahead(FakeTextPolicy):
        prefetches = True

        def prefetch(self, prompts: Any) -> None:
            announced.append([prompt.id for prompt in prompts])

        def rollout(self, requests: Sequence[Request], sampling: Any = None):
            drawn.append([request.prompt.id for request in requests])
            return super().rollout(requests, sampling)

    trainer = make_trainer(PRESETS["grpo"], policy=Ahead())
    for _ in range(3):
        trainer.step()
    assert announced[:2] == drawn[1:] and announced[0] != announced[1]
