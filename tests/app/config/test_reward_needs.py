"""The table of what rewards need says of a prompt what the reward itself does with it."""

import pytest

from mmrl.answers.boxes.box import Box
from mmrl.answers.spans.interval import Interval
from mmrl.app.config.reward_needs import NEEDS, needs_of
from mmrl.app.plugins.resolve import listing, load
from mmrl.core.types import Group, Prompt, Sample

BOX, SPAN = (Box(1, 2, 3, 4),), Interval(1, 2)
WRONG = {
    **dict.fromkeys(("iou", "giou", "point_in_box", "multi_box", "choice", "number", "ocr_wer", "rouge"), SPAN),
    **dict.fromkeys(("temporal_iou", "key_frame"), BOX),
    "mask_iou": "no mask",
}
"""Reward -> an answer that it cannot read."""
SETTINGS = {name: {"space": "norm1000"} for name in ("iou", "giou", "point_in_box", "multi_box")} | {
    "json_schema": {"column": "schema"},
    "suite_judge": {"suite": "imgedit"},
}


def test_the_table_speaks_of_shipped_rewards_only():
    assert NEEDS.keys() <= {listed.name for listed in listing("rewards")}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_an_answer_of_another_kind_is_refused_as_the_reward_refuses_it(name):
    reward = load(name, "rewards")(**SETTINGS.get(name, {}))
    asked = Prompt("p", "Where?", answer=WRONG[name])
    [(found, need, made)] = needs_of(name, {}, reward)
    assert (found, made) == (name, reward)
    with pytest.raises(ValueError):
        need.reads(asked, reward, "text")
    with pytest.raises(ValueError):
        reward(Group(0, asked, (Sample("1"),)))
    bare = Prompt("p", "Where?")
    assert need.reads(bare, reward, "text") is None
    assert reward(Group(0, bare, (Sample("1"),))) == [None]


@pytest.mark.parametrize(
    "name", ["ocr", "shapes", "gliding_shapes", "shape_edits", "keeps_rest", "toward_target", "by_type", "suite_judge"]
)
def test_a_prompt_without_columns_is_refused_as_the_reward_refuses_it(name):
    bare, reward = Prompt("p", "a cat"), load(name, "rewards")(**SETTINGS.get(name, {}))
    with pytest.raises(ValueError):
        NEEDS[name].reads(bare, reward, "image")
    with pytest.raises(ValueError):
        reward(Group(0, bare, (Sample("1"),)))


def test_prompts_that_say_what_is_needed_are_taken():
    for name, prompt in {
        "iou": Prompt("p", "Where?", answer=BOX),
        "temporal_iou": Prompt("p", "When?", answer=SPAN),
        "ocr": Prompt("p", 'a sign "stop"'),
        "object_counts": Prompt("p", "a cat", columns={"include": [{"class": "cat", "count": 1}]}),
        "by_type": Prompt("p", "How many?", answer="3", columns={"problem_type": "numerical"}),
        "vlm_judge": Prompt("p", "a cat"),
    }.items():
        assert NEEDS[name].reads(prompt, load(name, "rewards")(), "image") is not None, name
    assert NEEDS["object_counts"].reads(Prompt("p", "a cat"), None, "image") is None


def test_rewards_inside_rewards_are_looked_at():
    inner = load("ocr", "rewards")()
    reward = load("pairwise_win_rate", "rewards")(scorer=inner)
    found = needs_of("pairwise_win_rate", {"scorer": {"use": "ocr"}}, reward)
    assert [(name, made) for name, _, made in found] == [("pairwise_win_rate", reward), ("ocr", inner)]


def test_a_file_of_ones_own_of_that_name_is_left_alone(tmp_path):
    (tmp_path / "ocr.py").write_text("def ocr(group):\n    return [1.0 for _ in group.samples]\n")
    assert list(needs_of(f"{tmp_path}/ocr.py", {}, None)) == []
