"""Episodes whose turns servers write: token ids in and token ids out, compared every turn, with the pictures of observations."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.modality.base import PolicyNeeds
from mmrl.app.modality.text import TextModality
from mmrl.core.episodes import Limits
from mmrl.core.samples import Turn
from mmrl.core.types import Observation, Prompt, Request
from mmrl.engine.generator import VllmGenerator, text_parts
from mmrl.engine.wire.completions import EngineMismatchError
from mmrl.policies.text.check.audit import audit_rollouts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig
from mmrl.policies.text.write.generate import Completions
from tests.engine.servers import gap, policies_on
from tests.engine.test_servers import BOUND, tokens
from tests.support.fake_engines import FakeEngine, engines
from tests.support.refused import refused
from tests.support.text_policies import asked, picture, prompts, samples_of, text_trace
from tests.support.worlds import Answer, Inline, looking

LIMITS = Limits(turns=4, tokens=2000)
SEEN = 0.02
"""By how much what is wrong moves log-probabilities."""
Make = Callable[..., TextPolicy]


class Ending(VllmGenerator):
    """Calls every turn finished: what is played must not depend on where a random model stops."""

    def write(self, prompts: Any, prompt_index: Any, seeds: Any, sampling: Sampling) -> Completions:
        written = super().write(prompts, prompt_index, seeds, sampling)
        return replace(written, stopped=torch.ones_like(written.stopped))


@pytest.fixture(scope="module")
def two(tiny: Callable[[str], str]) -> Iterator[list[FakeEngine]]:
    with engines(tiny("qwen2_5_vl"), 2) as started:
        yield started


@pytest.fixture
def make(tiny: Callable[[str], str], two: list[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Policies that play with worlds, and whose turns `count` of the servers write, never their own network."""
    monkeypatch.setattr("mmrl.engine.generator.write_locally", lambda *_: pytest.fail("the policy's own network wrote a turn"))
    with policies_on(two) as made:

        def build(answer: Answer = looking, count: int = 1, most: int = 6, **settings: Any) -> TextPolicy:
            engine = EngineConfig(url=tuple(one.url for one in two[:count]), timeout_s=60.0)
            config = TextPolicyConfig(tiny("qwen2_5_vl"), engine=engine, sampling=Sampling(max_new_tokens=most), **settings)
            parts = text_parts(config, Inline(answer, LIMITS))
            made.append(TextPolicy(config, parts=replace(parts, generator=lambda host: Ending(host, engine, LIMITS))))
            return made[-1]

        yield build


def test_turns_that_servers_write_are_read_again_exactly(make: Make, two: list[FakeEngine]):
    policy, before = make(count=2), [len(engine.told()["wrote"]) for engine in two]
    rollouts = policy.rollout(asked(2))
    audit_rollouts(policy, rollouts)
    trace = text_trace(rollouts.trace)
    assert sum(map(len, trace.insets)) >= 8, "pictures were shown"
    assert gap(policy, rollouts) < BOUND
    turns = [len(sample.turns) for sample in samples_of(rollouts)]
    wrote = [len(engine.told()["wrote"]) - count for engine, count in zip(two, before, strict=True)]
    later = sum(turns) - len(turns)
    assert sum(wrote) == 2 + len(prompts()) + later, (
        "a first question each, the first turns of a prompt together, later ones alone"
    )
    wrong = tuple(
        tuple(replace(one, media={**one.media, "pixel_values": one.media["pixel_values"] + 1.0}) for one in row)
        for row in trace.insets
    )
    assert gap(policy, replace(rollouts, trace=replace(trace, insets=wrong))) > SEEN, "other pictures would show"


def test_the_token_that_ends_a_turn_is_sent_as_it_was_sampled(make: Make):
    policy = make(most=24)
    with torch.no_grad():
        policy.net.model.get_output_embeddings().weight[policy.eos_token_ids[0]] *= 4.0
    rollouts = policy.rollout(asked(2))
    ids = [(turn, sample.token_ids or ()) for sample in samples_of(rollouts) for turn in sample.turns]
    assert {row[turn.span[1] - 1] in policy.eos_token_ids for turn, row in ids} == {True, False}
    assert gap(policy, rollouts) < BOUND


def test_a_row_does_not_depend_on_who_else_is_written_nor_by_whom(make: Make):
    together = tokens(make(count=2).rollout(asked(2)))
    assert tokens(make(count=1).rollout(asked(2))) == together
    alone = [row for request in asked(2) for row in tokens(make().rollout([request]))]
    assert alone == together and len(set(together)) == len(together)


def between_turns(act: Callable[[], object]) -> Answer:
    """A world that shows a picture after the first turn, and has something happen before the second."""

    def answer(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
        if len(turns) == 1:
            act()
        return Observation("Here.", (picture(len(turns)),))

    return answer


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("other_prompt", r"read prompt 'one' as \d+ tokens, the policy as \d+, and they differ from place \d+ on"),
        ("other_request", "gave prompt 'one' the answer to another request"),
        ("other_tokens", "with log-probabilities of other tokens"),
        ("wrong_version", "let no other run update this server"),
    ],
)
def test_a_server_that_mixes_turns_up_is_refused(make: Make, two: list[FakeEngine], fault: str, words: str):
    policy = make(between_turns(lambda: two[0].order(**{fault: 1})))
    refused(words, policy.rollout, [Request(prompts()[0], 1, 0, seed=1)], error=EngineMismatchError)


def test_the_text_of_another_turn_shows_where_it_is_read(make: Make, two: list[FakeEngine]):
    """The server says that it is this turn's: no id is wrong, and nothing but a reading can tell. The gate reads all."""
    policy = make(between_turns(lambda: two[0].order(other_text=1)))
    rollouts = policy.rollout([Request(prompts()[0], 1, 0, seed=1)])
    first, second = (turn.text for turn in samples_of(rollouts)[0].turns[:2])
    assert first == second and gap(policy, rollouts) > SEEN
    two[0].order()
    assert gap(policy, make(between_turns(two[0].told)).rollout([Request(prompts()[0], 1, 0, seed=1)])) < BOUND


def test_turns_given_up_are_drawn_again(make: Make, two: list[FakeEngine]):
    request = [Request(prompts()[1], 2, 0, seed=3)]
    expected = tokens(make(between_turns(two[0].told)).rollout(request))
    assert tokens(make(between_turns(lambda: two[0].order(abort=1))).rollout(request)) == expected


def test_a_family_that_reads_pictures_otherwise_beside_others_is_refused(tiny: Callable[[str], str], tmp_path: Path):
    config = TextPolicyConfig(tiny("llava_onevision"), engine=EngineConfig(url=("http://127.0.0.1:9",)))
    with pytest.raises(ValueError, match="llava_onevision reads a lone picture otherwise than several"):
        TextModality().build(config, PolicyNeeds(frozenset(), worlds=Inline(looking, LIMITS)))


def test_a_server_that_dies_between_turns_leaves_no_trace(make: Make, two: list[FakeEngine]):
    expected = tokens(make(between_turns(two[0].told), count=2).rollout(asked(2)))
    assert tokens(make(between_turns(two[0].process.kill), count=2).rollout(asked(2))) == expected
    assert not two[0].process.runs and two[1].process.runs
