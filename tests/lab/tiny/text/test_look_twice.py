"""The demo of looks: lessons as the environment gives them, people as hurried as they are said to be, tags that stay."""

from pathlib import Path
from typing import Any

import pytest

from mmrl.algorithms.planners.taught import Taught, dialogue_at
from mmrl.app.config import run as configs
from mmrl.app.plugins.resolve import load
from mmrl.core.samples import MediaSize, Prompt, Sample, Turn
from mmrl.core.types import Group
from mmrl.data.drawn.small_digits import SIDE
from mmrl.lab.tiny.taught import LOOKS, SERIES
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
from mmrl.policies.text.write.episodes import observe


def lessons(written: str, size: int = 40, seed: int = 3) -> list[Prompt]:
    return [*load("small_digits", "datasets")(size=size, seed=seed, written=written)]


def asked_again(prompt: Prompt) -> list[dict[str, Any]]:
    """The completion of people who looked."""
    found = prompt.columns["completion"]
    return found if isinstance(found, list) else []


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> TextPolicy:
    folder = LOOKS.build(tmp_path_factory.mktemp("tiny") / "model", 1)
    return TextPolicy(TextPolicyConfig(model=str(folder)))


def test_what_is_taught_is_what_the_environment_shows_token_by_token(policy: TextPolicy):
    prompt = next(one for one in lessons("hurried") if asked_again(one))
    call, answer = dialogue_at(prompt, "")
    observation = load("zoom", "environments")().open(prompt, 0).step(Turn(call.text, (0, 1)))
    assert observation is not None and observation.facts["tool"] == 1.0
    assert call.observation is not None and call.observation.text == observation.text
    assert call.observation.media[0].tobytes() == observation.media[0].tobytes()
    written = policy.tokenizer(call.text + policy.tokenizer.eos_token).input_ids
    shown = observe(policy.encode, observation, policy.tokenizer.eos_token).token_ids.tolist()
    said = policy.tokenizer(answer.text + policy.tokenizer.eos_token).input_ids
    rows = policy.rollout(Taught().first([prompt], 1, 0, 0))
    assert rows.groups[0].samples[0].token_ids == tuple(written + shown + said)
    mask = [1] * len(written) + [0] * len(shown) + [1] * len(said)
    assert rows.action_mask[0, : len(mask)].tolist() == mask and rows.action_mask.sum() == sum(mask)
    assert len(written) <= 26, "a call is longer than a turn of the demo"


def test_tags_are_tokens_of_their_own_which_decoding_keeps(policy: TextPolicy):
    ids = policy.tokenizer("<tool_call>[1]</tool_call>").input_ids
    assert [policy.tokenizer.decode(one) for one in (ids[:1], ids[-1:])] == ["<tool_call>", "</tool_call>"]
    assert policy.tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>[1]</tool_call>"


def test_the_two_skills_are_to_read_a_part_and_to_cut_it():
    for read, point in zip(lessons("read", 8), lessons("point", 8), strict=True):
        call = point.columns["completion"]
        shown = load("zoom", "environments")().open(point, 0).step(Turn(call, (0, 1)))
        assert shown.media[0].tobytes() == read.media[0].tobytes() and read.columns["completion"] == str(read.answer)
        sample = Sample(call, media_sizes=(MediaSize(*[SIDE] * 4),))
        [iou] = load("iou", "rewards")(space="norm1000")(Group(0, point, (sample,)))
        assert iou.value == pytest.approx(1)


def test_the_hurried_are_as_sloppy_as_they_say():
    shown = lessons("hurried", 300)
    looked = [one for one in shown if asked_again(one)]
    at_once = [one.columns["completion"] for one in shown if not asked_again(one)]
    assert 0.25 < len(looked) / len(shown) < 0.41 and 0.7 < at_once.count("1") / len(at_once) < 0.85
    right = [one.columns["completion"][-1]["content"] == str(one.answer) for one in looked]
    assert 0.45 < sum(right) / len(right) < 0.8
    assert shown[7].columns["completion"] == lessons("hurried", 300)[7].columns["completion"]


def test_what_is_taught_is_not_what_is_scored_or_trained_on():
    resolved = configs.load(LOOKS.config, LOOKS.words(5, short=False))
    seeds = {table["seed"] for table in [*resolved.table.values["data"], *resolved.table.values["stage"][1]["data"]]}
    assert seeds == {SERIES + 5} and configs.load("tiny/look_twice").config.data.args.get("seed", 0) != SERIES + 5
    assert Path("configs", f"{LOOKS.config}.toml").is_file()
