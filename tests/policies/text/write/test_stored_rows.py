"""A real vision-language model takes up rows of an earlier step, reads at other temperatures, and keeps older weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.planners.extra_samples import Heat
from mmrl.core.readings import LOGPROBS, PREVIOUS_LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.samples import segments_of, turn_ids
from mmrl.core.types import Request, StoredRow, Tempering
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.check.audit import audit_rollouts
from tests.support.text_policies import FP32_BOUND, ids_of, logprobs, make, mixed, prompts


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
    with pytest.raises(ValueError, match=rf"but for the {len(asked)} of the environment from place {len(row.tokens)} on, where"):
        audit_rollouts(policy, late)


def test_without_its_record_a_stored_row_is_unknown(policy: Any):
    request = stored(policy.rollout(mixed()), 0)
    assert request.given is not None
    again = policy.rollout([replace(request, written=StoredRow(request.given.tokens))])
    assert bool(again.recorded[ROLLOUT_LOGPROBS][again.action_mask].isnan().all())


@pytest.mark.parametrize("change", [{"written": None}, {"count": 2}, {"role": "policy"}])
def test_half_a_stored_row_is_refused(policy: Any, change: dict[str, Any]):
    request = replace(stored(policy.rollout(mixed()), 0), **change)
    with pytest.raises(ValueError, match=r"replays a row of an earlier step: give it as Request\.written, role 'replayed'"):
        policy.rollout([request])


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
        mask, noted = hot.action_mask, hot.recorded[ROLLOUT_LOGPROBS]
        torch.testing.assert_close(noted[mask], logprobs(policy, hot).detach()[mask], atol=FP32_BOUND, rtol=0)
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
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(seen))))
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

    def move(seed: int) -> None:
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)))
        policy.advance()

    def referred(one: Any) -> torch.Tensor:
        return one.read(rollouts.trace, [REF_LOGPROBS], rollouts.action_mask)[REF_LOGPROBS]

    at_start = referred(policy)
    move(1)
    policy.end_step()
    assert torch.equal(referred(policy), at_start)
    then = logprobs(policy, rollouts).detach()
    policy.end_step(rebase=True)
    move(2)
    assert torch.allclose(referred(policy), then, atol=1e-5) and not torch.allclose(then, at_start, atol=1e-3)
    fresh = make(tiny("qwen2_5_vl"), ("ref",), lora=lora)
    fresh.load_state_dict(policy.state_dict())
    assert torch.allclose(referred(fresh), then, atol=1e-5)


def test_a_vocabulary_has_a_name_of_its_own(tiny: Any):
    names = {make(tiny(family)).vocabulary for family in ("qwen2_5_vl", "gemma3")}
    assert len(names) == 2
