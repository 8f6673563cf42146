"""The demo of looks: lessons as the environment gives them, chances that are the model's own, and failure that is noticed."""

import itertools
from pathlib import Path

import pytest
import torch

from mmrl.app.plugins.resolve import load
from mmrl.core.samples import Prompt, Turn
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
from mmrl.policies.text.write.observe import observe
from mmrl.tiny.text import look_twice
from mmrl.tiny.text.look_twice import QUESTION, WarmStart, call_of, chances, demonstrations, draw_small_digit, teach
from mmrl.tiny.text.look_twice import _build as build
from mmrl.tiny.text.look_twice import _inputs as inputs

DRAWN = draw_small_digit(0, 0)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> TextPolicy:
    folder = look_twice.build(tmp_path_factory.mktemp("tiny") / "model", seed=1)
    return TextPolicy(TextPolicyConfig(model=str(folder)))


def test_what_is_taught_is_what_the_environment_shows_token_by_token(policy: TextPolicy):
    call = call_of(DRAWN.place)
    prompt = Prompt("1", QUESTION, (DRAWN.image,), DRAWN.digit)
    world = load("zoom", "environments")().open(prompt, 0)
    observation = world.step(Turn(call, (0, 1)))
    assert observation is not None and observation.facts["tool"] == 1.0
    [part] = observation.media
    lesson = look_twice.Lesson(DRAWN.image, QUESTION, str(DRAWN.digit), (call, look_twice.part_of(DRAWN, DRAWN.place)))
    assert lesson.look is not None and part.tobytes() == lesson.look[1].tobytes()
    fed = inputs(policy.processor, [lesson])
    written = policy.tokenizer(call + policy.tokenizer.eos_token).input_ids
    shown = observe(policy.encode, observation, policy.tokenizer.eos_token).token_ids.tolist()
    answer = policy.tokenizer(str(DRAWN.digit) + policy.tokenizer.eos_token).input_ids
    asked = policy.encode(prompt).token_ids.tolist()
    assert fed["input_ids"][0].tolist() == asked + written + shown + answer
    assert fed["labels"][0].tolist() == [-100] * (len(asked) + len(written) + len(shown)) + answer
    assert len(written) <= 26, "a call is longer than a turn of the demo"


def test_tags_are_tokens_of_their_own_which_decoding_keeps(policy: TextPolicy):
    ids = policy.tokenizer("<tool_call>[1]</tool_call>").input_ids
    assert [policy.tokenizer.decode(one) for one in (ids[:1], ids[-1:])] == [*look_twice.TAGS]
    assert policy.tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>[1]</tool_call>"


def test_demonstrations_are_as_sloppy_as_they_say():
    settings = WarmStart(batch_size=20, demonstrations=40, seed=3)
    pictures = (draw_small_digit(0, index % 50) for index in itertools.count())
    lessons = [one for batch in demonstrations(settings, pictures) for one in batch if one.question == QUESTION]
    first, second = ([one for one in lessons if (one.look is None) == at_once] for at_once in (True, False))
    at_once = [one.answer for one in first if not one.answer.startswith("<")]
    assert 0.28 < len(second) / len(first) < 0.38 and 0.72 < at_once.count("1") / len(at_once) < 0.83
    assert [one.answer for one in first if one.answer.startswith("<")] == [one.look[0] for one in second if one.look]


def test_chances_are_those_of_the_call_under_the_model():
    model, processor = build(0)
    looks, hits = chances(model, processor)
    assert 0 < looks < 0.05 and 0 <= hits < 1e-6, "an untaught model knows no call"
    tag = processor.tokenizer("<tool_call>").input_ids[0]
    given = model.lm_head.weight
    with torch.no_grad():
        given[tag] += 100 * given[tag].sign()
    assert chances(model, processor)[0] > looks


def test_a_model_that_does_not_learn_is_no_start(tmp_path: Path):
    notes: list[tuple[int, int]] = []
    with pytest.raises(look_twice.UnlearntError, match=r"after 2 steps it reads 0\.00 and points 0\.00 right"):
        teach(*build(0), WarmStart(steps=2, batch_size=2, read_size=2), lambda step, steps, loss: notes.append((step, steps)))
    assert notes == [(1, 50), (2, 50)]
