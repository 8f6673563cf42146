"""Rewards of episodes: what observations state counts, and what a model writes about tools does not."""

from pathlib import Path

import pytest

from mmrl import Group, Observation, Prompt, Sample, Turn
from mmrl.app.plugins.resolve import load

ROOT = Path(__file__).parents[2]
environment = load(str(ROOT / "rewards" / "environment.py"), "rewards")
ToolBonus = load(str(ROOT / "rewards" / "tool_bonus.py"), "rewards")


def episode(*answers: Observation | None, text: str = "7") -> Sample:
    return Sample(text=text, turns=tuple(Turn("a", (i, i + 1), one) for i, one in enumerate(answers)))


def group(*samples: Sample) -> Group:
    return Group(0, Prompt("p", answer="7"), samples)


def test_rewards_of_turns_are_added():
    won = episode(Observation("go on", reward=0.25), Observation(reward=0.5, done=True))
    assert environment(group(won, episode(None), episode(Observation("hm")))) == [0.75, 0.0, 0.0]
    assert environment(group(episode(Observation("hm")), episode(None))) == [None, None]


def test_a_tool_counts_with_a_right_answer_alone():
    used, failed = Observation("", facts={"tool": 1.0}), Observation("", facts={"error": 1.0})
    samples = [episode(used, None), episode(used, None, text="8"), episode(failed, None), episode(None, text="7 <|image_pad|>")]
    right = ToolBonus(correct=lambda group: [float("7" in (one.text or "")) for one in group.samples])
    assert right(group(*samples)) == [1.0, 0.0, 0.0, 0.0]
    assert ToolBonus(correct=lambda group: [None])(group(samples[0])) == [None]
    with pytest.raises(ValueError, match=r"tool_bonus needs the reward that says what is right: set correct\.use"):
        ToolBonus()(group(samples[0]))
