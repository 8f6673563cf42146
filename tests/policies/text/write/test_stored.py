"""Rows that begin with what was written before: stored rows, stored episodes and branches train and read as they did."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.algorithms.planners.extra_samples import Heat
from mmrl.algorithms.planners.replay import ReplayGroups, RowBuffer, rows_to_keep
from mmrl.algorithms.presets import PRESETS
from mmrl.core.episodes import Limits
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, PREVIOUS_LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.samples import segments_of, turn_ids
from mmrl.core.types import Credit, Given, Group, Observation, Prompt, Request, Rollouts, StoredRow, Tempering, Turn
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.check.audit import audit_rollouts
from mmrl.policies.text.policy import TextPolicy
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.trainer import Trainer
from tests.support.faults import trainer_of
from tests.support.refused import refused
from tests.support.rows import scores
from tests.support.text_policies import (
    FP32_BOUND,
    gap,
    ids_of,
    logprobs,
    make,
    mixed,
    picture,
    prompts,
    samples_of,
    stir,
    text_trace,
)
from tests.support.trainers import weights
from tests.support.worlds import Inline, branch_of, player


@pytest.fixture(scope="module")
def policy(tiny: Any) -> Any:
    return make(tiny("qwen2_5_vl"), ("previous",))


def stored(rollouts: Any, row: int) -> Request:
    group, sample = list(rollouts.samples())[row]
    tokens = ids_of(sample)
    noted = tuple(rollouts.recorded[ROLLOUT_LOGPROBS][row, : len(tokens)].tolist())
    return Request(group.prompt, 1, 99, role="replayed", written=StoredRow(tokens, noted, truncated=sample.truncated))


def test_a_stored_row_is_the_same_row_again(policy: Any):
    first = policy.rollout(mixed())
    again = policy.rollout([stored(first, 1), Request(prompts()[3], 2, 5, seed=3)])
    ((_, before), (group, after)) = (list(rollouts.samples())[i] for rollouts, i in ((first, 1), (again, 0)))
    assert (after.text, after.token_ids, after.truncated) == (before.text, before.token_ids, before.truncated)
    assert after.role == "replayed" and group.id == 99
    length = len(ids_of(after))
    assert torch.equal(again.recorded[ROLLOUT_LOGPROBS][0, :length], first.recorded[ROLLOUT_LOGPROBS][1, :length])
    assert torch.allclose(logprobs(policy, again)[0, :length], logprobs(policy, first)[1, :length], atol=2e-5)


def test_a_stored_row_keeps_its_turns(policy: Any):
    """A question from outside between two turns is read, and does not train."""
    first = policy.rollout(mixed())
    request = stored(first, 1)
    asked, row = tuple(policy.tokenizer(" sure?", add_special_tokens=False)["input_ids"]), request.given
    assert row is not None
    segments = segments_of([("policy", len(row.tokens)), ("environment", len(asked)), ("policy", len(row.tokens))])
    tokens, noted = (*row.tokens, *asked, *row.tokens), (*row.logprobs, *[0.0] * len(asked), *row.logprobs)
    again = policy.rollout([replace(request, written=StoredRow(tokens, noted, truncated=row.truncated, segments=segments))])
    audit_rollouts(policy, again)
    ((_, sample),) = again.samples()
    (_, before) = list(first.samples())[1]
    assert sample.text == before.text and sample.segments == segments
    assert sample.transcript == policy.decode([list(row.tokens) + list(asked)])[0] + before.text
    assert again.action_mask.tolist() == [[turn >= 0 for turn in turn_ids(segments)]]
    read = logprobs(policy, again).detach()[0, : len(row.tokens)]
    torch.testing.assert_close(read, torch.tensor(row.logprobs), atol=FP32_BOUND, rtol=0)
    late = replace(again, action_mask=torch.ones_like(again.action_mask))
    refused(rf"but for the {len(asked)} of the environment from place {len(row.tokens)} on, where", audit_rollouts, policy, late)


def test_without_its_record_a_stored_row_is_unknown(policy: Any):
    request = stored(policy.rollout(mixed()), 0)
    assert request.given is not None
    again = policy.rollout([replace(request, written=StoredRow(request.given.tokens))])
    assert bool(again.recorded[ROLLOUT_LOGPROBS][again.action_mask].isnan().all())


@pytest.mark.parametrize("change", [{"written": None}, {"count": 2}, {"role": "policy"}])
def test_half_a_stored_row_is_refused(policy: Any, change: dict[str, Any]):
    request = replace(stored(policy.rollout(mixed()), 0), **change)
    refused(r"replays a row of an earlier step: give it as Request\.written, role 'replayed'", policy.rollout, [request])


def test_a_reading_at_a_temperature_divides_the_logits(policy: Any):
    rollouts = policy.rollout(mixed())
    mask, hot = rollouts.action_mask, LOGPROBS._replace(temperature=2.0)
    found = policy.read(rollouts.trace, [LOGPROBS, hot], mask)
    by_hand = policy.read(replace(rollouts.trace, temperature=torch.full_like(rollouts.trace.temperature, 2.0)), [LOGPROBS], mask)
    assert torch.equal(found[hot], by_hand[LOGPROBS])
    assert not torch.allclose(found[hot], found[LOGPROBS])


def test_rows_of_another_temperature_are_drawn_with_it_and_read_at_the_runs(policy: Any):
    cold = [replace(request, tempering=Tempering(1e-3), seed=i) for i, request in enumerate(mixed())]
    first, second = policy.rollout(cold), policy.rollout([replace(request, seed=request.seed + 50) for request in cold])
    assert [s.text for _, s in first.samples()] == [s.text for _, s in second.samples()], "nearly greedy, whatever the seed"
    assert all(sample.temperature == 1e-3 for _, sample in first.samples())
    assert bool((first.trace.temperature == 1.0).all())
    assert bool(first.recorded[ROLLOUT_LOGPROBS][first.action_mask].isnan().all())


def test_tokens_of_their_own_temperature_are_noted_at_the_runs(policy: Any):
    plain = policy.rollout(mixed())
    # a tiny model is unsure everywhere: above this pivot all its tokens are drawn twice as hot, or half as hot
    for below, above in ((0.0, 9.0), (0.0, -9.0)):
        heat = Heat(pivot=-9.0, deviation=1.0, above=above, below=below, amount=0.9)
        hot = policy.rollout([replace(request, tempering=Tempering(rule=heat)) for request in mixed()])
        audit_rollouts(policy, hot)
        assert gap(policy, hot) <= FP32_BOUND
        assert [s.text for _, s in hot.samples()] != [s.text for _, s in plain.samples()]
        assert all(sample.temperature is None for _, sample in hot.samples()), "they count as the policy's own"
    cold = Heat(pivot=-9.0, deviation=1.0, above=-9.0, amount=0.999999)
    twice = [policy.rollout([replace(r, tempering=Tempering(rule=cold), seed=r.seed + k) for r in mixed()]) for k in (0, 50)]
    assert [s.text for _, s in twice[0].samples()] == [s.text for _, s in twice[1].samples()], "nearly greedy, whatever the seed"


def test_previous_weights_lag_one_step(tiny: Any):
    policy = make(tiny("qwen2_5_vl"), ("previous",))
    rollouts = policy.rollout(mixed()[:2])
    seen: list[Any] = []
    for _ in range(3):
        seen.append(logprobs(policy, rollouts).detach())
        stir(policy, seed=len(seen))
        policy.advance()
        policy.end_step()
    previous = policy.read(rollouts.trace, [PREVIOUS_LOGPROBS], rollouts.action_mask)[PREVIOUS_LOGPROBS]
    assert torch.allclose(previous, seen[2], atol=1e-5) and not torch.allclose(previous, seen[1], atol=1e-3)
    fresh = make(tiny("qwen2_5_vl"), ("previous",))
    fresh.load_state_dict(policy.state_dict())
    again = fresh.read(rollouts.trace, [PREVIOUS_LOGPROBS], rollouts.action_mask)[PREVIOUS_LOGPROBS]
    assert torch.allclose(again, previous, atol=1e-6)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)], ids=["full", "lora"])
def test_the_policy_of_a_moment_becomes_the_reference(tiny: Any, lora: LoraSettings | None):
    policy = make(tiny("qwen2_5_vl"), ("ref",), lora=lora)
    rollouts = policy.rollout(mixed()[:2])

    def referred(one: Any) -> torch.Tensor:
        return one.read(rollouts.trace, [REF_LOGPROBS], rollouts.action_mask)[REF_LOGPROBS]

    at_start = referred(policy)
    stir(policy)
    policy.advance()
    policy.end_step()
    assert torch.equal(referred(policy), at_start)
    then = logprobs(policy, rollouts).detach()
    policy.end_step(rebase=True)
    stir(policy, seed=2)
    policy.advance()
    assert torch.allclose(referred(policy), then, atol=1e-5) and not torch.allclose(then, at_start, atol=1e-3)
    fresh = make(tiny("qwen2_5_vl"), ("ref",), lora=lora)
    fresh.load_state_dict(policy.state_dict())
    assert torch.allclose(referred(fresh), then, atol=1e-5)


def test_a_vocabulary_has_a_name_of_its_own(tiny: Any):
    names = {make(tiny(family)).vocabulary for family in ("qwen2_5_vl", "gemma3")}
    assert len(names) == 2


THREE = Limits(turns=3, tokens=2000)


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
def actor(folder: str, tmp_path: Path) -> TextPolicy:
    return player(folder, Inline(Screens(tmp_path), THREE))


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


def test_a_stored_episode_is_read_as_it_was_shown(actor: TextPolicy):
    first = actor.rollout([Request(prompts()[i], 4, i, seed=40 + i) for i in (0, 1)])
    actor.audit(first)
    buffer = kept_of(first)
    requests = [buffer.request(kept, 90 + i) for i, kept in enumerate(buffer.rows)]
    fresh = Request(prompts()[3], 2, 7, seed=3)
    again = actor.rollout([*requests, fresh])
    actor.audit(again)
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
    assert gap(actor, again) <= FP32_BOUND


def test_pictures_that_become_other_tokens_are_refused(actor: TextPolicy):
    buffer = kept_of(actor.rollout([Request(prompts()[0], 4, 0, seed=41)]))
    kept = next(kept for kept in buffer.rows if len(kept.row.turns) > 1 and (kept.row.turns[0].observation or 0) and size(kept))
    heard = kept.row.turns[0].observation
    assert heard is not None
    large = replace(kept.row.turns[0], observation=replace(heard, media=(picture(1, 200, 200), *heard.media[1:])))
    row = replace(kept.row, turns=(large, *kept.row.turns[1:]))
    with pytest.raises(ValueError, match=r"after turn 1 of .* was \d+ tokens then and is \d+ others now: resume with the saved"):
        actor.rollout([buffer.request(kept._replace(row=row), 5)])


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
    numbers = {"steps": 4, "prompts_per_step": 2, "micro_batch": 4096}

    def fresh() -> Trainer:
        return trainer_of(player(folder, Inline(Screens(tmp_path), THREE)), algorithm, prompts(), stated, **numbers)

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
    return branch_of(rollouts, row, turn, (asked()[row // 2].seed, row % 2))


def request(rollouts: Rollouts, row: int, turn: int, seed: int = 90) -> Request:
    return replace(asked()[row // 2], count=1, seed=seed, written=branch(rollouts, row, turn))


def check(policy: TextPolicy, rollouts: Rollouts, first: Rollouts, sources: Sequence[tuple[int, int]]) -> None:
    """Each row begins with the turns of its source, trains on them as noted, and is read again as it was sampled."""
    policy.audit(rollouts)
    trace, before = text_trace(rollouts.trace), text_trace(first.trace)
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    assert gap(policy, rollouts) <= FP32_BOUND
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
    asks = [request(first, 0, 1)]
    for policy in (make(folder), player(folder, Inline(showing, LIMITS, repeats=False))):
        refused("goes on from a turn of another episode, which takes a world that repeats: take an", policy.rollout, asks)
    policy, hot = player(folder, Inline(showing, LIMITS)), [replace(asks[0], turns=2, tempering=Tempering(0.5))]
    refused("sets 'tempering', which samples of several turns cannot have", policy.rollout, hot)
