"""vLLM's own completions and turns, read again by the policy: the same prompts, the same log-probabilities, the same rules."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from mmrl.core.episodes import Limits
from mmrl.core.types import Prompt, Request, Sample
from mmrl.policies.text.check.audit import audit_rollouts
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.trace import Inset
from tests.engine.servers import CLOSE, gap, server_of
from tests.support.text_policies import hotter, ids_of, picture, text_of, text_trace
from tests.support.worlds import Inline, looking

pytestmark = pytest.mark.engine
Join = Callable[..., TextPolicy]


def samples_of(policy: TextPolicy, requests: Sequence[Request], sampling: Sampling | None = None) -> list[Sample]:
    return [sample for group in policy.rollout(requests, sampling).groups for sample in group.samples]


@pytest.mark.parametrize("name", ["text", "picture", "two", "clip"])
def test_log_probabilities_are_those_that_are_read(
    name: str, join: Join, asked: Sequence[Prompt], monkeypatch: pytest.MonkeyPatch
):
    policy = join()
    monkeypatch.setattr("mmrl.engine.generator.write_locally", None)
    (prompt,) = (prompt for prompt in asked if prompt.id == name)
    for temperature in (1.0, 0.7):
        sampling = hotter(policy, temperature=temperature)
        rollouts = policy.rollout([Request(prompt, 8, group_id=0, seed=5)], sampling)
        assert gap(policy, rollouts) < CLOSE, "a wrong picture, frame or position would move some by 0.01 or more"


def test_a_step_of_prompts_of_all_kinds(join: Join, asked: Sequence[Prompt]):
    policy = join()
    rollouts = policy.rollout([Request(prompt, 1 + i, group_id=i, seed=i) for i, prompt in enumerate(asked)])
    assert [len(group.samples) for group in rollouts.groups] == [1, 2, 3, 4]
    assert gap(policy, rollouts) < CLOSE


def test_the_bound_would_see_another_picture(join: Join, asked: Sequence[Prompt]):
    policy = join()
    rollouts = policy.rollout([Request(asked[1], 8, group_id=0, seed=5)])
    trace = text_trace(rollouts.trace)
    other = policy.encode(Prompt("picture", asked[1].text, (picture(9, 96, 64),)))
    wrong = replace(rollouts, trace=replace(trace, prompts=(other,)))
    assert gap(policy, rollouts) < CLOSE < 100 * CLOSE < gap(policy, wrong)


def test_the_same_seed_gives_the_same_sample_however_rows_are_asked_for(join: Join, asked: Sequence[Prompt]):
    policy = join()
    requests = [Request(prompt, 4, group_id=i, seed=11 + i) for i, prompt in enumerate(asked[:3])]
    whole = [ids_of(sample) for sample in samples_of(policy, requests)]
    assert [ids_of(sample) for sample in samples_of(policy, requests)] == whole
    alone = [ids_of(sample) for request in requests[::-1] for sample in samples_of(policy, [request])]
    assert sorted(alone) == sorted(whole)
    assert len(set(whole)) == len(whole), "neighbouring seeds give no neighbour's sample"
    few = Request(asked[0], 2, group_id=0, seed=11)
    assert [ids_of(sample) for sample in samples_of(policy, [few])] == whole[:2]


def test_greedy_is_what_the_policy_itself_writes(join: Join, asked: Sequence[Prompt]):
    policy = join()
    greedy = hotter(policy, temperature=0.0)
    requests = [Request(prompt, 1, group_id=i) for i, prompt in enumerate(asked)]
    there = samples_of(policy, requests, greedy)
    policy.generator = server_of(policy).local
    assert [ids_of(sample) for sample in samples_of(policy, requests, greedy)] == [ids_of(sample) for sample in there]


def test_banned_tokens_are_never_written(join: Join, asked: Sequence[Prompt]):
    """The head is turned toward placeholders of pictures, so that most samples would hold some were they not banned."""
    policy = join()
    banned = sorted(policy.banned)
    head = policy.net.model.get_output_embeddings().weight
    with torch.no_grad():
        head[banned] = 3.0 * head[torch.randperm(256, generator=torch.Generator().manual_seed(0))[: len(banned)]]
    requests = [Request(asked[1], 32, group_id=0, seed=3)]
    rollouts = policy.rollout(requests)
    tokens = {token for sample in rollouts.groups[0].samples for token in ids_of(sample)}
    assert not tokens & policy.banned and gap(policy, rollouts) < CLOSE
    policy.banned = frozenset()
    free = server_of(policy).write([policy.encode(asked[1])], [0] * 32, [(3, i) for i in range(32)], policy.config.sampling)
    tokens = {token for row, length in zip(free.tokens.tolist(), free.lengths.tolist(), strict=True) for token in row[:length]}
    assert set(banned) & tokens, "without the ban there would be some"


def test_a_stop_text_ends_a_completion_and_stays_in_it(join: Join, asked: Sequence[Prompt]):
    policy = join()
    stops = ("a", "e", "7", "th", " ")
    sampling = Sampling(max_new_tokens=64, stop=stops)
    rollouts = policy.rollout([Request(asked[0], 16, group_id=0, seed=2), Request(asked[1], 16, group_id=1, seed=2)], sampling)
    samples = [sample for group in rollouts.groups for sample in group.samples]
    ended = [text_of(sample) for sample in samples if not sample.truncated and any(stop in text_of(sample) for stop in stops)]
    assert len(ended) > len(samples) // 2
    for text in ended:
        assert text.endswith(stops) and not any(stop in text[:-1] for stop in stops if len(stop) == 1)
    assert gap(policy, rollouts) < CLOSE


def test_the_end_of_a_turn_stays_in_the_tokens(join: Join, asked: Sequence[Prompt]):
    policy = join()
    eos = policy.eos_token_ids[0]
    head = policy.net.model.get_output_embeddings().weight
    with torch.no_grad():
        head[eos] *= 4.0
    rollouts = policy.rollout([Request(prompt, 16, group_id=i, seed=i) for i, prompt in enumerate(asked[:3])])
    samples = [sample for group in rollouts.groups for sample in group.samples]
    ended = [ids_of(sample) for sample in samples if not sample.truncated]
    assert ended and all(ids[-1] == eos and eos not in ids[:-1] for ids in ended)
    assert all(len(ids_of(sample)) == 12 and eos not in ids_of(sample) for sample in samples if sample.truncated)
    assert gap(policy, rollouts) < CLOSE


def test_turns_with_pictures_between_them(join: Join, asked: Sequence[Prompt], monkeypatch: pytest.MonkeyPatch):
    """Every turn is asked for with the ids and all pictures of the row so far, which the server must read as the policy does."""
    policy = join(worlds=Inline(looking, Limits(turns=4, tokens=1500)))
    generator = server_of(policy)
    write = generator.write
    monkeypatch.setattr("mmrl.engine.generator.write_locally", None)
    # what is played must not depend on where a random model stops
    monkeypatch.setattr(generator, "write", lambda *given: replace(one := write(*given), stopped=torch.ones_like(one.stopped)))
    requests = [Request(prompt, 3, group_id=i, seed=70 + i) for i, prompt in enumerate(asked[:3])]
    rollouts = policy.rollout(requests)
    audit_rollouts(policy, rollouts)
    trace = text_trace(rollouts.trace)
    shown = [one for row in trace.insets for one in row]
    assert len(shown) >= 8 and {len(sample.turns) for group in rollouts.groups for sample in group.samples} == {3, 4}
    assert gap(policy, rollouts) < CLOSE
    other = {id(one): other for one, other in zip(shown, reversed(shown), strict=True) if shapes(one) == shapes(other)}
    swapped = tuple(tuple(replace(one, media=other.get(id(one), one).media) for one in row) for row in trace.insets)
    assert gap(policy, replace(rollouts, trace=replace(trace, insets=swapped))) > 100 * CLOSE, "another row's picture would show"
    again = samples_of(policy, requests[::-1])
    assert sorted(map(ids_of, again)) == sorted(ids_of(sample) for group in rollouts.groups for sample in group.samples)


def shapes(one: Inset) -> list[torch.Size]:
    return [x.shape for x in one.media.values()]
