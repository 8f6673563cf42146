"""Episodes that go on from a turn of another: its turns, its pictures and its world, then a way of their own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.episodes import Limits
from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Branch, Given, Observation, Prompt, Request, Rollouts, Sample, Tempering, Turn
from mmrl.policies.text.policy import TextPolicy
from tests.support.text_policies import FP32_BOUND, ids_of, make, picture, prompts, text_trace
from tests.support.worlds import Inline, player

LIMITS = Limits(turns=4, tokens=2000)


def showing(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation:
    """A picture of its own for every world and turn."""
    return Observation(f"Look {len(turns)}:", (picture((seed + len(turns)) % 97, 64, 48),), reward=0.1)


@pytest.fixture(scope="module")
def first(folder: str) -> Rollouts:
    return player(folder, Inline(showing, LIMITS)).rollout(asked())


def asked() -> list[Request]:
    return [Request(prompts()[i], 2, i, seed=40 + i) for i in (0, 1)]


def branch(rollouts: Rollouts, row: int, turn: int) -> Given:
    """As a planner asks, which sees no pictures of observations."""
    sample = samples_of(rollouts)[row]
    start = sample.turns[turn].span[0]
    turns = [replace(one, observation=replace(one.observation, media=())) for one in sample.turns[:turn] if one.observation]
    noted = rollouts.recorded[ROLLOUT_LOGPROBS][row, :start].tolist()
    return Branch(tuple(turns), ids_of(sample)[:start], tuple(noted), (asked()[row // 2].seed, row % 2))


def request(rollouts: Rollouts, row: int, turn: int, seed: int = 90) -> Request:
    return replace(asked()[row // 2], count=1, seed=seed, written=branch(rollouts, row, turn))


def samples_of(rollouts: Rollouts) -> list[Sample]:
    return [sample for _, sample in rollouts.samples()]


def check(policy: TextPolicy, rollouts: Rollouts, first: Rollouts, sources: Sequence[tuple[int, int]]) -> None:
    """Each row begins with the turns of its source, trains on them as noted, and is read again as it was sampled."""
    policy.audit(rollouts)
    trace, before = text_trace(rollouts.trace), text_trace(first.trace)
    values = policy.read(trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].detach()
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    assert float((values - noted)[rollouts.action_mask].abs().max()) <= FP32_BOUND
    for i, (sample, (row, turn)) in enumerate(zip(samples_of(rollouts), sources, strict=True)):
        source = samples_of(first)[row]
        start = source.turns[turn].span[0]
        assert ids_of(sample)[:start] == ids_of(source)[:start] and len(ids_of(sample)) > start
        assert ids_of(sample)[start:] != ids_of(source)[start:], "the turn is drawn anew"
        assert torch.equal(noted[i, :start], first.recorded[ROLLOUT_LOGPROBS][row, :start]) and int(trace.noted_from[i]) == 0
        assert torch.equal(rollouts.action_mask[i, :start], first.action_mask[row, :start])
        for one, other in zip(trace.insets[i][:turn], before.insets[row][:turn], strict=True):
            assert one.start == other.start
            assert all(torch.equal(pixels, other.media[name]) for name, pixels in one.media.items())
        assert trace.world_seeds[i] == before.world_seeds[row]
        assert [turn.observation for turn in sample.turns[:turn]] == [turn.observation for turn in source.turns[:turn]]


def test_a_branch_shares_turns_pictures_and_world(folder: str, first: Rollouts):
    policy, sources = player(folder, Inline(showing, LIMITS)), [(0, 1), (1, 3), (2, 2), (3, 1)]
    requests = [request(first, *source) for source in sources]
    found = policy.rollout(requests)
    check(policy, found, first, sources)
    for i, one in enumerate(requests):
        alone = player(folder, Inline(showing, LIMITS), rollout_rows=1).rollout([one])
        assert ids_of(samples_of(alone)[0]) == ids_of(samples_of(found)[i]), "whatever is written beside it"


def test_a_branch_branches_again(folder: str, first: Rollouts):
    policy = player(folder, Inline(showing, LIMITS))
    second = policy.rollout([request(first, 1, 1)])
    again = replace(branch(second, 0, 3), world=(asked()[0].seed, 1))
    third = policy.rollout([request(first, 1, 1, seed=91), replace(request(second, 0, 3), seed=92, written=again)])
    assert text_trace(third.trace).world_seeds == (text_trace(first.trace).world_seeds[1],) * 2
    check(policy, third.take(torch.tensor([1])), second, [(0, 3)])
    shared = samples_of(first)[1].turns[1].span[0]
    own = {ids_of(one)[shared:] for rollouts in (first, second, third) for one in samples_of(rollouts)[-2:]}
    assert len(own) == 5, "each draws its own turns"


@pytest.mark.parametrize(
    "answer",
    [
        lambda prompt, turns, seed: Observation(f"Look {len(turns)}?", (picture(seed % 97, 64, 48),)),
        lambda prompt, turns, seed: Observation(f"Look {len(turns)}:", (picture((seed + 50) % 97, 64, 48),), reward=0.1),
        lambda prompt, turns, seed: replace(showing(prompt, turns, seed), reward=0.2),
        lambda prompt, turns, seed: replace(showing(prompt, turns, seed), done=True),
        lambda prompt, turns, seed: None,
    ],
    ids=["text", "picture", "reward", "done", "nothing"],
)
def test_a_world_that_answers_otherwise_is_refused(folder: str, first: Rollouts, answer: Any):
    worlds = Inline(answer, LIMITS)
    with pytest.raises(ValueError, match=r"prompt 'one': a world .* given the same turns, answers turn 1 otherwise, so no"):
        player(folder, worlds).rollout([request(first, 0, 2)])
    assert worlds.closed == [0]


def test_a_world_that_breaks_on_the_way_fails_its_row_alone(folder: str, first: Rollouts):
    def breaking(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation:
        if len(turns) == 2:
            raise RuntimeError("gone")
        return showing(prompt, turns, seed)

    found = player(folder, Inline(breaking, LIMITS)).rollout([request(first, 0, 3), replace(asked()[1], turns=1)])
    broken, other = samples_of(found)[:2]
    assert broken.ended == "error" and len(broken.turns) == 2 and other.ended is None


def test_branches_without_a_world_that_repeats_are_refused(folder: str, first: Rollouts):
    for policy in (make(folder), player(folder, Inline(showing, LIMITS, repeats=False))):
        with pytest.raises(ValueError, match="goes on from a turn of another episode, which takes a world that repeats: take an"):
            policy.rollout([request(first, 0, 1)])
    with pytest.raises(ValueError, match="sets 'tempering', which samples of several turns cannot have"):
        player(folder, Inline(showing, LIMITS)).rollout([replace(request(first, 0, 1), turns=2, tempering=Tempering(0.5))])
