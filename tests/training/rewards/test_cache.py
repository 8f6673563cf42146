"""Answers given again: only for the very same input, media included, and only when they were answers."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.types import Group, Observation, Prompt, Sample, Scored, Status, Turn, Video
from mmrl.training.rewards.cache import NotCacheableError, digest
from mmrl.training.rewards.calls import Calling, Meter
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from tests.support.fakes import PlayedRanks

RED, BLUE = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")


@dataclass(frozen=True)
class Judge:
    """Scores by place in the alphabet; remembers what it was asked."""

    pointwise: bool = False
    asked: list[str] = field(default_factory=list, compare=False)

    def __call__(self, g: Group) -> list[float | Scored | None]:
        self.asked.append("".join(s.text or "" for s in g.samples))
        return [self.score(s.text or "") for s in g.samples]

    def score(self, text: str) -> float | Scored | None:
        return {"n": None, "f": math.nan}.get(text, Scored(float(ord(text)), {"seen": float(len(self.asked))}))


def group(text: str = "abc", prompt: str = "?", image: Image.Image | None = None) -> Group:
    return Group(0, Prompt("p", prompt), tuple(Sample(letter, image=image) for letter in text))


def runner(judge: Judge, size: int = 100) -> RewardRunner:
    return RewardRunner([NamedReward("judge", judge, call=Calling(cache=size), max_failed=1.0)])


def test_the_same_group_is_asked_once():
    judge = Judge()
    rewards = runner(judge)
    first, second = rewards.score([group()])[0], rewards.score([group()])[0]
    assert judge.asked == ["abc"]
    assert first.values.equal(second.values) and first.parts == second.parts
    assert rewards.drain_metrics()["reward/judge/cached"] == 0.5


def test_what_rewards_cost_is_counted_over_all_ranks():
    """The other process asked for nine samples and remembered none."""
    rewards = RewardRunner([NamedReward("judge", Judge(), call=Calling(cache=100, retries=1))])
    rewards.score([group()])
    rewards.score([group()])
    found = rewards.drain_metrics(PlayedRanks(lambda x: [x, [Meter(seconds=[9.0], retried=2, asked=9)]]))
    assert found["reward/judge/cached"] == 3 / (6 + 9) and found["reward/judge/retried"] == 2
    assert found["time/reward/judge/p95_s"] > 4, "the slowest group of any process"


@pytest.mark.parametrize(
    "other",
    [
        group("abd"),
        group(prompt="another prompt"),
        group(image=RED),
        replace(group(), prompt=Prompt("p", "?", answer=3)),
        replace(group(), prompt=Prompt("p", "?", columns={"kind": "ocr"})),
        replace(group(), probes={"shuffled": (Sample("x"),)}),
    ],
    ids=["text", "prompt", "image", "answer", "columns", "probes"],
)
def test_whatever_a_reward_may_look_at_counts(other):
    judge = Judge()
    rewards = runner(judge)
    for g in (group(), other):
        rewards.score([g])
    assert len(judge.asked) == 2


def test_the_same_pixels_in_another_shape_or_prompt_are_another_input():
    """Flow-Factory's cache of judgements compares bytes alone, without shape and prompt."""
    wide, tall = Image.new("RGB", (8, 2), "red"), Image.new("RGB", (2, 8), "red")
    assert wide.tobytes() == tall.tobytes()
    judge = Judge()
    rewards = runner(judge)
    for g in (group(image=wide), group(image=tall), group(prompt="b", image=wide), group(image=wide)):
        rewards.score([g])
    assert len(judge.asked) == 3


def test_a_file_is_known_by_its_content(tmp_path):
    file = tmp_path / "a.png"
    RED.save(file)
    g = Group(0, Prompt("p", "?", (str(file), Video(str(file)))), (Sample("a"),))
    before = digest(g)
    BLUE.resize((5, 5)).save(file)
    assert digest(g) != before
    with pytest.raises(NotCacheableError):
        digest(Prompt("p", media=(str(tmp_path / "gone.png"),)))


def test_pointwise_rewards_are_asked_for_new_samples_only_and_answers_alone_are_kept():
    judge = Judge(pointwise=True)
    rewards = runner(judge)
    rewards.score([group("abc")])
    [table] = rewards.score([group("dbea")])
    assert table.values[:, 0].tolist() == [ord(letter) for letter in "dbea"]
    for _ in range(2):
        [table] = rewards.score([group("af")])
        assert table.status[:, 0].tolist() == [Status.OK, Status.FAILED]
    assert judge.asked == ["abc", "de", "f", "f"]


def test_the_least_recently_used_leaves_first():
    judge = Judge(pointwise=True)
    rewards = runner(judge, size=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        rewards.score([group(text)])
    assert judge.asked == ["a", "b", "c", "b"]


def test_what_has_no_bytes_is_asked_every_time():
    judge = Judge()
    rewards = runner(judge)
    for _ in range(2):
        rewards.score([Group(0, Prompt("p", columns={"f": lambda: 1}), (Sample("a"),))])
    assert len(judge.asked) == 2


def test_rewards_that_say_they_vary_are_refused():
    class Random(Judge):
        deterministic = False

    with pytest.raises(ValueError, match="answers differently each time"):
        runner(Random())


def test_values_of_different_types_and_lengths_differ():
    things: list[Any] = [1, 1.0, "1", b"1", True, None, (1,), [1], ((1,),), (1, 1), {"a": 1}, {"a": "1"}, ("a", 1)]
    things += [
        np.ones(2),
        np.ones((2, 1)),
        np.ones(2, dtype=np.float32),
        torch.ones(2),
        torch.ones(2, dtype=torch.bfloat16),
        RED,
        BLUE,
    ]
    assert len({digest(thing) for thing in things}) == len(things)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_what_was_seen_between_turns_is_part_of_the_key(tmp_path: Path):
    RED.save(tmp_path / "seen.png")

    def key(media: object) -> bytes:
        return digest(Sample("a", turns=(Turn("look", (0, 1), Observation("here", (media,))),)))

    keys = [key(RED), key(BLUE), key(str(tmp_path / "seen.png"))]
    BLUE.resize((5, 5)).save(tmp_path / "seen.png")
    assert len({*keys, key(str(tmp_path / "seen.png"))}) == 4
