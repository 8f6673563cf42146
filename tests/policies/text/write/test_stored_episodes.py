"""Episodes of earlier steps train again with the pictures that their worlds showed, whatever became of these since."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.algorithms.planners.replay import ReplayGroups, RowBuffer, rows_to_keep
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.episodes import Limits
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Credit, Group, Observation, Prompt, Request, Rollouts, Turn
from mmrl.policies.text.policy import TextPolicy
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support.rows import scores
from tests.support.text_policies import FP32_BOUND, ids_of, picture, prompts, text_trace
from tests.support.trainers import weights
from tests.support.worlds import Inline, player

LIMITS = Limits(turns=3, tokens=2000)


class Screens:
    """A world that shows one file, which it writes over, and one picture, which it draws on; nothing else, now and then."""

    def __init__(self, folder: Path) -> None:
        self.file, self.drawn = folder / "screen.png", Image.new("RGB", (64, 48))

    def __call__(self, prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
        number = seed % 89 + len(turns)
        picture(number, 48 + 32 * (number % 2), 64).save(self.file)
        self.drawn.paste(picture(number + 1))
        if len(turns) > 1 and number % 3 == 0:
            return None
        if number % 4 == 0:
            return Observation("Nothing.", facts={"error": 1.0})
        return Observation(f"See {len(turns)}:", (str(self.file), self.drawn), reward=float(number % 2), done=number % 11 == 0)


@pytest.fixture
def policy(folder: str, tmp_path: Path) -> TextPolicy:
    return player(folder, Inline(Screens(tmp_path), LIMITS))


def kept_of(rollouts: Rollouts) -> RowBuffer:
    """The rows as a buffer has them that was saved and read again."""
    zeros, buffer, again = torch.zeros(rollouts.action_mask.shape), RowBuffer(64), RowBuffer(64)
    buffer.begin(prompts(), "tokens")
    buffer.add(rows_to_keep(1, rollouts, scores(zeros[:, :1]), Credit(zeros, zeros[:, 0] == 0)), 1)
    saved = io.BytesIO()
    torch.save(buffer.state_dict(), saved)
    saved.seek(0)
    again.begin(prompts(), "tokens")
    again.load_state_dict(torch.load(saved, weights_only=True))
    assert again.rows == buffer.rows
    return again


def test_a_stored_episode_is_read_as_it_was_shown(policy: TextPolicy):
    first = policy.rollout([Request(prompts()[i], 4, i, seed=40 + i) for i in (0, 1)])
    policy.audit(first)
    buffer = kept_of(first)
    requests = [buffer.request(kept, 90 + i) for i, kept in enumerate(buffer.rows)]
    fresh = Request(prompts()[3], 2, 7, seed=3)
    again = policy.rollout([*requests, fresh])
    policy.audit(again)
    assert [sample.role for _, sample in again.samples()] == ["replayed"] * 8 + ["policy"] * 2
    before, after, endings = text_trace(first.trace), text_trace(again.trace), set[str | None]()
    for i, ((_, one), (_, other)) in enumerate(zip(first.samples(), list(again.samples())[:8], strict=True)):
        length = len(ids_of(one))
        assert replace(other, role="policy") == replace(one, turns=other.turns)
        for turn, same in zip(one.turns, other.turns, strict=True):
            was, now = ((x.observation and replace(x.observation, media=())) for x in (turn, same))
            assert was == now and replace(turn, observation=None) == replace(same, observation=None)
        for a, b in zip(before.insets[i], after.insets[i], strict=True):
            assert a.start == b.start and all(torch.equal(pixels, b.media[name]) for name, pixels in a.media.items())
            assert torch.equal(a.positions, b.positions)
        assert torch.equal(again.action_mask[i, :length], first.action_mask[i, :length])
        assert torch.equal(again.recorded[ROLLOUT_LOGPROBS][i, :length], first.recorded[ROLLOUT_LOGPROBS][i, :length])
        endings.add(one.ended)
    assert len(endings) > 1 and sum(map(len, before.insets)) > 5, "the worlds answered in several ways"
    read = policy.read(after, [LOGPROBS], again.action_mask)[LOGPROBS].detach()
    assert float((read - again.recorded[ROLLOUT_LOGPROBS])[again.action_mask].abs().max()) <= FP32_BOUND


def test_without_its_record_a_stored_episode_is_unknown(policy: TextPolicy):
    buffer = kept_of(policy.rollout([Request(prompts()[0], 2, 0, seed=41)]))
    again = policy.rollout([buffer.request(kept, -1 - i, keep_old=False) for i, kept in enumerate(buffer.rows)])
    policy.audit(again)
    assert bool(again.recorded[ROLLOUT_LOGPROBS][again.action_mask].isnan().all())


def test_pictures_that_become_other_tokens_are_refused(policy: TextPolicy):
    buffer = kept_of(policy.rollout([Request(prompts()[0], 4, 0, seed=41)]))
    kept = next(kept for kept in buffer.rows if len(kept.row.turns) > 1 and (kept.row.turns[0].observation or 0) and size(kept))
    heard = kept.row.turns[0].observation
    assert heard is not None
    large = replace(kept.row.turns[0], observation=replace(heard, media=(picture(1, 200, 200), *heard.media[1:])))
    row = replace(kept.row, turns=(large, *kept.row.turns[1:]))
    with pytest.raises(ValueError, match=r"after turn 1 of .* was \d+ tokens then and is \d+ others now: resume with the saved"):
        policy.rollout([buffer.request(kept._replace(row=row), 5)])


def size(kept: Any) -> int:
    return len(kept.row.turns[0].observation.media)


def stated(group: Group) -> list[float]:
    """What the world gave, and a little for its last words."""
    heard = [[turn.observation for turn in sample.turns if turn.observation is not None] for sample in group.samples]
    return [sum(one.reward or 0.0 for one in own) + len(text_of(own)) % 7 / 10 for own in heard]


def text_of(heard: list[Observation]) -> str:
    return "".join(str(one.media[-1].getpixel((3, 3))) for one in heard[:1] if one.media)


def test_resumed_is_uninterrupted(folder: str, tmp_path: Path):
    algorithm = replace(PRESETS["arpo_gui"], planner=ReplayGroups(share=0.5), minibatches=1, epochs=2, group_size=3)
    settings = TrainSettings(steps=4, prompts_per_step=2, micro_batch=4096, optimizer=OptimizerSettings(lr=1e-3))

    def fresh() -> Trainer:
        policy = player(folder, Inline(Screens(tmp_path), LIMITS))
        return Trainer(policy, algorithm, Shuffled(prompts(), seed=0), RewardRunner([NamedReward("said", stated)]), settings)

    whole, first, second = fresh(), fresh(), fresh()
    for trainer, steps in ((whole, 4), (first, 2)):
        for _ in range(steps):
            trainer.step()
    Checkpoints(tmp_path).save(2, first.state_dict(), Ranks())
    second.load_state_dict(Checkpoints(tmp_path).load())
    collected = first.collect().rollouts
    old = collected.is_replayed()
    assert int(old.sum()) == 6 and any(sample.turns[1:] for _, sample in collected.samples() if sample.role == "replayed")
    found = first.reader.read(collected, check=True)[OLD_LOGPROBS]
    noted = torch.where(collected.action_mask, collected.recorded[ROLLOUT_LOGPROBS], 0.0)
    assert torch.equal(found[old], noted[old])
    for _ in range(2):
        second.step()
    assert torch.equal(weights(whole), weights(second))
