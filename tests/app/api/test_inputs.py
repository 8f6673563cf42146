"""Python objects as the tables of a config: what is shipped keeps its name, what is not is lent by name."""

from dataclasses import dataclass, replace

import pytest

import mmrl
from mmrl.app.api.inputs import Lent, as_prompts, kind_for, kind_of_model, merge, policy_table
from mmrl.app.config.algorithm import assemble
from mmrl.app.plugins.python_objects import find_object, is_of_python, offer
from mmrl.app.toml.tables import Table
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.policies.text.settings import Sampling
from tests.support.each import for_each


def one(group: mmrl.Group) -> list[float]:
    return [1.0 for _ in group.samples]


@dataclass(frozen=True)
class Minus:
    """r - shift: a part that mmrl does not ship."""

    shift: float = 0.5

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        values = (scores.total() - self.shift)[:, None].expand_as(rollouts.action_mask)
        return Credit(values, scores.total().isfinite())


@for_each("name", sorted(mmrl.presets))
def test_every_preset_is_recognised(name: str):
    algorithm = mmrl.presets[name]
    table = Lent().algorithm(algorithm)
    assert assemble(Table.of({"algorithm": table}, "test")).algorithm == algorithm and "preset" in table


@for_each("name", sorted(mmrl.presets))
def test_an_altered_preset_comes_back_whole(name: str):
    algorithm = replace(mmrl.presets[name], group_size=40)
    table = Lent().algorithm(algorithm)
    assert assemble(Table.of({"algorithm": table}, "test")).algorithm == algorithm


def test_a_part_of_ones_own_is_lent():
    lent = Lent()
    algorithm = replace(mmrl.presets["dr_grpo"], advantage=Minus(0.25))
    table = lent.algorithm(algorithm)
    assert table["advantage"] == {"use": "python:Minus", "shift": 0.25}
    with offer(lent.objects):
        assert assemble(Table.of({"algorithm": table}, "test")).algorithm == algorithm


def test_rewards_have_names_of_their_own():
    lent = Lent()
    tables = [lent.reward(reward) for reward in (one, {"use": one, "weight": 0.5}, lambda group: [], "iou=0.2")]
    assert tables == [
        {"use": "python:one"},
        {"use": "python:one_2", "weight": 0.5},
        {"use": "python:reward"},
        {"use": "iou", "weight": 0.2},
    ]
    with offer(lent.objects):
        assert find_object("python:one") is one
    with pytest.raises(ValueError, match="'python:one' was an object of a Python program"):
        find_object("python:one")


def test_texts_are_numbered_prompts():
    assert as_prompts(["a", "b"], "prompts") == [mmrl.Prompt("0", "a"), mmrl.Prompt("1", "b")]


def test_what_is_neither_prompt_nor_reward_is_named():
    with pytest.raises(TypeError, match=r"prompts\[1\] is int: give mmrl.Prompt objects, or texts"):
        as_prompts(["a", 3], "prompts")
    with pytest.raises(TypeError, match="a reward is 3: give a function of a group"):
        Lent().reward(3)


def test_the_kind_of_policy_follows_the_algorithm_or_the_model():
    assert [kind_for(name) for name in ("dapo", "flow_grpo", {"preset": "cps"}, {}, {"schedule": {"kind": "Full"}})] == [
        *("text", "flow", "flow", "text", "flow")
    ]
    assert [kind_of_model(name) for name in ("tiny:sd3", "tiny:shapes", "tiny:qwen3_vl", "hub/name")] == [
        *("flow", "flow", "text", "text")
    ]


def test_a_policy_is_a_name_a_table_or_its_settings():
    assert policy_table("m", "text") == {"kind": "text", "model": "m"}
    config = mmrl.TextPolicyConfig("m", sampling=Sampling(max_new_tokens=7))
    assert policy_table(config, "flow")["sampling"]["max_new_tokens"] == 7
    assert policy_table({"model": "m", "kind": "flow"}, "text") == {"kind": "flow", "model": "m"}


def test_tables_are_laid_over_each_other():
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": (1, 2)}) == {"a": {"b": 3, "c": 2}, "d": [1, 2]}
    assert is_of_python({"reward": [{"use": "python:x"}]}) and not is_of_python({"reward": [{"use": "iou"}]})
