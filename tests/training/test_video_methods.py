"""Video methods in the whole loop, on the fake policy: probes, injected rows, planners that remember, groups on two ranks."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.video import DifficultyAware, WithTruth
from mmrl.algorithms.presets.baselines import grpo
from mmrl.algorithms.presets.video import tw_grpo
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.algorithms.weights.importance import GroupDivergence
from mmrl.core.ranks import Ranks
from mmrl.core.readings import GROUP_DIVERGENCE, OLD_ENTROPY, OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Group, Reading, Request, Revision, Video
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.optim import OptimizerSettings
from mmrl.training.trainer import Trainer
from tests.support.fakes import FakeTextPolicy, prompts, right_letter
from tests.support.presets import VIDEO
from tests.support.trainers import batches_of, make_trainer, untimed, weights

CLIPS = [replace(prompt, media=(Video("clip.mp4", fps=2.0),)) for prompt in prompts()]


def video_trainer(name: str, media=CLIPS, **kwargs) -> Trainer:
    """Of a preset by its name; the fake policy writes letters, so a given answer is a letter."""
    algorithm = VIDEO[name]
    if isinstance(algorithm.planner, WithTruth):
        algorithm = replace(algorithm, planner=replace(algorithm.planner, template="{answer}"))
    if isinstance(algorithm.planner, DifficultyAware):
        algorithm = replace(algorithm, planner=replace(algorithm.planner, window=16))
    policy = FakeTextPolicy(views=algorithm.views)
    media = prompts() if name == "papo" else media
    return make_trainer(algorithm, policy=policy, sampler=Shuffled(media, seed=0), **kwargs)


@pytest.mark.parametrize("name", sorted(VIDEO))
def test_updates_do_not_depend_on_the_budget(name):
    parts, whole = video_trainer(name, micro_batch=9), video_trainer(name, micro_batch=10_000)
    for _ in range(2):
        parts.step()
        whole.step()
    torch.testing.assert_close(weights(parts), weights(whole), atol=2e-5, rtol=1e-4)


def test_tw_grpo_with_uniform_weights_is_grpo():
    uniform = replace(tw_grpo, importance=(GroupDivergence(alpha=1.0),))
    plain = replace(grpo, objective=tw_grpo.objective, aggregation=tw_grpo.aggregation)
    trainers = [make_trainer(algorithm) for algorithm in (uniform, plain, tw_grpo)]
    for trainer in trainers:
        for _ in range(3):
            trainer.step()
    assert torch.equal(weights(trainers[0]), weights(trainers[1]))
    assert not torch.allclose(weights(trainers[0]), weights(trainers[2]))


def test_divergence_compares_the_rows_of_one_group_only():
    trainer = video_trainer("tw_grpo", prompts_per_step=3, micro_batch=10_000)
    rollouts = trainer.collector.collect().rollouts
    shuffled = rollouts.take(torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(0)))
    found = trainer.reader.read_rows(shuffled, [GROUP_DIVERGENCE, OLD_ENTROPY])
    alone = Reading("group_divergence")
    for group_id in shuffled.group_ids.unique():
        own = shuffled.take((shuffled.group_ids == group_id).nonzero()[:, 0])
        expected = trainer.policy.read(own.trace, [alone], own.action_mask)[alone]
        torch.testing.assert_close(found[GROUP_DIVERGENCE][shuffled.group_ids == group_id], expected)
    everything = trainer.policy.read(shuffled.trace, [alone], shuffled.action_mask)[alone]
    assert not torch.allclose(found[GROUP_DIVERGENCE], everything)


def test_probes_are_scored_and_never_trained():
    trainer = video_trainer("t_grpo")
    seen = batches_of(trainer)
    collected = trainer.collector.collect()
    assert len(collected.rollouts) == 4 * 8
    for group in collected.rollouts.groups:
        assert [one.role for one in group.probes["shuffled"]] == ["probe"] * 4
        rows = collected.rollouts.group_ids == group.id
        means = collected.scores.values[rows, collected.scores.names.index("letter@shuffled")]
        probes = right_letter(replace(group, samples=group.probes["shuffled"]))
        assert means.tolist() == pytest.approx([sum(probes) / 4] * 8)
    assert collected.scores.weights.tolist() == [1, 0]
    metrics = trainer.step()
    assert [len(batch) for batch in seen] == [32]
    assert "reward/letter@shuffled" in metrics and "reward/temporal" in metrics


def test_shuffled_frames_are_what_probes_see():
    trainer = video_trainer("t_grpo", steps=40, prompts_per_step=24, optimizer=OptimizerSettings(lr=2e-2))
    last = [trainer.step() for _ in range(40)][-1]
    assert last["reward/letter"] > last["reward/letter@shuffled"] + 0.3


def test_without_clips_t_grpo_is_grpo():
    plain, video = make_trainer(), video_trainer("t_grpo", media=prompts())
    for trainer in (plain, video):
        trainer.step()
    torch.testing.assert_close(weights(plain), weights(video))


def test_injected_rows_are_read_before_the_first_update():
    trainer = video_trainer("temp_samp_r1")
    collected = trainer.collector.collect()
    samples = [sample for _, sample in collected.rollouts.samples()]
    given = torch.tensor([sample.role == "injected" for sample in samples])
    assert given.sum() == 4
    sampled, old = collected.rollouts.recorded[ROLLOUT_LOGPROBS], OLD_LOGPROBS
    assert sampled[given].isnan().all() and sampled[~given].isfinite().all()
    assert collected.scores.values[given, 0].min() >= 1, "the given answer is the right one"
    assert trainer.reader.read(collected.rollouts, check=True)[old].isfinite().all()


def test_changed_prompts_take_the_place_of_their_groups():
    trainer = video_trainer("deepvideo_r1", prompts_per_step=8)
    drawn: list[list[Request]] = []
    rollout = trainer.policy.rollout
    trainer.policy.rollout = lambda requests, sampling=None: (drawn.append(list(requests)), rollout(requests, sampling))[1]
    for _ in range(6):
        collected = trainer.collector.collect()
        assert sorted(collected.rollouts.group_ids.tolist()) == sorted(
            group for group in {group.id for group in collected.rollouts.groups} for _ in range(8)
        )
        texts = {group.id: group.prompt.text for group in collected.rollouts.groups}
        assert not any("The right answer is" in text for text in texts.values()), "nobody trains on prompts that tell the answer"
    told = [request for requests in drawn for request in requests if "Begin like this" in request.prompt.text]
    worse = [r for requests in drawn for r in requests if r.prompt.media and r.prompt.media[0].noise is not None]
    assert told and worse


def test_resumed_planners_know_what_they_knew(tmp_path: Path):
    whole, first, second, forgetful = (video_trainer("deepvideo_r1", steps=6) for _ in range(4))
    metrics = [whole.step() for _ in range(6)]
    for _ in range(3):
        first.step()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, first.state_dict(), Ranks())
    state = checkpoints.load()
    assert len(state["planner"]["rewards"]) == 16
    second.load_state_dict(state)
    for expected in metrics[3:]:
        assert untimed(second.step()) == pytest.approx(untimed(expected), rel=0, abs=0, nan_ok=True)
    assert torch.equal(weights(whole), weights(second))
    forgetful.load_state_dict({**state, "planner": {"rewards": [], "window": 16}})
    assert untimed(forgetful.step()) != pytest.approx(untimed(metrics[3]), rel=0, abs=0, nan_ok=True)


def test_more_of_unknown_groups_is_refused():
    @dataclass(frozen=True)
    class Wrong(Once):
        @property
        def max_rounds(self) -> int:
            return 2

        def revise(self, groups, scores, group_ids, wanted, round_index) -> Revision:
            return Revision([Request(groups[0].prompt, 2, 99)])

    trainer = make_trainer(replace(grpo, planner=Wrong()))
    with pytest.raises(ValueError, match=r"Wrong asks for more of the groups \[99\], which this step has not sampled"):
        trainer.step()


def test_a_reward_that_says_nothing_of_probes_gives_no_bonus():
    def failing_on_probes(group: Group) -> list[float | None]:
        return [None] * len(group.samples) if group.samples[0].role == "probe" else list(right_letter(group))

    metrics = video_trainer("t_grpo", function=failing_on_probes).step()
    assert math.isnan(metrics["reward/letter@shuffled"]) and math.isnan(metrics["reward/temporal"])
    assert metrics["reward/letter@shuffled/na"] == 1
