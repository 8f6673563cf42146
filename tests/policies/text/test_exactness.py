"""The numbers noted while sampling, those of both ways of reading and those of transformers alone are the same."""

import pytest
import torch

from mmrl.core.readings import ENTROPY, LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.policies.text.policy import Sampling
from mmrl.policies.text.prompt.encode import stand_in_prompt
from tests.support.text_policies import (
    EVERY,
    FAMILIES,
    FP32_BOUND,
    LATE,
    bias_toward,
    fed_by,
    generated,
    gradients,
    ids_of,
    logprobs,
    make,
    mixed,
    picture,
    plain_logprobs,
    plain_model,
    prompts,
    relative_difference,
    text_trace,
)

REST = [pytest.param(family, marks=pytest.mark.evidence) for family in LATE if family not in ("gemma4", "muse_glimmer")]


@pytest.mark.parametrize("family", EVERY)
def test_rollout_shared_and_repeated_readings_and_the_plain_model_agree(tiny, family):
    shared, repeated = make(tiny(family), prefix="auto"), make(tiny(family), prefix="repeated")
    rollouts = shared.rollout(mixed())
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    assert rollouts.action_mask.sum() > 0
    for expected in (
        logprobs(shared, rollouts),
        logprobs(repeated, rollouts),
        plain_logprobs(plain_model(tiny(family)), shared, rollouts),
    ):
        torch.testing.assert_close(noted, expected.detach(), atol=FP32_BOUND, rtol=0)
    assert relative_difference(gradients(shared, rollouts), gradients(repeated, rollouts)) < 1e-4


@pytest.mark.parametrize("family", EVERY)
def test_pictures_reach_their_own_prompt(tiny, family):
    policy = make(tiny(family))
    a, b = picture(1), picture(2, 90, 40)
    pair = [Prompt("1", "<image> or <image>?", (a, b)), Prompt("2", "<image> or <image>?", (b, a)), Prompt("3", "which?", (a,))]
    text = "yes"

    def read(order: list[int]) -> torch.Tensor:
        requests = [Request(pair[i], 2, group_id=i, role="injected", written=text) for i in order]
        rollouts = policy.rollout(requests)
        values = logprobs(policy, rollouts).detach()
        return torch.stack([values[rollouts.group_ids == i][0] for i in range(3)])

    inward = read([0, 1, 2])
    torch.testing.assert_close(inward, read([2, 0, 1]), atol=FP32_BOUND, rtol=0)
    assert (inward[0] - inward[1]).abs().max() > 1e-3, "swapping two pictures must be seen"


@pytest.mark.parametrize("family", EVERY)
def test_media_tokens_are_never_written(tiny, family):
    policy = make(tiny(family))
    forbidden = sorted(policy.media_token_ids)
    assert policy.family.image_token_id in forbidden
    hook = bias_toward(policy, forbidden)
    rollouts = policy.rollout(mixed())
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    written = {token for _, sample in rollouts.samples() for token in ids_of(sample)}
    torch.testing.assert_close(noted, logprobs(policy, rollouts).detach(), atol=FP32_BOUND, rtol=0)
    hook.remove()
    assert not written & set(forbidden)
    assert not written & policy.banned
    assert noted.min() > -30, "the bias on banned tokens must not cost the others their probability"


@pytest.mark.parametrize("family", [*FAMILIES, "gemma4", "muse_glimmer", *REST])
def test_greedy_equals_generate(tiny, family):
    policy = make(tiny(family))
    model, processor = plain_model(tiny(family))
    prompt = prompts()[0]
    rollouts = policy.rollout([Request(prompt, 2, 0), Request(prompts()[2], 1, 1)], Sampling(temperature=0.0, max_new_tokens=8))
    expected = generated(policy, model, fed_by(processor, prompt), 8)
    assert [ids_of(sample) for sample in rollouts.groups[0].samples] == [expected] * 2


@pytest.mark.parametrize("chunk", [1, 10**9])
def test_the_gradient_of_weighed_entropies_is_finite_and_right(tiny, chunk):
    """Token by token, with weights from 1e-3 to 1e3: tokens that are never written have no part in it."""
    policy = make(tiny("qwen3_vl"), logit_chunk=chunk)
    rollouts = policy.rollout(mixed()[:2])
    head = policy.net.model.get_output_embeddings().weight
    mask, found = rollouts.action_mask, policy.read(rollouts.trace, [ENTROPY], rollouts.action_mask)[ENTROPY]
    each = torch.stack([torch.autograd.grad(one, head, retain_graph=True)[0] for one in found[mask]])
    assert each.isfinite().all() and each.abs().amax(dim=(1, 2)).min() > 0
    weights = torch.logspace(-3, 3, int(mask.sum()))
    entropy = policy.read(rollouts.trace, [ENTROPY], mask)[ENTROPY]
    whole = torch.autograd.grad((weights * entropy[mask]).sum(), head)[0]
    expected = (weights[:, None, None].double() * each).sum(0)
    torch.testing.assert_close(whole.double(), expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


def test_entropy_is_that_of_the_distribution(tiny):
    policy = make(tiny("qwen3_vl"))
    rollouts = policy.rollout(mixed())
    plain = policy.read(rollouts.trace, [ENTROPY, LOGPROBS], rollouts.action_mask)
    # E over the vocabulary of -log p at the first token, from the log-probability of every token that may be written.
    allowed = [token for token in range(len(policy.tokenizer)) if token not in policy.banned]
    row = text_trace(rollouts.trace).take(torch.zeros(len(allowed), dtype=torch.long))
    row.tokens[:, 0] = torch.tensor(allowed)
    first = policy.read(row, [LOGPROBS], torch.ones(len(allowed), row.tokens.shape[1], dtype=torch.bool))[LOGPROBS][:, 0].detach()
    assert float(first.exp().sum()) == pytest.approx(1, abs=1e-5)
    assert float(plain[ENTROPY][0, 0].detach()) == pytest.approx(float(-(first.exp() * first).sum()), abs=1e-4)
    (gradient,) = torch.autograd.grad(plain[ENTROPY].sum(), policy.net.model.get_output_embeddings().weight)
    assert gradient.isfinite().all()


def test_temperature_of_the_rollout_counts_in_the_reading(tiny):
    policy = make(tiny("qwen3_vl"), sampling=Sampling(temperature=0.7, max_new_tokens=5))
    hot, cold = policy.rollout(mixed()), policy.rollout(mixed(), Sampling(temperature=1.6, max_new_tokens=8))
    trace = policy.join([hot.trace, cold.trace])
    noted = torch.cat([torch.nn.functional.pad(hot.recorded[ROLLOUT_LOGPROBS], (0, 3)), cold.recorded[ROLLOUT_LOGPROBS]])
    mask = torch.cat([torch.nn.functional.pad(hot.action_mask, (0, 3)), cold.action_mask])
    read = policy.read(trace, [LOGPROBS], mask)[LOGPROBS].detach()
    torch.testing.assert_close(read, noted, atol=FP32_BOUND, rtol=0)


def test_logits_exist_for_one_chunk_of_trained_positions_at_a_time(tiny):
    vocabulary = len(make(tiny("qwen3_vl")).net.banned)
    policy = make(tiny("qwen3_vl"), logit_chunk=5 * vocabulary + 3, sampling=Sampling(max_new_tokens=9))
    rollouts = policy.rollout(mixed())
    sizes: list[int] = []
    hook = policy.net.model.get_output_embeddings().register_forward_hook(lambda m, i, out: sizes.append(out.shape[:-1].numel()))
    chunked = gradients(policy, rollouts)
    hook.remove()
    actions = int(rollouts.action_mask.sum())
    assert max(sizes) == 5
    assert sum(sizes) == 2 * actions, "once forward, once again for the gradient, prompt positions never"
    whole = make(tiny("qwen3_vl"))
    assert relative_difference(chunked, gradients(whole, rollouts)) < 1e-5


def test_pictures_pass_the_vision_tower_once_per_prompt(tiny):
    for prefix in ("packed", "repeated"):
        policy = make(tiny("qwen3_vl"), prefix=prefix)
        patches: list[int] = []
        policy.net.core.visual.register_forward_hook(
            lambda m, args, kwargs, out, seen=patches: seen.append(len(args[0])), with_kwargs=True
        )
        rollouts = policy.rollout([Request(prompts()[0], 4, 0), Request(prompts()[1], 3, 1)])
        each = sum(len(prompt.media["pixel_values"]) for prompt in text_trace(rollouts.trace).prompts)
        assert patches == [each]
        logprobs(policy, rollouts)
        assert patches == [each, each]


def test_values_are_finite_where_nothing_is_trained(tiny):
    policy = make(tiny("smolvlm"))
    rollouts = policy.rollout(mixed())
    nothing = torch.zeros_like(rollouts.action_mask)
    values = policy.read(rollouts.trace, [LOGPROBS, ENTROPY], nothing)
    for value in values.values():
        assert value.shape == nothing.shape and value.isfinite().all()
    (values[LOGPROBS] * 0).sum().backward()
    assert all(weight.grad is None or (weight.grad == 0).all() for weight in policy.parameters())


@pytest.mark.parametrize("family", EVERY)
def test_rows_without_pictures_reach_the_vision_weights_that_pictures_reach(tiny, family):
    """Wrappers for many processes hang when one of them leaves weights out."""
    policy = make(tiny(family))
    pictured, plain = policy.rollout([Request(prompts()[0], 1, 0)]), policy.rollout([Request(prompts()[2], 2, 0)])
    before = gradients(policy, plain)
    policy.net.stand_in, policy.net.passes = policy.encode(stand_in_prompt(policy.family)).media, lambda count: max(1, count)
    after = gradients(policy, plain)
    assert after.keys() == gradients(policy, pictured).keys() > before.keys()
    assert all((after[name] == 0).all() for name in after.keys() - before.keys())
    assert relative_difference({name: after[name] for name in before}, before) < 1e-6
