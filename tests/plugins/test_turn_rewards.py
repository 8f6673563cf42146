"""Rewards of episodes: what observations state counts, and what a model writes about tools does not."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mmrl import Group, Observation, Prompt, Sample, Scored, Turn
from mmrl.app.plugins.resolve import load
from mmrl.serving.judges.judge import Question, Reply

ROOT = Path(__file__).parents[2]
environment = load(str(ROOT / "rewards" / "environment.py"), "rewards")
ToolBonus = load(str(ROOT / "rewards" / "tool_bonus.py"), "rewards")
TurnFormat = load(str(ROOT / "rewards" / "turn_format.py"), "rewards")
Consistency = load(str(ROOT / "rewards" / "consistency.py"), "rewards")


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

    async def later(group: Group) -> list[float]:
        return [1.0] * len(group.samples)

    assert ToolBonus(correct=later)(group(*samples)) == [1.0, 1.0, 0.0, 0.0]


def said(*texts: str) -> Sample:
    return Sample(text=texts[-1], turns=tuple(Turn(text, (i, i + 1)) for i, text in enumerate(texts)))


CALL = '<tool_call>{"name": "zoom", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("sample", "share"),
    [
        (said(f"<think>closer</think>{CALL}", "<answer>7</answer>"), 1.0),
        (said("so it is</think>7"), 1.0),
        (said(f"{CALL[:-5]}", "7"), 0.5),
        (said('<tool_call>{"name"}</tool_call>', "<answer>7"), 0.0),
        (said("<think>a<think>b</think>", "7</answer>", "7", "7"), 0.5),
        (Sample(text="7"), 1.0),
    ],
)
def test_turns_are_well_formed_or_not(sample: Sample, share: float):
    (found,) = TurnFormat()(group(sample))
    assert found.value == share
    assert found.parts["malformed"] == (1 - share) * max(1, len(sample.turns))
    (whole,) = TurnFormat(whole=True)(group(sample))
    assert whole.value == float(share == 1)


def test_with_json_every_turn_is_an_object():
    score = TurnFormat(form="json")
    good = '{"thought": "", "actions": [{"name": "Terminate", "arguments": {"ans": "7"}}]}'
    assert [one.value for one in score(group(said(good, good), said(good, "7"), said('{"actions": 3}')))] == [1.0, 0.5, 0.0]
    assert TurnFormat(form="code")(group(said("<code>\nprint(1)</code>", "<code>print(1)")))[0].value == 0.5


def test_a_judge_is_asked_about_right_answers_alone(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def replies(server: object, questions: list[Question], read: Callable[[Reply], Scored]) -> list[Scored]:
        asked.extend(question.text for question in questions)
        return [read(Reply("0" if "it is 8" in question.text else "1")) for question in questions]

    monkeypatch.setattr(sys.modules[Consistency.__module__], "ask_for_scores", replies)
    samples = (Sample(text="7", earlier="it is 8, "), Sample(text="7", earlier="it is 7, "), Sample(text="9"))
    values = Consistency(correct=lambda group: [1.0, 1.0, 0.0])(group(*samples))
    assert [one.value if isinstance(one, Scored) else one for one in values] == [0.0, 1.0, 0.0]
    assert len(asked) == 2 and "it is 8, 7" in asked[0]
    assert Consistency(correct=lambda group: [None])(group(samples[0])) == [None] and len(asked) == 2
    Consistency()(group(*samples))
    assert len(asked) == 5
    with pytest.raises(ValueError, match="a sample of prompt 'p' has no text to judge"):
        Consistency()(group(Sample()))
